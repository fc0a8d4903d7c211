"""What the core knows of a sink, whichever it is: its keys in the pipeline file, and what it can do.

The rule of sinks: rows are staged, read back, accounted for, and committed with a mark (writer id, batch, commit
metadata) in the sink's own transaction. What a sink cannot do is declared, and refused by name, never imitated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sluice.fields import Strict
from sluice.kinds import imported

__all__ = ["SinkConfig", "SinkKind"]


class SinkConfig(Strict):
    """What a pipeline file says of its sink; each kind of sink adds keys of its own."""

    path: str
    """Where the rows are: a path or URL."""

    @property
    def partition_columns(self) -> list[str]:
        """The columns by which the sink's files are partitioned; fixed at its creation."""
        return []


@dataclass(frozen=True)
class SinkKind:
    """A kind of sink: what the key below ``sink`` of a pipeline file stands for.

    Parameters
    ----------
    config
        Reads what the file says.
    open
        ``package.module:callable``: given path, writer id and partition columns it returns the sink, a
        ``sluice_spark.sinks.base.Sink``.
    transactional
        Whether a batch becomes visible as a whole, together with its mark. A sink that cannot is refused.
    replaceable
        Whether rows can be taken out in the transaction that enters others; intervals and the redrive of quarantined
        records need it.
    readable
        Whether the rows of single runs can be read back; judging and ``sluice audit --deep`` need it.
    delta
        Whether it is a Delta table, which ``adopt``, ``audit --deep`` and the quarantine's default place rest on.
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
