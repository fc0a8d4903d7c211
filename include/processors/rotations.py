"""An example of ``processor``: the flights of an aircraft, chained into rotations by its tail number.

Any class of this kind has to keep to three things. A batch that is read again, because a driver died, must leave the
same state and yield the same rows: so nothing may depend on clocks, on chance or on other systems. Rows of one batch
come in any order. And a record that is not late may be older than others that came in batches before.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

__all__ = ["Rotations"]

IDLE = timedelta(hours=12)
"""An aircraft that does not depart for so long after a departure has ended its rotation."""

_IDLE_MS = IDLE // timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Leg = tuple[int, str, str, int | None, int | None]
"""Microseconds of the scheduled departure since 1970, origin, destination, and both delays in minutes."""


class Rotations(StatefulProcessor):
    """Yields a row for each rotation once its aircraft has been idle, by event time.

    It keeps the legs of each aircraft that belong to no rotation yet, and a timer for each leg: ``IDLE`` behind it.
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._handle = handle
        self._legs = handle.getListState(
            "legs", "departs LONG, origin STRING, dest STRING, dep_delay INT, arr_delay INT"
        )

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Take the legs of a batch. They may lie between legs that are there."""
        came = [(row.departs_us, row.origin, row.dest, row.dep_delay, row.arr_delay) for row in rows]
        self._legs.appendList(came)
        for departs, *_ in came:
            self._handle.registerTimer(departs // 1000 + _IDLE_MS)
        return iter(())

    # Spark calls it by keyword, so the names are Spark's
    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        """Yield the rotations that had ended by the timer, and keep the other legs."""
        now = expiredTimerInfo.getExpiryTimeInMs()
        found = list(_chained(self._legs.get()))
        ended = [legs for legs in found if legs[-1][0] // 1000 + _IDLE_MS <= now]
        if not ended:
            return  # of a leg that others have followed
        left = [leg for legs in found if legs not in ended for leg in legs]
        if left:
            self._legs.put(left)
        else:
            self._legs.clear()
        for legs in ended:
            yield _row(key[0], legs)

    def close(self) -> None:
        """End."""


def _chained(legs: Iterator[Leg]) -> Iterator[list[Leg]]:
    """Yield the legs of each rotation, in the order of departure."""
    rotation: list[Leg] = []
    for leg in sorted(legs, key=lambda leg: (leg[0], leg[1], leg[2])):
        if rotation and leg[0] // 1000 - rotation[-1][0] // 1000 >= _IDLE_MS:
            yield rotation
            rotation = []
        rotation.append(tuple(leg))  # type: ignore[arg-type]
    if rotation:
        yield rotation


def _row(tailnum: str, legs: list[Leg]) -> Row:
    pairs = list(pairwise(legs))
    # arrived late, and left late: the lesser of both delays was inherited
    inherited = sum(max(0, min(before[4] or 0, after[3] or 0)) for before, after in pairs)
    return Row(
        tailnum=tailnum,
        first_departure=_EPOCH + timedelta(microseconds=legs[0][0]),
        last_departure=_EPOCH + timedelta(microseconds=legs[-1][0]),
        legs=len(legs),
        route=[f"{leg[1]}-{leg[2]}" for leg in legs],
        unseen=sum(before[2] != after[1] for before, after in pairs),
        inherited=inherited,
    )
