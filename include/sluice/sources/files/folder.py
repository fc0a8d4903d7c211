"""A folder of files, in a file system or an object store."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import IO, Any, NamedTuple, cast

__all__ = ["Folder", "Stat", "compression"]


class Stat(NamedTuple):
    """What a listing says of a file, by which another content is noticed.

    Attributes
    ----------
    size
        In bytes.
    modified
        In microseconds since 1970 (UTC); 0 if the store does not say it.
    tag
        The store's tag of the content; empty if it has none.
    """

    size: int
    modified: int
    tag: str = ""


class Folder:
    """A folder, by an absolute path or a URL.

    Names are paths below it, with ``/``. Files and folders whose name begins with ``.`` or ``_``, and files that end in
    ``.tmp`` or ``.part``, are not there: writers use such names until a file is complete.
    """

    def __init__(self, path: str) -> None:
        import fsspec

        self.path = path
        self._fs: Any
        self._fs, self._root = fsspec.core.url_to_fs(path)
        self._local = "://" not in path

    def files(self, glob: str) -> dict[str, Stat]:
        """Return the files whose names fit a pattern, by name.

        Raises
        ------
        OSError
            If the folder does not exist or cannot be listed.
        """
        from fsspec.utils import glob_translate

        fits = re.compile(glob_translate(glob)).match
        found = self._walk("", "/" in glob) if self._local else self._stored()
        return {name: stat for name, stat in found if fits(name)}

    def _walk(self, below: str, deep: bool) -> Iterator[tuple[str, Stat]]:
        with os.scandir(os.path.join(self._root, below)) as entries:
            for entry in entries:
                if entry.name.startswith((".", "_")):
                    continue
                try:
                    if entry.is_file():
                        if not _unfinished(entry.name):
                            yield below + entry.name, _of_local(entry.stat())
                    elif deep and entry.is_dir():
                        yield from self._walk(f"{below}{entry.name}/", deep)
                except FileNotFoundError:  # it went away meanwhile
                    continue

    def _stored(self) -> Iterator[tuple[str, Stat]]:
        self._fs.invalidate_cache()
        if not self._fs.exists(self._root):
            raise FileNotFoundError(f"there is no folder {self.path}")
        for path, info in self._fs.find(self._root, detail=True).items():
            name = path[len(self._root) :].lstrip("/")
            parts = name.split("/")
            if not any(part.startswith((".", "_")) for part in parts) and not _unfinished(name):
                yield name, _of_store(info)

    def stat(self, name: str) -> Stat | None:
        """Return what is known of a file now; None if it does not exist."""
        try:
            if self._local:
                return _of_local(os.stat(os.path.join(self._root, name)))
            self._fs.invalidate_cache()
            return _of_store(self._fs.info(f"{self._root}/{name}"))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def opened(self, name: str) -> IO[bytes]:
        """Open a file to read; ``.gz``, ``.bz2``, ``.xz`` and ``.zst`` are decompressed.

        Raises
        ------
        OSError
            If it cannot be opened.
        """
        how = compression(name)
        if how != "zstd":
            return cast(IO[bytes], self._fs.open(f"{self._root}/{name}", "rb", compression=how))
        import pyarrow as pa  # other readers take a file that was cut off for a shorter one

        return cast(IO[bytes], pa.CompressedInputStream(self._fs.open(f"{self._root}/{name}", "rb"), how))

    def move(self, name: str, to: Folder) -> None:
        """Move a file into another folder, under the same name.

        Raises
        ------
        OSError
            If it cannot be moved. It is then in one of the two folders, or, in an object store, in both.
        """
        target = f"{to._root}/{name}"
        to._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
        if self._local and to._local:
            os.rename(os.path.join(self._root, name), target)
        else:
            self._fs.mv(f"{self._root}/{name}", target)


_COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}


def compression(name: str) -> str | None:
    """Return how a file is compressed, by its name; None if it is not."""
    return next((kind for end, kind in _COMPRESSED.items() if name.lower().endswith(end)), None)


def _unfinished(name: str) -> bool:
    return name.endswith((".tmp", ".part"))


def _of_local(stat: os.stat_result) -> Stat:
    return Stat(stat.st_size, stat.st_mtime_ns // 1000)


def _of_store(info: dict[str, Any]) -> Stat:
    times = (info.get(key) for key in ("LastModified", "last_modified", "updated", "mtime", "created"))
    when = next((time for time in times if time), None)
    if isinstance(when, str):
        when = datetime.fromisoformat(when)
    if isinstance(when, datetime):
        when = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    tag = next((str(info[key]) for key in ("ETag", "etag", "md5Hash") if info.get(key)), "")
    return Stat(int(info["size"] or 0), int(float(when or 0) * 1_000_000), tag)
