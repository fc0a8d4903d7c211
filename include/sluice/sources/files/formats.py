"""How files of each format are counted, and cut into rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from sluice.sources.files import avro, parquet
from sluice.sources.files.config import FileSource, Format
from sluice.sources.files.json_text import UnfitError
from sluice.sources.files.rows import RFC_4180, Counted, Quoting
from sluice.sources.files.rows import count as count_lines
from sluice.sources.files.rows import rows as cut_lines

__all__ = ["Reader"]


@dataclass(frozen=True)
class Reader:
    """Counts and reads the rows of files of one format.

    Parameters
    ----------
    format
        As in the pipeline file.
    header
        Whether the first row is the header.
    quoting
        The characters of ``format: csv``.
    """

    format: Format
    header: bool = False
    quoting: Quoting = RFC_4180

    @classmethod
    def of(cls, config: FileSource) -> Reader:
        """Return the reader of a pipeline's files."""
        return cls(config.format, config.header, config.quoting)

    @property
    def blank(self) -> bool:
        """Whether a blank row is a record; otherwise its offset has none."""
        return self.format not in ("json", "csv")

    def count(self, file: IO[bytes]) -> Counted:
        """Count the rows of a file.

        Raises
        ------
        UnfitError
            If its rows cannot be written as JSON.
        ConfigError
            If a package is missing.
        Exception
            Any exception, if it cannot be read, or is not complete.
        """
        if self.format == "parquet":
            return parquet.count(file)
        if self.format == "avro":
            return avro.count(file)
        found = count_lines(file, quoting=self._quoting, header=self.header)
        if found.header is not None and not found.header.strip():
            raise UnfitError("its first line is blank, where the header should be")
        return found

    def rows(
        self, file: IO[bytes], start: int, end: int, marks: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[int, list[bytes]]]:
        """Yield rows of a file as lists, each with the number of its first row.

        Parameters
        ----------
        start, end
            The numbers of the first row, and of the row after the last one.
        marks
            Those of :class:`~sluice.sources.files.rows.Counted`, if the file can be sought in.
        """
        if self.format == "parquet":
            return parquet.rows(file, start=start, end=end)
        if self.format == "avro":
            return avro.rows(file, start=start, end=end, marks=marks)
        return cut_lines(file, quoting=self._quoting, header=self.header, start=start, end=end, marks=marks)

    @property
    def _quoting(self) -> Quoting | None:
        return self.quoting if self.format == "csv" else None
