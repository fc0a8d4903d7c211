"""The states in which a driver could have died, from one recording."""

from __future__ import annotations

import hashlib
import re
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tests.chaos.states.recorder import Recording
from tests.chaos.states.tree import Tree

__all__ = ["DEATH", "KILL", "POWER", "Moment", "kills", "moments"]

DEATH = "death"
"""The process dies: what it did is there, its last write perhaps in part."""

KILL = "kill"
"""A real driver is really killed at a named point; the state is what it leaves."""
POWER = "power"
"""The machine loses power: names are there, and what was written under them since the last sync is not."""

_FRAME = 24
_HEADER = 32


@dataclass(frozen=True)
class Moment:
    """One state.

    Attributes
    ----------
    number
        How many operations of the recording are done in it.
    kind
        :data:`DEATH`, :data:`POWER` or :data:`KILL`.
    what
        The last of them, and what is special; of a kill the point, and for which time it was passed.
    point
        The last named point that the driver had passed; empty before the first.
    tree
        What is durable in it; for a kill, before the driver is started.
    """

    number: int
    kind: str
    what: str
    point: str
    tree: Tree
    key: str


def moments(recording: Recording) -> Iterator[Moment]:
    """Yield each state once: those that differ in nothing that can be read are one."""
    seen: set[tuple[str, str]] = set()
    for moment in _all(recording):
        if (moment.kind, moment.key) not in seen and (DEATH, moment.key) not in seen:
            seen.add((moment.kind, moment.key))
            yield moment


def kills(recording: Recording) -> Iterator[Moment]:
    """Yield a kill for each time that the recorded run passed a named point."""
    passed: Counter[str] = Counter()
    for number, op in enumerate(recording.operations, 1):
        if op.kind == "mark":
            passed[op.to] += 1
            at = f"{op.to}:{passed[op.to]}"
            yield Moment(number, KILL, at, op.to, recording.before, at)


def _all(recording: Recording) -> Iterator[Moment]:
    tree, point = recording.before.copy(), ""
    yield _moment(0, DEATH, "nothing done yet", point, tree)
    for number, op in enumerate(recording.operations, 1):
        if op.kind == "mark":
            point = op.to
            continue
        if op.kind == "sync":
            tree.apply(op)
            continue
        if len(op.data) > 1:
            torn = tree.copy()
            torn.apply(type(op)(op.kind, op.path, data=op.data[: len(op.data) // 2], offset=op.offset))
            yield _moment(number, DEATH, f"torn: {op}", point, torn)
        tree.apply(op)
        yield _moment(number, DEATH, str(op), point, tree)
        if op.kind in ("rename", "link") and any(i.data != i.synced for i in tree.below(op.to)):
            dark = tree.copy()
            for inode in dark.below(op.to):
                inode.data = inode.synced
            yield _moment(number, POWER, f"unsynced: {op}", point, dark)
        sunk = op.kind in ("rename", "link") and re.fullmatch(r"table/_delta_log/\d+\.json", op.to)
        if sunk:
            dark = tree.copy()
            for checkpoint in {path.partition("/state/")[0] for path in tree.files if "/state/" in path}:
                for inode in dark.below(checkpoint):
                    inode.data = inode.synced
            yield _moment(number, POWER, f"unsynced checkpoint: {op}", point, dark)
        done = op.kind == "rename" and re.fullmatch(r".*/commits/\d+", op.to)
        if (sunk or done) and (state := _newest_state(tree)):
            dark = tree.copy()
            for path in state:
                dark.files[path].data = b""  # as if it had not been synced: a disk may lie
            yield _moment(number, POWER, f"empty state: {op}", point, dark)


def _newest_state(tree: Tree) -> list[str]:
    """Return the files of the newest version of Spark's state: older ones are taken to be on the disk by then."""
    found = {path: re.fullmatch(r".*/state/\d+/\d+/\.?(\d+)\.(changelog|zip)(\.crc)?", path) for path in tree.files}
    versions = {path: int(match[1]) for path, match in found.items() if match}
    return [path for path, version in versions.items() if version == max(versions.values())]


def _moment(number: int, kind: str, what: str, point: str, tree: Tree) -> Moment:
    return Moment(number, kind, what, point, tree.copy(), _key(tree))


def _key(tree: Tree) -> str:
    """Name what can be read of a tree: of SQLite's write-ahead log what is committed, and whether more follows."""
    digest = hashlib.sha256()
    for path, data in sorted(tree.contents().items()):
        digest.update(f"\n{path} ".encode())
        if data is None:
            digest.update(b"folder")
        else:
            digest.update(hashlib.sha256(_committed(data) if path.endswith("-wal") else data).digest())
    return digest.hexdigest()[:16]


def _committed(log: bytes) -> bytes:
    """Cut a write-ahead log of SQLite behind its last commit; what follows is nothing, frames, or a torn one."""
    if len(log) < _HEADER:
        return log
    page, salts = struct.unpack(">I", log[8:12])[0], log[16:24]
    size, end, at = _FRAME + page, _HEADER, _HEADER
    while at + size <= len(log) and log[at + 8 : at + 16] == salts:
        at += size
        if struct.unpack(">I", log[at - size + 4 : at - size + 8])[0]:
            end = at
    rest = len(log) - end
    tail = b"" if not rest else b"frames" if rest % size == 0 else b"torn"
    return log[:end] + tail
