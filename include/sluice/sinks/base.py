"""A kind of sink, as the core knows it: its keys in the pipeline file, and what it can do.

The rule of sinks: rows are staged, read back, accounted for, and committed together with writer id, batch number and
commit metadata in a transaction of the sink. A sink declares what it cannot do. Sluice refuses it by name, and never
imitates it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sluice.fields import Strict
from sluice.kinds import imported

__all__ = ["SinkConfig", "SinkKind"]


class SinkConfig(Strict):
    """A sink's settings in a pipeline file; each kind of sink adds keys of its own."""

    path: str
    """Where the rows are: a path or a URL."""

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
        ``package.module:callable``, which takes path, writer id and partition columns and returns a
        ``sluice_spark.sinks.base.Sink``.
    transactional
        Whether a batch becomes visible atomically, together with its batch number. Other sinks are refused.
    replaceable
        Whether one transaction can remove rows and add others; intervals and the redrive of quarantined records need
        it.
    readable
        Whether the rows of single runs can be read back; validation and ``sluice audit --deep`` need it.
    delta
        Whether it is a Delta table; ``adopt``, ``audit --deep`` and the quarantine's default path need one.
    """

    config: type[SinkConfig]
    open: str
    transactional: bool
    replaceable: bool
    readable: bool
    delta: bool = False

    def opened(self, path: str, writer_id: str, partition_columns: Sequence[str]) -> Any:
        """Open a sink, which need not exist yet."""
        return imported(self.open)(path, writer_id, partition_columns)
