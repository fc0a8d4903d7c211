"""Which strategy each name stands for, and what they have in common."""

from __future__ import annotations

import pytest

from sluice.errors import OffsetsGoneError, SluiceError, SourceUnreachableError
from sluice.ranges import OffsetRange
from sluice.recovery import Recovery
from sluice_spark.strategies.base import Replay
from sluice_spark.strategies.chosen import STRATEGIES
from sluice_spark.transforms.lookups import NO_LOOKUPS

FIRST = OffsetRange("t", 0, 0, 5)
ODD = RuntimeError("Caused by: java.lang.NullPointerException")


@pytest.mark.parametrize("recovery", list(Recovery))
def test_each_name_of_a_pipeline_file_has_its_strategy(recovery: Recovery) -> None:
    strategy = STRATEGIES[recovery]
    assert strategy.recovery is recovery
    gone = OffsetsGoneError("gone", next_step="n", ranges=[FIRST])
    if recovery.ignores:
        strategy.admit(gone)
    else:
        with pytest.raises(OffsetsGoneError):
            strategy.admit(gone)


@pytest.mark.parametrize("recovery", [Recovery.REPLAY, Recovery.WAL, Recovery.HOT])
def test_a_batch_that_fails_is_diagnosed_by_where_it_was_read(recovery: Recovery) -> None:
    class Writer:
        lookups = NO_LOOKUPS

        def prepare(self, *_: object) -> None:
            raise ODD

    class Source:
        def diagnose(self, error: Exception, ranges: object) -> SluiceError:
            assert error is ODD
            return SourceUnreachableError("no broker", next_step="start it")

    class Batch:
        frame, name, ranges = "frame", "e1-000000", (FIRST,)
        source = Source()

    assert isinstance(STRATEGIES[recovery], Replay)
    with pytest.raises(SourceUnreachableError):
        STRATEGIES[recovery].prepare(Writer(), Batch())  # type: ignore[arg-type]
