"""Stands in for spark-submit: sends its call to ``FakeSpark`` in the test's process, and does what that answers.

It imports nothing of Sluice, which would cost a second each time.
"""

import json
import os
import socket
import subprocess
import sys

with socket.create_connection(("127.0.0.1", int(os.environ["FAKE_SPARK"]))) as connection:
    stream = connection.makefile("rw")
    stream.write(json.dumps({"argv": sys.argv[1:], "env": dict(os.environ)}) + "\n")
    stream.flush()
    plan = json.loads(stream.readline())
for line in plan.get("say", []):
    print(line, flush=True)
if "hang" in plan:  # with a child of its own, as a JVM has its Python driver
    child = subprocess.Popen(["sleep", "600"])
    with open(plan["pids"], "w") as pids:
        pids.write(f"{os.getpid()} {child.pid}")
    with open(plan["hang"], "w"):  # shows the test that it hangs
        pass
    child.wait()
sys.exit(plan.get("code", 0))
