"""Reads what ``strace -f -y -xx`` wrote: the operations below one folder, in the order in which they were done."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.states.tree import Operation, durable

__all__ = ["SYSCALLS", "TraceError", "read_trace"]

_KNOWN = (
    "open,openat,creat,write,pwrite64,writev,lseek,rename,renameat,renameat2,link,linkat,unlink,unlinkat,mkdir,mkdirat,"
    "rmdir,truncate,ftruncate,fsync,fdatasync"
)
_NOT_UNDERSTOOD = (
    "openat2,pwritev,pwritev2,copy_file_range,sendfile,splice,fallocate,mknod,mknodat,symlink,symlinkat,mmap,"
    "sync_file_range,open_by_handle_at,io_uring_setup"
)
SYSCALLS = ",".join(f"?{name}" for name in f"{_KNOWN},{_NOT_UNDERSTOOD}".split(","))
"""What is traced: whatever can change files. Changes of rights and times are left out: no run reads them."""

_CALL = re.compile(r"(\w+)\((.*?)\)?\s*= (-?\d+|\?|0x[0-9a-f]+)(?:<([^>]*)>)?")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
_HANDLE = re.compile(r"(-?\d+|AT_FDCWD)<([^>]*)>(\(deleted\))?")


class TraceError(Exception):
    """A line that this does not understand: nothing may be concluded from such a trace."""


def read_trace(lines: Iterable[str], home: Path, marks: str) -> list[Operation]:
    """Return the operations below a home.

    Parameters
    ----------
    marks
        Name of the file below the home into which the driver writes the named points that it passes.

    Raises
    ------
    TraceError
        When something changed files there in a way that is not understood.
    """
    reader = _Reader(str(home), marks)
    needle = "".join(f"\\x{byte:02x}" for byte in str(home).encode())
    return [op for text in _whole(lines) if needle in text or "io_uring" in text for op in reader.operations(text)]


def _whole(lines: Iterable[str]) -> Iterator[str]:
    """Yield each call when it has returned, in one piece."""
    begun: dict[str, str] = {}
    for line in lines:
        pid, _, text = line.rstrip("\n").partition(" ")
        text = text.lstrip()
        if text.startswith(("+++", "---")):
            continue
        if text.endswith("<unfinished ...>"):
            begun[pid] = text.removesuffix("<unfinished ...>")
        elif text.startswith("<... "):
            yield begun.pop(pid) + text.partition(" resumed>")[2]
        else:
            yield text


@dataclass
class _Reader:
    home: str
    marks: str
    places: dict[tuple[str, str], int] = field(default_factory=dict)
    """How far each open file was written; -1 for one that is appended to."""

    def operations(self, text: str) -> Iterator[Operation]:
        found = _CALL.match(text)
        if found is None:
            raise TraceError(text[:300])
        name, arguments, result, opened = found.groups()
        if result.startswith("-") or result == "?":
            return
        handles = [(fd, self._below(_text(path)), gone) for fd, path, gone in _HANDLE.findall(arguments)]
        if name in _NOT_UNDERSTOOD.split(","):
            self._refuse(name, arguments, handles, text)
        elif name in ("open", "openat", "creat"):
            yield from self._open(name, arguments, result, _text(opened or ""))
        elif name in ("write", "writev", "pwrite64"):
            yield from self._write(name, arguments, int(result), *handles[0])
        elif name == "lseek":
            key = (handles[0][0], handles[0][1])
            if self.places.get(key, -1) >= 0:
                self.places[key] = int(result)
        elif name in ("fsync", "fdatasync"):
            yield from self._kept(Operation("sync", handles[0][1]))
        elif name == "ftruncate":
            yield from self._kept(Operation("size", handles[0][1], offset=int(arguments.rpartition(", ")[2])))
        else:
            yield from self._named(name, arguments)

    def _refuse(self, name: str, arguments: str, handles: list[tuple[str, str, str]], text: str) -> None:
        if name == "mmap" and not ("MAP_SHARED" in arguments and "PROT_WRITE" in arguments):
            return
        if name == "io_uring_setup" or any(durable(path) for _, path, _ in handles) or _STRING.search(arguments):
            raise TraceError(f"{name} is not understood: {text[:300]}")

    def _open(self, name: str, arguments: str, fd: str, path: str) -> Iterator[Operation]:
        flags = "O_WRONLY|O_CREAT|O_TRUNC" if name == "creat" else arguments
        key = (fd, self._below(path))
        if "O_TMPFILE" in flags:
            raise TraceError(f"O_TMPFILE is not understood: {path}")
        if "O_WRONLY" not in flags and "O_RDWR" not in flags:
            self.places.pop(key, None)
            return
        self.places[key] = -1 if "O_APPEND" in flags else 0
        if "O_CREAT" in flags or "O_TRUNC" in flags:
            yield from self._kept(Operation("open", key[1], empties="O_TRUNC" in flags))

    def _write(self, name: str, arguments: str, count: int, fd: str, path: str, gone: str) -> Iterator[Operation]:
        if not path or gone:
            return
        strings = _STRING.findall(arguments.partition(">")[2])
        if any(cut for _, cut in strings):
            raise TraceError(f"a write was cut short by strace: {path}")
        data = b"".join(_bytes(text) for text, _ in strings)[:count]
        if path == self.marks:
            yield from (Operation("mark", path, to=point) for point in data.decode().split())
        elif name == "pwrite64":
            yield from self._kept(Operation("write", path, data=data, offset=int(arguments.rpartition(", ")[2])))
        elif durable(path):
            if (fd, path) not in self.places:
                raise TraceError(f"written and not seen opened: {path}")
            at = self.places[fd, path]
            if at >= 0:
                self.places[fd, path] += count
            yield Operation("write", path, data=data, offset=at)

    def _named(self, name: str, arguments: str) -> Iterator[Operation]:
        """Operations on names: each comes with the folder it is relative to, or is absolute."""
        if "RENAME_EXCHANGE" in arguments or "AT_EMPTY_PATH" in arguments:
            raise TraceError(f"{name}({arguments[:300]}) is not understood")
        base, paths = "", []
        for part in re.findall(r"(?:-?\d+|AT_FDCWD)<[^>]*>|\"[^\"]*\"", arguments):
            if part.startswith('"'):
                path = posixpath.normpath(posixpath.join(base, _text(part.strip('"'))))
                paths.append(self._below(path))
            else:
                base = _text(_HANDLE.match(part)[2])  # type: ignore[index]
        first, second = paths[0], paths[1] if len(paths) > 1 else ""
        kind = name.removesuffix("2").removesuffix("at")
        if kind == "unlink" and "AT_REMOVEDIR" in arguments:
            kind = "rmdir"
        if kind == "truncate":
            yield from self._kept(Operation("size", first, offset=int(arguments.rpartition(", ")[2])))
            return
        if second and durable(first) != durable(second):
            raise TraceError(f"{name} from one world into the other: {first}, {second}")
        yield from self._kept(Operation(kind, first, to=second))

    def _kept(self, op: Operation) -> Iterator[Operation]:
        if durable(op.path):
            yield op

    def _below(self, path: str) -> str:
        """Return a path relative to the home; empty for one that is elsewhere."""
        return path[len(self.home) + 1 :] if path.startswith(f"{self.home}/") else ""


def _text(escaped: str) -> str:
    return _bytes(escaped).decode("utf-8", "surrogateescape")


def _bytes(escaped: str) -> bytes:
    return bytes.fromhex(escaped.replace("\\x", ""))
