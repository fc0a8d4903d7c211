"""A folder of files, in a file system or an object store."""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import IO, Any, NamedTuple, cast

from sluice.sources.files.xz import Xz
from sluice.storage import opened_url

__all__ = ["Folder", "Listing", "Stat", "compression", "fits"]

_THREADS, _AT_ONCE = 8, 5_000


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


class Listing(NamedTuple):
    """The files of a folder.

    Attributes
    ----------
    table
        An Arrow table of ``name`` and the fields of :class:`Stat`, in no order.
    odd
        The names that are not UTF-8; these files are not in the table.
    """

    table: Any
    odd: list[str]


class Folder:
    """A folder, by an absolute path or a URL.

    Names are paths below it, with ``/``. Files and folders whose name begins with ``.`` or ``_``, and files that end in
    ``.tmp`` or ``.part``, are not there: writers use such names until a file is complete.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._fs: Any
        self._fs, self._root = opened_url(path)
        self._local = "://" not in path

    def listed(self, *, deep: bool, named: Callable[[list[str]], None] = lambda _: None) -> Listing:
        """Return the files.

        Parameters
        ----------
        deep
            Whether with those of the folders in it, if it is in a file system; in an object store they always are.
        named
            Called with all names as soon as they are known: of a million files they are long before all the rest.

        Raises
        ------
        OSError
            If the folder does not exist or cannot be listed.
        """
        known, odd = list[str](), list[str]()
        if not self._local:
            found = self._of_objects(odd)
            named(found.column("name").to_pylist())
            return Listing(found, odd)
        for name in self._walk("", deep, frozenset(), linked=False):
            (known if _is_text(name) else odd).append(name)
        named(known)
        return Listing(self._of_files(known), odd)

    def _of_files(self, known: list[str]) -> Any:
        import pyarrow as pa
        from pyarrow.fs import LocalFileSystem  # it asks without Python's lock

        system = LocalFileSystem()

        def stats(at: int) -> Any:
            names = known[at : at + _AT_ONCE]
            found = system.get_file_info([os.path.join(self._root, name) for name in names])
            times = [
                f.mtime_ns // 1000
                if f.mtime_ns and f.mtime_ns > 0
                else self._modified(name)  # Arrow's nanoseconds end in 2262
                for name, f in zip(names, found, strict=True)
            ]
            return _table(names, [f.size for f in found], times, [""] * len(names))

        with ThreadPoolExecutor(_THREADS) as pool:
            table = pa.concat_tables([_table([], [], [], []), *pool.map(stats, range(0, len(known), _AT_ONCE))])
        return table.filter(table.column("size").is_valid())  # some may have gone away meanwhile

    def _walk(self, below: str, deep: bool, above: frozenset[tuple[int, int]], *, linked: bool) -> Iterator[str]:
        """Yield the names of files; a link to a folder that this one is in, or to itself, is not followed."""
        place = os.path.join(self._root, below)
        here = os.stat(place)
        own = here.st_dev, here.st_ino
        if linked and own in above:
            return
        with os.scandir(place) as entries:
            for entry in entries:
                name = entry.name
                if name.startswith((".", "_")) or (entry.is_symlink() and _is_endless(entry)):
                    continue
                if entry.is_file():
                    if not _unfinished(name):
                        yield below + name
                elif deep and entry.is_dir():
                    try:
                        by_link = linked or entry.is_symlink()
                        yield from self._walk(f"{below}{name}/", deep, above | {own}, linked=by_link)
                    except FileNotFoundError:  # it went away meanwhile
                        continue

    def _modified(self, name: str) -> int | None:
        now = self.stat(name)
        return None if now is None else now.modified

    def _of_objects(self, odd: list[str]) -> Any:
        self._fs.invalidate_cache()
        if not self._fs.exists(self._root):
            raise FileNotFoundError(f"there is no folder {self.path}")
        found = dict[str, Stat]()  # two paths may differ in their slashes alone
        for path, info in self._fs.find(self._root, detail=True).items():
            name = path[len(self._root) :].lstrip("/")
            parts = name.split("/")
            if not any(part.startswith((".", "_")) for part in parts) and not _unfinished(name):
                found[name] = _of_store(info)
        odd += [name for name in found if not _is_text(name)]
        rows = [(name, *stat) for name, stat in found.items() if _is_text(name)]
        return _table(*([row[n] for row in rows] for n in range(4)))

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
        if how == "xz":
            return cast(IO[bytes], io.BufferedReader(Xz(self._fs.open(f"{self._root}/{name}", "rb"))))
        if how not in ("zstd", "bz2"):
            return cast(IO[bytes], self._fs.open(f"{self._root}/{name}", "rb", compression=how))
        import pyarrow as pa  # other readers take a file that was cut off, or is damaged, for a shorter one

        return cast(IO[bytes], pa.CompressedInputStream(self._fs.open(f"{self._root}/{name}", "rb"), how))

    def move(self, name: str, to: Folder) -> None:
        """Move a file into another folder, under the same name.

        Raises
        ------
        OSError
            If it cannot be moved. It is then in one of the two folders, or, between two file systems, in both.
        """
        target = f"{to._root}/{name}"
        to._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
        if self._local and to._local:
            source = os.path.join(self._root, name)
            try:
                os.rename(source, target)
            except OSError as error:
                if error.errno != errno.EXDEV:  # of another file system
                    raise
                shutil.copy2(source, f"{target}.moving")
                os.replace(f"{target}.moving", target)
                os.remove(source)
        else:
            self._fs.mv(f"{self._root}/{name}", target)


def _is_endless(link: os.DirEntry[str]) -> bool:
    """Return whether a link leads to itself."""
    try:
        link.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def fits(glob: str) -> Callable[[str], object]:
    """Return what tells whether a name fits a pattern."""
    from fsspec.utils import glob_translate

    return re.compile(glob_translate(glob)).match


def _table(*columns: list[Any]) -> Any:
    import pyarrow as pa

    return pa.table(
        list(columns), pa.schema({"name": pa.string(), "size": pa.int64(), "modified": pa.int64(), "tag": pa.string()})
    )


_COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd"}


def compression(name: str) -> str | None:
    """Return how a file is compressed, by its name; None if it is not."""
    return next((kind for end, kind in _COMPRESSED.items() if name.lower().endswith(end)), None)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unfinished(name: str) -> bool:
    return name.endswith((".tmp", ".part"))


def _of_local(stat: os.stat_result) -> Stat:
    return Stat(stat.st_size, stat.st_mtime_ns // 1000)


def _of_store(info: dict[str, Any]) -> Stat:
    times = (info.get(key) for key in ("LastModified", "last_modified", "updated", "mtime", "created"))
    when = next((time for time in times if time), None)
    if when is None and info.get("modification_time"):  # of hdfs-native, in milliseconds
        when = info["modification_time"] / 1000
    if isinstance(when, str):
        when = datetime.fromisoformat(when)
    if isinstance(when, datetime):
        when = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    tag = next((str(info[key]) for key in ("ETag", "etag", "md5Hash") if info.get(key)), "")
    if when is None:  # whether a file was replaced could not be seen, and its rows would be of 1970
        raise OSError(f"the store gives no time of {info.get('name')}")
    return Stat(int(info["size"] or 0), int(float(when) * 1_000_000), tag)
