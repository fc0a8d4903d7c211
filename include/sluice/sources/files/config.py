"""The key ``source.file`` of a pipeline file."""

from __future__ import annotations

import csv
import io
import posixpath
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, PrivateAttr, field_validator, model_validator

from sluice.fields import Duration, Location
from sluice.sources.base import SourceConfig
from sluice.sources.files.rows import RFC_4180, Quoting

__all__ = ["FileSource", "Format"]

Format = Literal["json", "csv", "text", "parquet", "avro"]


class FileSource(SourceConfig):
    """Files that others put into a folder; each row of a file is a record."""

    path: Location
    """The folder: relative to ``SLUICE_HOME``, absolute, or a URL."""
    format: Format
    """How rows end: ``json`` and ``text`` at each line break, ``csv`` outside of double quotes only.

    A row of ``parquet`` or ``avro`` becomes a JSON object of its columns.
    """
    header: bool = False
    """For ``csv``: whether the first row of each file has the column names. It is not a record."""
    glob: Annotated[str, Field(min_length=1)] = "*"
    """Which files are read: a pattern for the path below the folder; ``**/*.json`` also looks into folders in it."""
    order: Literal["name", "modified"] = "name"
    """The order of files that are found at the same time."""
    settle: Duration = timedelta(seconds=2)
    """A file that was modified this recently is read only if it does not change for as long."""
    marker: str | None = None
    """A suffix such as ``.done``: a file is read only when a file with its name and this suffix exists."""
    changed: Literal["refuse", "read", "ignore"] = "refuse"
    """What happens when a file that was read has another size or time.

    The run ends with an error, or the file is read again as a new one, or only a warning is given.
    """
    archive: str | None = None
    """A folder into which files are moved when all of their rows are in the sink or in the write-ahead log."""
    _declared: tuple[str, ...] = PrivateAttr(default=())
    _quoting: Quoting = PrivateAttr(default=RFC_4180)

    @field_validator("glob")
    @classmethod
    def _below(cls, glob: str) -> str:
        if glob.startswith("/") or "://" in glob or ".." in glob.split("/"):
            raise ValueError(f"{glob!r} is a pattern for paths below the folder: write it without / at its beginning")
        return glob

    @model_validator(mode="after")
    def _fits(self) -> FileSource:
        if self.header and self.format != "csv":
            raise ValueError(f"header is for format: csv, and the format is {self.format}")
        if self.archive is not None and _store(self.archive) != _store(self.path):
            raise ValueError(
                f"archive: {self.archive} is not in the store of path ({self.path}): files cannot be moved from one to "
                "the other"
            )
        if self.archive is not None and _touch(self.archive, self.path):
            raise ValueError(f"archive: {self.archive} is, or lies in or around, path: its files would be found again")
        if self.marker is not None and not re.fullmatch(r"[^/]+", self.marker):
            raise ValueError(f"marker: {self.marker!r} is not a suffix of a file's name, such as .done")
        return self

    def declared(self, names: Sequence[str], quoting: Quoting) -> None:
        """Take note of the columns that ``decode.csv`` declares, in the order of a row, and of its characters."""
        self._declared, self._quoting = tuple(names), quoting

    @property
    def quoting(self) -> Quoting:
        """The characters of CSV."""
        return self._quoting

    def columns_in(self, header: str) -> list[str]:
        """Return the columns of a header, which may be in quotes."""
        text, own = io.StringIO(header, newline=""), self._quoting
        return next(csv.reader(text, delimiter=own.separator, quotechar=own.quote), [])

    def declares(self, columns: Sequence[str]) -> bool:
        """Return whether these are the columns of the schema, in its order."""
        return [name.strip().casefold() for name in columns] == [name.casefold() for name in self._declared]

    def misplaced(self, header: str) -> str | None:
        """Return a declared column that a header has in the place of another one; None if there is none."""
        there = [name.strip().casefold() for name in self.columns_in(header)]
        if len(there) != len(self._declared):  # such rows are refused one by one (rule fields)
            return None
        pairs = zip(self._declared, there, strict=True)
        return next((name for name, at in pairs if name.casefold() in there and name.casefold() != at), None)

    @property
    def objects(self) -> bool:
        """Whether rows are written as JSON objects: those of Parquet and Avro."""
        return self.format in ("parquet", "avro")

    @property
    def folders(self) -> list[str]:
        """The folder, and the archive."""
        return [path for path in (self.path, self.archive) if path is not None]

    @property
    def streams(self) -> list[str]:
        """The folder's name; characters other than letters, digits, ``.``, ``_`` and ``-`` become ``_``."""
        last = self.path.rstrip("/").rpartition("/")[2]
        return [re.sub(r"[^A-Za-z0-9._-]", "_", last) or "files"]


def _store(location: str) -> str:
    """Return the scheme of a URL, with the host of a file system that has one; nothing for a path."""
    url = urlsplit(location)
    if "://" not in location or url.scheme == "file":
        return ""
    scheme = {"s3a": "s3", "gcs": "gs"}.get(url.scheme, url.scheme)
    return scheme if scheme in ("s3", "gs") else f"{scheme}://{url.netloc}"


def _touch(one: str, other: str) -> bool:
    one, other = (posixpath.normpath(path) + "/" for path in (one, other))
    return one.startswith(other) or other.startswith(one)
