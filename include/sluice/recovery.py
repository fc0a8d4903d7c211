"""Recovery strategies; chosen in the pipeline file, per task, or per run."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Recovery", "Route"]


class Route(StrEnum):
    """The way of an epoch's records into the sink. Strategies with the same route share a checkpoint."""

    DIRECT = "direct"
    """Records go from Kafka into the sink."""
    LOG = "log"
    """Records go from Kafka into the write-ahead log, and from there into the sink."""


class Recovery(StrEnum):
    """The strategies. All of them build on ``REPLAY``: a planned batch is read again with exactly the same ranges."""

    REPLAY = "replay"
    """Re-read exactly the logged ranges from Kafka; refuse when Kafka no longer has them."""
    WAL = "wal"
    """Land the records verbatim in a write-ahead log first, then process from the log."""
    HOT = "hot"
    """Keep each batch on two executors before its first action."""
    IGNORE_BATCH = "ignore_batch"
    """If a batch cannot be read or processed, skip it, record its ranges as lost, and go on."""
    IGNORE_RANGE = "ignore_range"
    """Skip only the ranges that cannot be read or processed, record them as lost, and go on."""

    @property
    def route(self) -> Route:
        """The route that a run with this strategy needs."""
        return Route.LOG if self is Recovery.WAL else Route.DIRECT

    @property
    def ignores(self) -> bool:
        """Whether it skips what cannot be read or processed."""
        return self in (Recovery.IGNORE_BATCH, Recovery.IGNORE_RANGE)

    def refusal(self, *, aggregates: bool) -> str | None:
        """Return why a pipeline cannot use this strategy; None if it can.

        Parameters
        ----------
        aggregates
            Whether rows cannot be traced to single records (``rows: aggregate``).
        """
        if aggregates and self is Recovery.IGNORE_BATCH:
            return (
                "recovery: ignore_batch is for stateless pipelines: with rows: aggregate a row combines many records, "
                "and skipping a batch would silently leave such rows wrong. Choose replay or ignore_range"
            )
        return None
