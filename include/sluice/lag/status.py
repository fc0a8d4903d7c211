"""The status of a partition and of a pipeline."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from sluice.errors import AuthorizationError, SluiceError

__all__ = ["Status", "signs_of"]


class Status(StrEnum):
    """The status of a partition, mildest first; a pipeline's verdict is the worst of its partitions'."""

    OK = "OK"
    """Nothing waits."""
    NEW = "NEW"
    """No run has read it yet; the next one starts at the file's ``starting_offsets``."""
    BACKLOG = "BACKLOG"
    """Records wait, as is normal between two runs. The limits define how many are too many."""
    CLOCK = "CLOCK"
    """The first unread record is from the future, by its producer's clock. The age is that of others behind it."""
    GROWING = "GROWING"
    """Over the limits, and each of the last three successful runs found more records than the one before."""
    UNKNOWN = "UNKNOWN"
    """The broker did not answer."""
    STUCK = "STUCK"
    """The last three runs failed, and none moved the position, while records wait."""
    REWOUND = "REWOUND"
    """The position lies before what the ledger says was written: the checkpoint was rolled back."""
    LOST = "LOST"
    """The broker removed records before they were read."""
    RECREATED = "RECREATED"
    """The topic was deleted and recreated, or is shorter than what was read from it."""
    AUTH = "AUTH"
    """The broker refuses the credentials, or a right is missing."""

    @property
    def severity(self) -> int:
        """The index in this list."""
        return list(Status).index(self)

    @staticmethod
    def worst(found: Iterable[Status]) -> Status:
        """Return the most severe status; ``OK`` if there is none."""
        return max(found, key=lambda s: s.severity, default=Status.OK)


def signs_of(error: SluiceError | None) -> list[Status]:
    """Return the status that an error implies; empty for None."""
    if error is None:
        return []
    return [Status.AUTH if isinstance(error, AuthorizationError) else Status.UNKNOWN]
