"""Files of a folder as a :class:`~sluice.sources.base.Source`."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

from sluice.errors import START_OVER, ConfigError, SinkError, SluiceError, SourceUnreachableError, described, quoted
from sluice.home import Home
from sluice.ranges import OffsetRange, Positions
from sluice.sources.base import Source, SourceKind
from sluice.sources.files.book import Book, Entry, OvertakenError
from sluice.sources.files.config import FileSource
from sluice.sources.files.folder import Folder, Listing, Stat, compression, fits
from sluice.sources.files.formats import Reader
from sluice.sources.files.json_text import UnfitError
from sluice.sources.files.rows import Counted
from sluice.sources.state import Key, PartitionState, TopicState

__all__ = ["KIND", "Files"]

logger = logging.getLogger("sluice")

_ATTEMPTS = 5
_THREADS = 8
_OF_HEADER = (
    "write the columns of decode.csv.schema as the file's header has them, in their order; or move the file away, or "
    "read such files with a pipeline of their own"
)
_STATE = "nothing was read or written now; what earlier runs wrote is in the sink"


class Files(Source):
    """The files of a pipeline: those in its folder, and those in its book.

    Parameters
    ----------
    home
        Where relative paths begin, and where the book is kept.
    pipeline
        The name of the pipeline.

    Attributes
    ----------
    notes
        What was left out, or has changed, with the reason, as far as :meth:`snapshot` found it.
    found
        As in :class:`~sluice.sources.base.Announcing`.
    """

    def __init__(self, config: FileSource, home: Home, pipeline: str) -> None:
        self.config = config
        self.folder = Folder(home.resolve(config.path))
        self.archive = None if config.archive is None else Folder(home.resolve(config.archive))
        self.notes: list[str] = []
        self.found: Callable[[], None] = lambda: None
        self._fits = fits(config.glob)
        self._book_path = home.source(pipeline)
        self._book: Book | None = None

    @property
    def book(self) -> Book:
        """The book, as it was read last."""
        if self._book is None:
            (stream,) = self.config.streams
            self._book = Book(self._book_path, stream)
        return self._book

    def snapshot(self) -> list[TopicState]:
        """Enter new files into the book, and return its state: one stream with one partition.

        Raises
        ------
        SourceUnreachableError
            If the folder or a file cannot be read.
        ConfigError
            If a file changed after it was read, has another header than the files before, or one with declared columns
            in other places; or if the folder has another name than the one that was read.
        SinkError
            If the book cannot be read or written.
        """
        for _ in range(_ATTEMPTS):
            self.book.refresh()
            self._refuse_other_stream()
            self.notes.clear()
            fresh = self._settled(self._new(self._listed()))
            entries = self._counted(fresh)
            if not entries:
                break
            try:
                self.book.add(entries)
            except OvertakenError:
                continue
            break
        else:
            raise SinkError(
                f"the book of the pipeline's files, {self.book.path}, is written by others all the time",
                state=_STATE,
                next_step="run again when no other run of the pipeline looks for files",
            )
        for note in self.notes:
            logger.warning("%s", note)
        return self.recorded()

    def recorded(self) -> list[TopicState]:
        """Return the state of the book, without looking for files."""
        self.book.refresh()
        (stream,) = self.config.streams
        return [TopicState(stream, self.book.id, {0: PartitionState(0, self.book.end)})]

    def _refuse_other_stream(self) -> None:
        """Refuse a folder of another name: a file that is entered now would have an offset of both."""
        known, (now,) = self.book.stream, self.config.streams
        if known not in (None, now):
            raise ConfigError(
                f"the files that were read are of a folder whose name was {known}, and source.file.path ends in {now} "
                "now: all of its files would be read as new ones",
                state=_STATE,
                next_step="let the path end in the former name (a symbolic link of that name does); or, to read "
                f"another folder, {START_OVER}",
            )

    def _listed(self) -> Listing:
        try:
            return self.folder.listed(deep="/" in self.config.glob, named=self._announce)
        except FileNotFoundError as error:
            raise SourceUnreachableError(
                f"there is no folder {self.folder.path}",
                state=_STATE,
                next_step="create it, or correct source.file.path (a relative one begins at SLUICE_HOME)",
            ) from error
        except OSError as error:
            raise self._unreadable(self.folder.path, error) from error

    def _announce(self, names: list[str]) -> None:
        marks = set[str]() if self.config.marker is None else set(names)
        if any(self._wanted(name, marks) for name in self.book.unknown(names)):
            self.found()

    def _wanted(self, name: str, marks: Collection[str]) -> bool:
        """Return whether the name of a file fits, and is marked as done, if it has to be."""
        marker = self.config.marker
        done = marker is None or (not name.endswith(marker) and name + marker in marks)
        return done and bool(self._fits(name))

    def _new(self, listed: Listing) -> dict[str, Stat]:
        """Return the files that have to be entered into the book."""
        import pyarrow.compute as pc

        marker, marks = self.config.marker, set[str]()
        self.notes += [f"{name!r} is left out: its name is not UTF-8" for name in listed.odd if self._fits(name)]
        if marker is not None:
            names = listed.table.column("name")
            marks = set(names.filter(pc.ends_with(names, marker)).to_pylist())
        known, same = self.book.compared(listed.table)
        left, before = listed.table.filter(~same), known[~same].tolist()  # few of many, so one by one from here
        new, changed = dict[str, Stat](), dict[str, Stat]()
        for row, was in zip(left.to_pylist(), before, strict=True):
            name = row.pop("name")
            if self._wanted(name, marks):
                (changed if was else new)[name] = Stat(**row)
        if not changed:
            return new
        what = f"{_named(list(changed))} changed after being read"
        if self.config.changed == "refuse":
            raise ConfigError(
                f"{what}, in {self.folder.path}: what it has now is not in the sink",
                state=_STATE,
                next_step="give each file a name of its own, and put the former one back with its "
                "modification time (cp -p), or remove it. Or set "
                "source.file.changed: read, which reads such a file again as a new one, or ignore",
            )
        if self.config.changed == "ignore":
            self.notes.append(f"{what}, and what it has now is not read")
            return new
        return new | changed

    def _settled(self, new: dict[str, Stat]) -> dict[str, Stat]:
        """Return those files that do not change; it waits for files that were modified just now."""
        settle = self.config.settle.total_seconds()
        edge = (time.time() - settle) * 1_000_000
        young = [name for name, stat in new.items() if stat.modified > edge]
        if young and self.config.marker is None:
            time.sleep(settle)
            for name in young:
                if self.folder.stat(name) != new[name]:
                    self.notes.append(f"{name} is still being written, and is left to the next run")
                    del new[name]
        order = {"name": lambda item: item[0], "modified": lambda item: (item[1].modified, item[0])}
        return dict(sorted(new.items(), key=order[self.config.order]))

    def _counted(self, new: Mapping[str, Stat]) -> list[Entry]:
        entries: list[Entry] = []
        at, last = self.book.end, self.book.last_with_header()
        columns = (str(last.header), last.name) if last else None
        drifted, unfit = dict[str, list[str]](), list[tuple[str, UnfitError]]()
        with ThreadPoolExecutor(_THREADS) as pool:
            for (name, stat), found in zip(new.items(), pool.map(self._count, new, new.values()), strict=True):
                if isinstance(found, UnfitError):
                    unfit.append((name, found))
                    continue
                if isinstance(found, str) or self.folder.stat(name) != stat:
                    why = found if isinstance(found, str) else "is still being written"
                    self.notes.append(f"{name} {why}, and is left to the next run")
                    continue
                header = None if found.header is None else found.header.decode(errors="replace")
                if header is not None and self.config.header:
                    if (unlike := self._unlike(header, columns)) is not None:
                        unfit.append((name, unlike))
                        continue
                elif header is not None and columns is not None and columns[0] != header:
                    drift = f"other columns than {columns[1]}: {_drift(columns[0], header)}"
                    drifted.setdefault(drift, []).append(name)
                if self.config.objects and columns is not None and columns[0] == header:
                    header = None  # written down where it changes
                elif header is not None:
                    columns = (header, name)
                marks = found.marks if compression(name) is None else ()
                entries.append(Entry(name, at, found.rows, stat, header, marks))
                at += found.rows
        self.notes += [f"{_named(names)} with {what}" for what, names in drifted.items()]
        self.notes += [f"{name} cannot be read, and is left out: {reason}" for name, reason in unfit]
        if unfit and not entries:
            name, reason = unfit[0]
            if isinstance(reason.__cause__, PermissionError):
                raise self._unreadable(name, reason.__cause__)
            raise ConfigError(
                f"{name} cannot be read: {reason}; nor can any other new file",
                state=f"{_STATE}; no file of this look was taken",
                next_step=_OF_HEADER if self.config.header else "move the file away, or have it written in another way",
            ) from reason
        return entries

    def _count(self, name: str, stat: Stat) -> Counted | str | UnfitError:
        """Return the rows of a file, why it has to wait, or why it never can be read."""
        if not stat.size and compression(name) is not None:
            return "is compressed and not complete"  # not all decompressors take it for that
        try:
            with self.folder.opened(name) as file:
                return Reader.of(self.config).count(file)
        except FileNotFoundError:
            return "went away"
        except EOFError:
            return "is not complete" if compression(name) is None else "is compressed and not complete"
        except PermissionError as error:
            unfit = UnfitError("this user may not read it")
            unfit.__cause__ = error
            return unfit
        except UnfitError as error:
            return error
        except SluiceError:
            raise
        except Exception as error:  # each decompressor has errors of its own
            return f"cannot be read ({described(error)})"

    def _unlike(self, header: str, columns: tuple[str, str] | None) -> UnfitError | None:
        """Return why the rows below a header are not those of the file before; None if they are read alike.

        Fields are taken in the order of the schema, whatever the header calls them. If the schema follows a new header,
        such files are read.
        """
        there, says = self.config.columns_in(header), f"it has the columns {quoted(header[:200])}"
        if (column := self.config.misplaced(header)) is not None:
            return UnfitError(f"{says}, and decode.csv.schema has {column!r} in another place")
        if columns is None or there == self.config.columns_in(columns[0]) or self.config.declares(there):
            return None
        return UnfitError(f"{says}, where {columns[1]} has {quoted(columns[0][:200])}")

    def _unreadable(self, what: str, error: OSError) -> SourceUnreachableError:
        return SourceUnreachableError(
            f"{what} cannot be read: {error}", state=_STATE, next_step="fix the storage or its rights, then run again"
        )

    def offsets_at(self, keys: Collection[Key], moment: datetime) -> dict[Key, int | None]:
        """Return the first offset of a file that was modified at or after ``moment``."""
        found = self.book.first_after(int(moment.timestamp() * 1000))
        return dict.fromkeys(keys, found)

    def whereabouts(self, entry: Entry) -> Folder | None:
        """Return the folder that has a file of the book, unchanged; None if none has."""
        if entry.is_in(self.folder):
            return self.folder
        return self.archive if self.archive is not None and entry.is_in(self.archive, archive=True) else None

    def missing(self, span: OffsetRange) -> list[OffsetRange]:
        """Return the parts of a range whose files are gone or changed."""
        return [cut for _, cut in self.missing_files(span)]

    def missing_files(self, span: OffsetRange) -> list[tuple[Entry, OffsetRange]]:
        """Return the files of a range that are gone or changed, each with its offsets in the range."""
        own = ((e, OffsetRange(span.topic, span.partition, e.start, e.end).cut(span)) for e in self.book.within(span))
        return [(e, cut) for e, cut in own if cut is not None and self.whereabouts(e) is None]

    def done(self, positions: Positions) -> None:
        """Move files whose rows are all before a position into the archive, if there is one; best effort."""
        if self.archive is None:
            return
        (stream,) = self.config.streams
        upto = positions.get(stream, {}).get(0, 0)
        moved = 0
        listed = self.folder.listed(deep="/" in self.config.glob).table.column("name").to_pylist()
        names = list(filter(self._fits, listed))
        for name, entry in zip(names, self.book.newest(names), strict=True):
            if entry is None or entry.end > upto or self.folder.stat(name) != entry.stat:
                continue
            try:
                if self.archive.stat(name) not in (None, entry.stat):  # the same, if a move was interrupted
                    raise FileExistsError("the archive has a file of this name")
                self.folder.move(name, self.archive)
            except OSError as error:
                logger.warning("%s could not be moved into %s: %s", name, self.archive.path, error)
            else:
                moved += 1
        if moved:
            logger.info("%d files were moved into %s", moved, self.archive.path)


def _drift(before: str, now: str) -> str:
    """Return which columns came, went, or have another type."""
    try:
        old, new = json.loads(before), json.loads(now)
    except ValueError:
        return "the pipeline read another format then"
    told = [f"{name!r} is {new[name]}, and was {old[name]}" for name in new if old.get(name, new[name]) != new[name]]
    told += [f"{name!r} came, {new[name]}" for name in new if name not in old]
    told += [f"{name!r} is missing" for name in old if name not in new]
    return ("; ".join(told) or "in another order")[:500]


def _named(names: list[str]) -> str:
    shown = ", ".join(sorted(names)[:3])
    return f"{shown} and {len(names) - 3} other files" if len(names) > 3 else shown


KIND = SourceKind(
    config=FileSource,
    open="sluice.sources.files.source:Files",
    reader="sluice_spark.sources.files:FilesReader",
    replayable=True,
    seek_by_time=True,
    retention=False,
    by_range=True,
)
