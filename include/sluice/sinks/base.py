"""A kind of sink, as the core knows it: its keys in the pipeline file, and what it can do.

The rule of sinks: rows are staged, read back, accounted for, and committed together with writer id, batch number and
commit metadata in a transaction of the sink. A sink declares what it cannot do. Sluice refuses it by name, and never
imitates it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sluice.fields import Strict
from sluice.kinds import imported

__all__ = ["SinkConfig", "SinkKind"]


class SinkConfig(Strict):
    """A sink's settings in a pipeline file; each kind of sink adds keys of its own."""

    @property
    def location(self) -> str:
        """Where the files of the sink are, or those that it stages: relative to ``SLUICE_HOME``, absolute, or a URL."""
        raise NotImplementedError

    def location_of(self, pipeline: str) -> str:
        """Return :attr:`location` for a pipeline, if each has its own."""
        return self.location

    @property
    def shown(self) -> str:
        """What people are shown as the sink's place."""
        return self.location

    def of(self, kind: SinkKind) -> SinkKind:
        """Return what the sink can do with these settings, of what its kind can."""
        return kind

    @property
    def keyed(self) -> bool:
        """Whether a row replaces an older one of the same key; each row then must have the offset of its record."""
        return False

    @property
    def by_offset(self) -> bool:
        """Whether the offsets of two records of a key decide which row is newer, and so their partitions."""
        return False

    @property
    def deletes(self) -> bool:
        """Whether a record can delete the row of its key; see ``tombstone: delete``."""
        return False

    def undeletable(self, columns: Collection[str]) -> str | None:
        """Return why the tombstones of a pipeline cannot delete rows here, and the way out; None if they may.

        Parameters
        ----------
        columns
            The columns of a row that have no value if the record has none.
        """
        return None

    @property
    def needs(self) -> str | None:
        """The id of the connection that the sink needs, or None; the driver gets it through its environment."""
        return None

    @property
    def partition_columns(self) -> list[str]:
        """Partition columns of the sink; fixed when it is created."""
        return []


@dataclass(frozen=True)
class SinkKind:
    """A kind of sink, selected by a key below ``sink`` of a pipeline file.

    Parameters
    ----------
    config
        The model of that key.
    open
        ``package.module:callable``, which takes the settings, the resolved path and the writer id, and returns a
        ``sluice_spark.sinks.base.Sink``.
    transactional
        Whether a batch becomes visible atomically, together with its batch number. Other sinks are refused,
        unless they are ``at_least_once``.
    replaceable
        Whether one transaction can remove rows and add others; intervals and the redrive of quarantined records need
        it.
    readable
        Whether the rows of single runs can be read back; validation and ``sluice audit --deep`` need it.
    at_least_once
        Whether the rows of a batch may be handed over more than once, since its number is put on record afterwards.
    whole
        Whether all rows can be read back, too; expectations on the whole table need it.
    delta
        Whether it is a Delta table; ``adopt``, ``audit --deep`` and the quarantine's default path need one.
    by_value
        Whether rows can be replaced by the values of their columns, also those without offsets.
    outputs
        Spark's output modes whose rows it takes: ``update`` needs rows that take the place of others, or that readers
        know as the newest of their key; ``complete`` takes the place of all.
    stages_parquet
        Whether staged rows are Parquet files below its path; the Arrow path writes such files.
    evolves
        Whether the commit of a batch can add columns; the settings say whether it does.
    """

    config: type[SinkConfig]
    open: str
    transactional: bool
    replaceable: bool
    readable: bool
    whole: bool = True
    at_least_once: bool = False
    delta: bool = False
    by_value: bool = False
    outputs: tuple[str, ...] = ("append",)
    stages_parquet: bool = False
    evolves: bool = False

    def opened(self, config: SinkConfig, path: str, writer_id: str) -> Any:
        """Open a sink, which need not exist yet."""
        return imported(self.open)(config, path, writer_id)
