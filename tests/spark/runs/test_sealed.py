"""Sealed batches that the sink does not hold yet."""

from __future__ import annotations

from datetime import timedelta

import pytest
from deltalake import DeltaTable
from tests.fixtures.wal import EPOCH, Made, tables

from sluice.errors import SinkError
from sluice.ranges import Positions
from sluice_spark.runs.sealed import sealed_batches, sealed_behind

pytestmark = pytest.mark.spark


def without_history(made: Made) -> None:
    """Let Delta forget batches 0 to 2 and the log's own first commit, as it does after its retention."""
    DeltaTable(str(made.root)).create_checkpoint()
    for entry in sorted((made.root / "_delta_log").glob("*.json"))[:4]:
        entry.unlink()


def test_sealed_batches_are_those_that_the_sink_does_not_hold(made: Made) -> None:
    made.seal_lines(4)
    assert [s.batch for s in sealed_batches(tables(made, 3))] == []
    assert [s.batch for s in sealed_batches(tables(made, 1))] == [2, 3]
    made.log.clean(EPOCH + timedelta(days=1), applied={1: 1})
    assert [s.batch for s in sealed_batches(tables(made, 1))] == [2, 3]
    without_history(made)
    with pytest.raises(SinkError, match="batches 2 to 3"):
        sealed_batches(tables(made, 1))


def test_sealed_batches_are_found_by_offsets_where_the_sink_numbers_its_own(made: Made) -> None:
    made.seal_lines(4)
    positions: list[tuple[Positions | None, list[int]]] = [
        (None, [0, 1, 2, 3]), ({"t": {0: 0, 1: 0}}, [0, 1, 2, 3]), ({"t": {0: 20, 1: 20}}, [2, 3]),
        ({"t": {0: 20, 1: 10}}, [1, 2, 3]), ({"t": {0: 40, 1: 40}}, []),
    ]  # fmt: skip
    for position, behind in positions:
        assert [s.batch for s in sealed_behind(tables(made, 0), position)] == behind, position
    without_history(made)
    assert [s.batch for s in sealed_behind(tables(made, 0), {"t": {0: 30, 1: 30}})] == [3]
    with pytest.raises(SinkError, match="3"):
        sealed_behind(tables(made, 0), {"t": {0: 10, 1: 10}})
