"""The strategy for each name in a pipeline file."""

from __future__ import annotations

from sluice.recovery import Recovery
from sluice_spark.strategies.base import Replay, Strategy
from sluice_spark.strategies.hot import Hot
from sluice_spark.strategies.ignore import Ignoring

__all__ = ["STRATEGIES"]

STRATEGIES: dict[Recovery, Strategy] = {
    Recovery.REPLAY: Replay(),
    Recovery.WAL: Replay(Recovery.WAL),  # its route is the log, from which a failed batch is read again
    Recovery.HOT: Hot(),
    Recovery.IGNORE_BATCH: Ignoring(Recovery.IGNORE_BATCH),
    Recovery.IGNORE_RANGE: Ignoring(Recovery.IGNORE_RANGE),
}
"""A new strategy needs a name in :class:`~sluice.recovery.Recovery` and a line here."""
