"""Records one clean run of a sandbox: what was there before, and each operation."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.states.trace import SYSCALLS, read_trace
from tests.chaos.states.tree import Operation, Tree

__all__ = ["Recording", "record", "why_not"]

_MARKING = Path(__file__).parent / "marking"
_MARKS = "marks"
_WHOLE_WRITES = str(1 << 24)


def why_not() -> str | None:
    """Return why nothing can be recorded on this machine; None when it can."""
    strace = shutil.which("strace")
    if strace is None:
        return "strace is not installed: Debian has it as apt-get install strace"
    tried = subprocess.run([strace, "-f", "--seccomp-bpf", "-y", "true"], capture_output=True, text=True, check=False)
    return f"strace does not work here: {tried.stderr.strip()[-200:]}" if tried.returncode else None


@dataclass
class Recording:
    """A run, taken apart.

    Attributes
    ----------
    before
        What was durable before it.
    operations
        In the order in which they were done.
    """

    before: Tree
    operations: list[Operation] = field(default_factory=list)

    def after(self) -> Tree:
        tree = self.before.copy()
        for op in self.operations:
            tree.apply(op)
        return tree


def record(home: Path, argv: Sequence[str], env: Mapping[str, str], scratch: Path, ends: int = 0) -> Recording:
    """Run an application, or a command, to its end under strace.

    Parameters
    ----------
    argv, env
        Its command line, and its whole environment.
    ends
        The exit code that it must have.
    scratch
        A folder for the trace, which is removed again.

    Raises
    ------
    AssertionError
        When it ends in another way, or what was recorded, played back, is not byte for byte what it left.
    """
    home = home.resolve()
    before = Tree.read(home)
    trace = scratch / "trace"
    environment = {**env, "SLUICE_MARKS": str(home / _MARKS)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_MARKING), environment.get("PYTHONPATH", "")]))
    (home / _MARKS).unlink(missing_ok=True)
    done = subprocess.run(
        ["strace", "-f", "--seccomp-bpf", "-y", "-xx", "-q", "-s", _WHOLE_WRITES, "-e", f"trace={SYSCALLS}",
         "-o", str(trace), *argv],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == ends, f"exit code {done.returncode}:\n{done.stderr[-6000:]}"
    with trace.open(errors="surrogateescape") as lines:
        recording = Recording(before, read_trace(lines, home, _MARKS))
    trace.unlink()
    played, left = recording.after().contents(), Tree.read(home).contents()
    differing = sorted(path for path in played.keys() | left.keys() if played.get(path, "") != left.get(path, ""))
    assert not differing, f"played back, these differ from what the run left: {differing}"
    return recording
