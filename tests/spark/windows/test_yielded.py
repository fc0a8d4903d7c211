"""What a processor yields is what the pipeline file names, or the run ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import DoubleType, IntegerType, LongType, StructType

from sluice_spark.windows.yielded import Watched

SCHEMA = (
    StructType().add("id", LongType(), nullable=False).add("n", IntegerType()).add("x", DoubleType())
)  # of DDL only a session makes one


class Echo(StatefulProcessor):
    """Yields what it is given, also as if a timer had fired."""

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        yield from rows

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        yield expiredTimerInfo

    def close(self) -> None:
        self.handle = "closed"


def yielded(row: Any) -> list[list[Row]]:
    """Return what comes out of a batch and of a timer."""
    watched = Watched(Echo(), SCHEMA)
    return [list(watched.handleInputRows(1, iter([row]), None)), list(watched.handleExpiredTimer(1, None, row))]


@pytest.mark.parametrize("row", [Row(id=1, n=2, x=0.5), Row(x=None, n=None, id=1), Row(id=1, n=2.0, x=1)])
def test_rows_of_the_schema_pass_as_they_are(row: Row) -> None:
    assert yielded(row) == [[row], [row]]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (Row(id=1, N=2, x=0.5), "the columns id, N, x; processor.schema has id, n, x"),
        (Row(id=1, n=2), "the columns id, n; processor.schema has id, n, x"),
        (Row(id=1, n=2, x=0.5, more=1), "the columns id, n, x, more"),
        (Row(1, 2, 0.5), "no names"),
        ((1, 2, 0.5), "no names"),
        (Row(id=1, n=1.7, x=0.5), "yielded 1.7 for n, an integer"),
        (Row(id=1, n=float("nan"), x=0.5), "yielded nan for n, an integer"),
        (Row(id=None, n=1, x=0.5), "yielded NULL for id, which is NOT NULL"),
    ],
)
def test_what_spark_would_change_in_silence_ends_the_run(row: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        yielded(row)


def test_the_class_gets_its_handle_and_its_end() -> None:
    echo = Echo()
    watched = Watched(echo, SCHEMA)
    watched.init("handle")  # type: ignore[arg-type]
    assert echo.handle == "handle"
    watched.close()
    assert echo.handle == "closed"
