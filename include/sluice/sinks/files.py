"""The key ``sink.files`` of a pipeline file."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator

from sluice.fields import Duration, Location
from sluice.sinks.base import SinkConfig, SinkKind
from sluice.storage import is_url

__all__ = ["KIND", "FilesSink"]


def _path(path: str) -> str:
    if is_url(path):
        raise ValueError(
            f"{path!r} is a URL, and a commit needs a file system on which a file appears at once: write a path that "
            "all machines share, or choose sink.delta"
        )
    return path


class FilesSink(SinkConfig):
    """Parquet files in a folder, with a manifest that says which of them count."""

    path: Annotated[Location, AfterValidator(_path)]
    """A folder of a file system: relative to ``SLUICE_HOME``, or absolute."""
    format: Literal["parquet"] = "parquet"
    """The format of the files."""
    keep: Duration = timedelta(days=7)
    """How long files that an interval replaced are kept for those who still read them."""

    @property
    def location(self) -> str:
        """``path``."""
        return self.path


KIND = SinkKind(
    config=FilesSink,
    open="sluice_spark.sinks.files.folder:opened",
    transactional=True,
    replaceable=True,
    readable=True,
    by_value=True,
    outputs=("append", "update", "complete"),
    stages_parquet=True,
)
