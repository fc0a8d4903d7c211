"""A class-data-sharing archive for Spark's JVM: created once, it saves seconds at the start of every local run.

A representative run (a few records through a broker of its own, with validation) is traced, and the classes that it
loaded are dumped. The JVM ignores an archive that is missing or does not match its class path. It crashes on a
truncated one, so a stamp beside the archive says whether it is intact.
Java's own description: "Dynamic AppCDS archive", JEP 350.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sluice.connections import Connection
from sluice.errors import SluiceError
from sluice.home import Home
from sluice.launch import jars
from sluice.launch.submit import archive_file, archive_stamp, is_whole, submit
from sluice.local.kafka import Broker, Record, Topics
from sluice.pipeline import load
from sluice.run.actions import RunRequest

__all__ = ["make"]

_PIPELINE = """\
pipeline: warm-up
source: {kafka: {topics: [warm-up]}}
decode: {json: {schema: "id BIGINT, name STRING, amount DOUBLE, at TIMESTAMP"}}
transform: {sql: "SELECT *, amount * 2 AS twice FROM source"}
sink: {delta: {path: warm-up}}
quality: {suite: suite.json}
"""

_SUITE = {
    "name": "warm-up",
    "expectations": [
        {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "id"}},
        {"type": "expect_column_values_to_be_between", "kwargs": {"column": "amount", "min_value": 0}},
        {"type": "expect_column_values_to_be_in_set", "kwargs": {"column": "name", "value_set": ["a", "b"]}},
    ],
}


def make(*, report: Callable[[str], None] = lambda _: None, again: bool = False) -> Path:
    """Create the archive unless there is one that is newer than the jars; return its path.

    Raises
    ------
    SluiceError
        If the traced run fails; runs work without an archive.
    """
    home = Home.from_env()
    target = archive_file(home)
    spark_jars = jars.fetch("spark", report=report)
    if is_whole(target) and not again and all(target.stat().st_mtime > j.stat().st_mtime for j in spark_jars):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    jars.fetch("kafka", report=report)
    report("tracing a small run to shorten Spark's start (about a minute, once)")
    with tempfile.TemporaryDirectory(prefix="sluice-archive-") as scratch:
        fresh = target.with_suffix(f".{os.getpid()}.new")
        _traced_run(Path(scratch), home, fresh)
        made = int(fresh.stat().st_mtime)
        os.utime(fresh, (made, made))  # the stamp notes the time, and an image's layers keep whole seconds
        os.replace(fresh, target)
    target.with_suffix(".stamp").write_text(archive_stamp(target))
    return target


def _traced_run(scratch: Path, home: Home, archive: Path) -> None:
    (scratch / "suite.json").write_text(json.dumps(_SUITE))
    (scratch / "warm-up.yaml").write_text(_PIPELINE)
    broker = Broker(scratch / "kafka", port=0, jar_files=jars.paths("kafka"))
    broker.start()
    try:
        topics = Topics(broker.bootstrap)
        topics.create("warm-up", 2)
        values = [
            json.dumps({"id": i, "name": "ab"[i % 2], "amount": i / 7, "at": "2026-01-01T00:00:00Z"}).encode()
            for i in range(200)
        ]
        topics.produce("warm-up", [Record(i % 2, b"k", v) for i, v in enumerate([*values, b"not json"])])
        kafka = Connection("kafka_default", "kafka", extra={"bootstrap.servers": broker.bootstrap})
        here = Connection("spark_default", "spark", "local[2]")
        started = submit(load(scratch / "warm-up.yaml"), RunRequest("warm-up"), spark=here, find=lambda _: kafka)
        # the class path must be that of later runs, so the jars stay in their place; everything else is temporary
        options = [o for o in started.java_options.split() if not o.startswith("-XX:SharedArchiveFile")]
        started = replace(started, java_options=" ".join([*options, f"-XX:ArchiveClassesAtExit={archive}"]))
        env = {**os.environ, **started.env, "SLUICE_HOME": str(scratch / "home")}
        env.pop("SLUICE_LEDGER_URL", None)
        done = subprocess.run(started.argv(), env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode or not archive.is_file():
            raise SluiceError(
                f"the traced run ended with {done.returncode}: {done.stdout[-2000:]}",
                state="no archive was created; runs work without one",
                next_step="python -m sluice.local.archive",
            )
    finally:
        broker.stop()


if __name__ == "__main__":
    try:
        print(make(report=lambda line: print(line, file=sys.stderr), again="--again" in sys.argv))  # noqa: T201
    except SluiceError as error:
        print(f"sluice: error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(int(error.exit_code))
