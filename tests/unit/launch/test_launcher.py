"""The log of an application that a launcher starts, and its end by signals."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pyspark

from sluice.shipped import shipped

_START = """
import sys
from types import SimpleNamespace
from sluice.launch.launcher import LocalProcess

said = SimpleNamespace(argv=lambda: ["/bin/sh", "-c", sys.argv[1]], env={})
sys.exit(LocalProcess.start(said))
"""
_WARNING = "WARNING: Using incubator modules: jdk.incubator.vector"
_OTHER = "Warning: Java versions > Java 11 can only operate in restricted mode"


def _started(script: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", _START, script], stderr=subprocess.PIPE)


def test_log_is_whole_without_a_needless_warning() -> None:
    script = f"echo '{_WARNING}' >&2; echo '{_OTHER}'; echo first; "
    script += f"printf '\\377 no text\\n' >&2; echo 'the {_WARNING}'; exit 3"
    child = _started(script)
    _, log = child.communicate()
    assert child.returncode == 3
    assert log.splitlines() == [b"first", b"\xff no text", f"the {_WARNING}".encode()]


def test_log_has_the_last_lines_after_ctrl_c() -> None:
    """Only Sluice's own lines; threads of a JVM end with a trace."""
    trap = "echo Exception in thread; echo 12:00:00 sluice: last words; echo at java.lang; exit 1"
    child = _started(f"trap '{trap}' TERM; echo ready; while :; do sleep 0.1; done")
    assert child.stderr is not None
    assert child.stderr.readline() == b"ready\n"
    child.send_signal(signal.SIGINT)
    _, log = child.communicate()
    assert child.returncode == 128 + signal.SIGINT
    assert log == b"12:00:00 sluice: last words\n"


def test_ctrl_c_during_the_start_ends_the_application(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    early = """
import os, signal, subprocess, sluice.launch.launcher as launcher

class Early(subprocess.Popen):
    def __init__(self, argv, **more):
        super().__init__(argv, **more)
        if argv[0] == "/bin/sh":
            os.read(go, 1)
            os.kill(os.getpid(), signal.SIGINT)

go, ready = os.pipe()
os.set_inheritable(ready, True)
launcher.subprocess.Popen = Early
"""
    early = early.replace("super().__init__(argv, **more)", "super().__init__(argv, pass_fds=(ready,), **more)")
    script = f"trap 'touch {ended}; exit 1' TERM; echo >&$READY; while :; do sleep 0.1; done"
    argv = [sys.executable, "-c", early + "os.environ['READY'] = str(ready)\n" + _START, script]
    child = subprocess.run(argv, stderr=subprocess.PIPE, timeout=60, check=False)
    assert child.returncode == 128 + signal.SIGINT
    assert ended.exists()


def test_application_outlives_its_launcher(tmp_path: Path) -> None:
    go = tmp_path / "go"
    child = _started(f"echo ready; until [ -e {go} ]; do sleep 0.05; done; echo more")
    assert child.stderr is not None
    assert child.stderr.readline() == b"ready\n"
    child.kill()
    child.wait()
    go.touch()
    assert child.stderr.read() == b"more\n"


def test_silenced_loggers_are_classes_of_spark() -> None:
    """A class that Spark has moved would be logged again."""
    settings = Path(shipped("include/spark-log4j2.properties")).read_text()
    names = set(re.findall(r"^logger\.\w+\.name = (org\.apache\.spark\.(?!sql\.kafka010)\S+)$", settings, re.MULTILINE))
    assert len(names) > 3
    wanted = {f"{name.replace('.', '/')}{end}" for name in names for end in (".class", "$.class")}
    found = set[str]()
    for jar in (Path(pyspark.__file__).parent / "jars").glob("spark-*.jar"):
        with ZipFile(jar) as file:
            found |= wanted & set(file.namelist())
    assert {re.sub(r"\$?\.class$", "", name).replace("/", ".") for name in found} == names
