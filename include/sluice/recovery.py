"""How a task recovers: the choice, and what each choice promises."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Recovery"]


class Recovery(StrEnum):
    """A strategy, chosen per pipeline, per task or per run.

    Members that this version can run are in :meth:`available`; a pipeline that asks for another is refused by name.
    """

    REPLAY = "replay"
    """Re-read exactly the logged ranges from Kafka; refuse, typed, when Kafka no longer has them."""
    WAL = "wal"
    """Land records verbatim in a write-ahead log first, then process from the log."""
    HOT = "hot"
    """Keep each batch on two executors before its first action."""
    IGNORE_BATCH = "ignore_batch"
    """On a batch's final failure drop the batch, record its ranges as lost, go on."""
    IGNORE_RANGE = "ignore_range"
    """Only the ranges that cannot be read or processed become empty, recorded as lost."""

    @classmethod
    def available(cls) -> tuple[Recovery, ...]:
        """Return the strategies that this version runs."""
        return (cls.REPLAY,)
