"""Which batches the log holds and the sink does not."""

from __future__ import annotations

from datetime import timedelta

import pytest
from deltalake import DeltaTable
from tests.fixtures.wal import EPOCH, Made, tables

from sluice.errors import SinkError
from sluice.ranges import Positions
from sluice_spark.runs.sealed import sealed_batches, sealed_behind

pytestmark = pytest.mark.spark


def test_sealed_batches_are_those_that_the_sink_does_not_hold_and_none_is_skipped(made: Made) -> None:
    made.seal_lines(4)
    assert [s.batch for s in sealed_batches(tables(made, 3))] == []
    assert [s.batch for s in sealed_batches(tables(made, 1))] == [2, 3]
    made.log.clean(EPOCH + timedelta(days=1), applied={1: 1})
    assert [s.batch for s in sealed_batches(tables(made, 1))] == [2, 3]
    # Delta lets go of history after its retention: then the log no longer tells what a batch was planned with
    table = DeltaTable(str(made.root))
    table.create_checkpoint()
    for entry in sorted((made.root / "_delta_log").glob("*.json"))[:4]:  # the table's own, and batches 0 to 2
        entry.unlink()
    with pytest.raises(SinkError, match=r"batches 2 to 3, which were not applied, but its history has only 3"):
        sealed_batches(tables(made, 1))


@pytest.mark.parametrize(
    ("position", "behind"),
    [
        (None, [0, 1, 2, 3]),
        ({"t": {0: 0, 1: 0}}, [0, 1, 2, 3]),
        ({"t": {0: 20, 1: 20}}, [2, 3]),
        ({"t": {0: 20, 1: 10}}, [1, 2, 3]),
        ({"t": {0: 40, 1: 40}}, []),
    ],
)
def test_where_the_sink_numbers_its_batches_by_itself_offsets_tell_which_it_has(
    made: Made, position: Positions | None, behind: list[int]
) -> None:
    made.seal_lines(4)
    assert [s.batch for s in sealed_behind(tables(made, 0), position)] == behind


def test_a_log_that_does_not_tell_of_all_that_waits_is_refused(made: Made) -> None:
    made.seal_lines(4)
    table = DeltaTable(str(made.root))
    table.create_checkpoint()
    for entry in sorted((made.root / "_delta_log").glob("*.json"))[:4]:
        entry.unlink()
    assert [s.batch for s in sealed_behind(tables(made, 0), {"t": {0: 30, 1: 30}})] == [3]
    with pytest.raises(SinkError, match="its history has only 3"):
        sealed_behind(tables(made, 0), {"t": {0: 10, 1: 10}})
