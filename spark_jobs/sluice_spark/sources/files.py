"""Files of a folder as a source."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import SparkSession

from sluice.errors import OffsetsGoneError, SluiceError
from sluice.ranges import OffsetRange
from sluice.sources.files.config import FileSource
from sluice.sources.files.formats import Reader
from sluice.sources.files.source import Files
from sluice_spark.engine.failures import Sign
from sluice_spark.sources.files_input import FileRows
from sluice_spark.sources.range_source import RangedReader

__all__ = ["FilesReader"]

_WITHOUT = (
    "go on without their rows, which count as lost then: by --recovery ignore_range; or, beside a window, dedupe or a "
    "processor, by sluice reset NAME --reason TEXT"
)
_DAMAGED = Sign(
    SluiceError,
    ("UnreadableError: ",),
    f"put a sound copy in its place, with the same time, and run again; or move the file away and {_WITHOUT}",
)


class FilesReader(RangedReader):
    """Reads rows of a pipeline's files, as long as they are in the folder or in the archive.

    Parameters
    ----------
    source
        The open files.
    """

    signs = (_DAMAGED,)

    def __init__(self, spark: SparkSession, config: FileSource, source: Files) -> None:
        self.spark = spark
        self.source = source
        self.ranged = FileRows(
            source.book.path,
            source.folder.path,
            None if source.archive is None else source.archive.path,
            Reader.of(config),
        )

    def missing(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return the parts of these ranges whose files are gone, or changed since their rows were counted."""
        return [cut for span in ranges for cut in self.source.missing(span)]

    def refuse(self, ranges: Sequence[OffsetRange]) -> None:
        """Refuse to go on if a part of these ranges is gone."""
        gone = [found for span in ranges for found in self.source.missing_files(span)]
        if gone:
            names = sorted({entry.name for entry, _ in gone})
            raise OffsetsGoneError(
                f"{', '.join(names[:4])}{f' and {len(names) - 4} other files' if len(names) > 4 else ''} went away or "
                "changed since their rows were counted",
                state="batches that were committed are in the sink; nothing of this one is",
                next_step=f"put the files back as they were and run again; or {_WITHOUT}",
                ranges=[cut for _, cut in gone],
            )
