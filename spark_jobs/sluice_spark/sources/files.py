"""Files of a folder as a source."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession

from sluice.errors import OffsetsGoneError, SluiceError
from sluice.ranges import OffsetRange, Positions
from sluice.sources.files.config import FileSource
from sluice.sources.files.formats import Reader
from sluice.sources.files.source import Files
from sluice.sources.state import TopicState
from sluice_spark.engine.failures import Sign, classify
from sluice_spark.sources import ranged
from sluice_spark.sources.files_input import FileRows
from sluice_spark.sources.inputs import Input
from sluice_spark.sources.ranged import frame_of, stream_of

__all__ = ["FilesReader"]


class FilesReader:
    """Reads rows of a pipeline's files, as long as they are in the folder or in the archive.

    Parameters
    ----------
    source
        The open files.
    """

    signs: Sequence[Sign] = ()

    def __init__(self, spark: SparkSession, config: FileSource, source: Files) -> None:
        self.spark = spark
        self.source = source
        self._rows = FileRows(
            source.book.path,
            source.folder.path,
            None if source.archive is None else source.archive.path,
            Reader.of(config),
        )

    def stream(
        self,
        max_records: int,
        *,
        start: Positions | None = None,
        states: Iterable[TopicState] = (),
        headers: bool = False,
        over_gaps: bool = False,
    ) -> DataFrame:
        """Return the stream of all rows; see :class:`~sluice_spark.sources.base.SourceReader`."""
        return stream_of(self.spark, self._rows, max_records, start=start, states=states)

    def batch_end(self, start: Positions, ends: Positions, limit: int) -> Positions:
        """Return where a batch ends; see :class:`~sluice_spark.sources.base.Foreseeable`."""
        return ranged.batch_end(start, ends, limit)

    def read(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return exactly the records of these ranges, including headers."""
        return frame_of(self.spark, self._rows, ranges)

    def inputs(self, ranges: Sequence[OffsetRange]) -> list[tuple[Input, list[OffsetRange]]]:
        """Return the files: workers can read all ranges from them."""
        return [(self._rows.input(ranges), list(ranges))]

    def missing(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return the parts of these ranges whose files are gone, or changed since their rows were counted."""
        return [cut for span in ranges for _, cut in self.source.missing(span)]

    def verify(self, read: Mapping[tuple[str, int], int], ranges: Sequence[OffsetRange]) -> None:
        """Do nothing: a file that gives another number of rows is refused when it is read."""

    def diagnose(self, error: Exception, ranges: Sequence[OffsetRange]) -> SluiceError:
        """Look for files that are gone first, whatever the error says."""
        return classify(error, lambda: self._refuse(ranges), self.signs)

    def _refuse(self, ranges: Sequence[OffsetRange]) -> None:
        gone = [found for span in ranges for found in self.source.missing(span)]
        if gone:
            names = sorted({entry.name for entry, _ in gone})
            raise OffsetsGoneError(
                f"{', '.join(names[:4])}{f' and {len(names) - 4} other files' if len(names) > 4 else ''} went away or "
                "changed after the rows were counted, before they were read",
                state="batches that were committed are in the sink; nothing of this one is",
                next_step="put the files back as they were and run again; or run with --recovery ignore_range, which "
                "records their rows as lost and goes on",
                ranges=[cut for _, cut in gone],
            )
