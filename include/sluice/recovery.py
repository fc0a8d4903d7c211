"""How a task recovers; chosen in the pipeline file, per task, or per run."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Recovery", "Route"]


class Route(StrEnum):
    """By which way an epoch's records reach the sink. Strategies of one route share a checkpoint."""

    DIRECT = "direct"
    """Records go from Kafka into the sink."""
    LOG = "log"
    """Records go from Kafka into the write-ahead log, and from there into the sink."""


class Recovery(StrEnum):
    """The strategies. ``REPLAY`` lies beneath all of them: a batch that was planned is read again, exactly."""

    REPLAY = "replay"
    """Re-read exactly the logged ranges from Kafka; refuse when Kafka no longer has them."""
    WAL = "wal"
    """Land the records verbatim in a write-ahead log first, then process from the log."""
    HOT = "hot"
    """Keep each batch on two executors before its first action."""
    IGNORE_BATCH = "ignore_batch"
    """On a batch's final failure drop the batch, record its ranges as lost, go on."""
    IGNORE_RANGE = "ignore_range"
    """Only the ranges that cannot be read or processed become empty, recorded as lost."""

    @property
    def route(self) -> Route:
        """The route that a run with this strategy needs."""
        return Route.LOG if self is Recovery.WAL else Route.DIRECT

    @property
    def ignores(self) -> bool:
        """Whether it goes on without what cannot be had."""
        return self in (Recovery.IGNORE_BATCH, Recovery.IGNORE_RANGE)

    def refusal(self, *, aggregates: bool) -> str | None:
        """Return why a pipeline cannot have this strategy; None when it can.

        Parameters
        ----------
        aggregates
            Whether rows cannot be traced to single records (``rows: aggregate``).
        """
        if aggregates and self is Recovery.IGNORE_BATCH:
            return (
                "recovery: ignore_batch is for stateless pipelines: rows: aggregate makes rows of many records, and a "
                "batch that is dropped would leave them wrong without a trace. Choose replay, or ignore_range"
            )
        return None
