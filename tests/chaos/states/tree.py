"""Files and folders in memory, and the operations that change them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

__all__ = ["Inode", "Operation", "Tree", "TreeError", "durable"]

_PASSING = ("jars", "jvm", "warehouse", "quality", "marks")
"""Below a home, and read by no later run: links, Spark's empty warehouse, Data Docs, the marks of a recording."""


class TreeError(Exception):
    """An operation that does not fit the files: what was recorded is not what happened."""


def durable(path: str) -> bool:
    """Tell whether a path below ``SLUICE_HOME`` is state that later runs read.

    SQLite's ``-shm`` file is none: it is memory that processes share, and whoever opens the database first makes it
    from the write-ahead log.
    """
    first = PurePosixPath(path).parts[:1]
    if not first or first[0] in _PASSING or first[0].startswith(("run-", "gate-")):
        return False
    return not path.endswith(("-shm", ".yaml"))


@dataclass(frozen=True)
class Operation:
    """One change below ``SLUICE_HOME``; paths are relative to it.

    Attributes
    ----------
    kind
        ``open`` (makes the file where it is missing), ``write``, ``size``, ``sync``, ``rename``, ``link``, ``unlink``,
        ``mkdir`` or ``rmdir``; ``mark`` for a named point of :mod:`sluice.faults` that the driver passed.
    to
        The new path of a rename or link; the name of a mark.
    offset
        Of a write; -1 for the end of the file. For ``size`` the new length.
    empties
        Whether an ``open`` cuts the file to nothing.
    """

    kind: str
    path: str
    to: str = ""
    data: bytes = b""
    offset: int = 0
    empties: bool = False

    def __str__(self) -> str:
        size = f" {len(self.data)}@{self.offset}" if self.data else ""
        return f"{self.kind}{size} {self.path}{f' -> {self.to}' if self.to else ''}"


@dataclass
class Inode:
    """A file's content now, and what of it a power cut would leave."""

    data: bytes = b""
    synced: bytes = b""


@dataclass
class Tree:
    """Files by path, and folders."""

    files: dict[str, Inode] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, home: Path) -> Tree:
        tree = cls()
        for entry in sorted(home.rglob("*")):
            path = entry.relative_to(home).as_posix()
            if not durable(path) or any(parent.is_symlink() for parent in (entry, *entry.parents)):
                continue
            if entry.is_dir():
                tree.folders.add(path)
            else:
                data = entry.read_bytes()
                tree.files[path] = Inode(data, data)
        return tree

    def write(self, home: Path) -> None:
        """Make what is durable below a home this tree, and nothing else."""
        for entry in home.iterdir():
            if durable(entry.name) and entry.is_dir():
                shutil.rmtree(entry)
            elif durable(entry.name) or entry.name.endswith("-shm"):
                entry.unlink()
        for folder in sorted(self.folders):
            (home / folder).mkdir(parents=True, exist_ok=True)
        for path, inode in self.files.items():
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).write_bytes(inode.data)

    def contents(self) -> dict[str, bytes | None]:
        return {**dict.fromkeys(self.folders), **{path: inode.data for path, inode in self.files.items()}}

    def copy(self) -> Tree:
        """Return one that changes by itself; names of one file stay names of one file."""
        same: dict[int, Inode] = {}
        files = {
            path: same.setdefault(id(inode), Inode(inode.data, inode.synced)) for path, inode in self.files.items()
        }
        return Tree(files, set(self.folders))

    def below(self, path: str) -> Iterator[Inode]:
        """Yield the file of this name, or all files of the folder."""
        for name, inode in self.files.items():
            if name == path or name.startswith(f"{path}/"):
                yield inode

    def apply(self, op: Operation) -> None:
        """Do one operation.

        Raises
        ------
        TreeError
            When it cannot have succeeded here.
        """
        _APPLY[op.kind](self, op)

    # --- one method a kind -----------------------------------------------------------------------------------------

    def _open(self, op: Operation) -> None:
        inode = self.files.setdefault(op.path, Inode())
        if op.empties:
            inode.data = b""

    def _write(self, op: Operation) -> None:
        inode = self._file(op)
        at = len(inode.data) if op.offset < 0 else op.offset
        inode.data = inode.data[:at].ljust(at, b"\0") + op.data + inode.data[at + len(op.data) :]

    def _size(self, op: Operation) -> None:
        inode = self._file(op)
        inode.data = inode.data[: op.offset].ljust(op.offset, b"\0")

    def _sync(self, op: Operation) -> None:
        if op.path not in self.folders and op.path != ".":
            inode = self._file(op)
            inode.synced = inode.data

    def _rename(self, op: Operation) -> None:
        if op.path in self.files:
            self.files[op.to] = self.files.pop(op.path)
            return
        if op.path not in self.folders:
            raise TreeError(f"there is nothing to rename: {op}")
        moved = {p for p in self.folders if p == op.path or p.startswith(f"{op.path}/")}
        self.folders = self.folders - moved | {op.to + p[len(op.path) :] for p in moved}
        self.files = {op.to + p[len(op.path) :] if p.startswith(f"{op.path}/") else p: i for p, i in self.files.items()}

    def _link(self, op: Operation) -> None:
        if op.to in self.files:
            raise TreeError(f"it is there already: {op}")
        self.files[op.to] = self._file(op)

    def _unlink(self, op: Operation) -> None:
        self._file(op)
        del self.files[op.path]

    def _mkdir(self, op: Operation) -> None:
        if op.path in self.folders:
            raise TreeError(f"it is there already: {op}")
        self.folders.add(op.path)

    def _rmdir(self, op: Operation) -> None:
        if op.path not in self.folders or any(True for _ in self.below(op.path)):
            raise TreeError(f"there is no such empty folder: {op}")
        self.folders.remove(op.path)

    def _mark(self, op: Operation) -> None:
        pass

    def _file(self, op: Operation) -> Inode:
        try:
            return self.files[op.path]
        except KeyError:
            raise TreeError(f"there is no such file: {op}") from None


_APPLY: dict[str, Callable[[Tree, Operation], None]] = {
    kind: getattr(Tree, f"_{kind}")
    for kind in ("open", "write", "size", "sync", "rename", "link", "unlink", "mkdir", "rmdir", "mark")
}
