"""Recovery strategies; chosen in the pipeline file, per task, or per run."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["REDRIVEN", "Recovery", "Route"]

REDRIVEN = 0
"""The epoch number of redrives: live epochs count from 1 upwards, intervals from -1 downwards."""


class Route(StrEnum):
    """The way of an epoch's records into the sink. Strategies with the same route share a checkpoint."""

    DIRECT = "direct"
    """Records go from Kafka into the sink."""
    LOG = "log"
    """Records go from Kafka into the write-ahead log, and from there into the sink."""


class Recovery(StrEnum):
    """The strategies. All of them build on ``REPLAY``: a planned batch is read again with exactly the same ranges."""

    route: Route
    """The route that a run with this strategy needs."""
    promise: str
    """What the strategy does, in one line, for people who choose one."""

    def __new__(cls, value: str, route: Route = Route.DIRECT, promise: str = "") -> Recovery:
        """Return a member; its value is its name in files, forms and the ledger."""
        member = str.__new__(cls, value)
        member._value_, member.route, member.promise = value, route, promise
        return member

    REPLAY = (
        "replay",
        Route.DIRECT,
        "read exactly the logged ranges again from Kafka; refuse if Kafka no longer has them",
    )
    WAL = (
        "wal",
        Route.LOG,
        "land the records in a write-ahead log first; survives Kafka being down; costs a second write",
    )
    HOT = (
        "hot",
        Route.DIRECT,
        "keep each batch on two executors; losing one costs no second read; needs twice the memory",
    )
    IGNORE_BATCH = (
        "ignore_batch",
        Route.DIRECT,
        "skip a batch that cannot be read or processed, record its ranges as lost, and go on",
    )
    IGNORE_RANGE = (
        "ignore_range",
        Route.DIRECT,
        "skip only the ranges that cannot be read or processed, record them as lost, and go on",
    )

    @property
    def ignores(self) -> bool:
        """Whether it skips what cannot be read or processed."""
        return self in (Recovery.IGNORE_BATCH, Recovery.IGNORE_RANGE)
