"""A processor yields rows of the schema in the pipeline file, or the run ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import DoubleType, IntegerType, LongType, StructType

from sluice_spark.windows.processor_rows import Watched

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
def test_processor_may_yield_rows_of_the_schema(row: Row) -> None:
    assert yielded(row) == [[row], [row]]


@pytest.mark.parametrize(
    ("row", "named"),
    [
        (Row(id=1, N=2, x=0.5), "id, N, x"),
        (Row(id=1, n=2), "id, n;"),
        (Row(id=1, n=2, x=0.5, more=1), "more"),
        (Row(1, 2, 0.5), "no names"),
        ((1, 2, 0.5), "no names"),
        (Row(id=1, n=1.7, x=0.5), "1.7 for n"),
        (Row(id=1, n=float("nan"), x=0.5), "nan for n"),
        (Row(id=None, n=1, x=0.5), "NOT NULL"),
    ],
)
def test_processor_may_not_yield_rows_that_spark_would_change(row: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        yielded(row)


def test_processor_gets_its_handle_and_its_end() -> None:
    echo = Echo()
    watched = Watched(echo, SCHEMA)
    watched.init("handle")  # type: ignore[arg-type]
    assert echo.handle == "handle"
    watched.close()
    assert echo.handle == "closed"
