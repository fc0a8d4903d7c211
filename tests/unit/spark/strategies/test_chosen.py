"""The strategy of each recovery name, and how strategies diagnose a batch that fails."""

from __future__ import annotations

from unittest import mock

import pytest

from sluice.errors import OffsetsGoneError, SourceUnreachableError
from sluice.ranges import OffsetRange
from sluice.recovery import Recovery
from sluice_spark.strategies.base import Replay
from sluice_spark.strategies.chosen import STRATEGIES
from sluice_spark.transforms.lookups import NO_LOOKUPS

FIRST = OffsetRange("t", 0, 0, 5)
ODD = RuntimeError("Caused by: java.lang.NullPointerException")


@pytest.mark.parametrize("recovery", list(Recovery))
def test_each_recovery_name_has_its_strategy_and_only_ignore_admits_missing_offsets(recovery: Recovery) -> None:
    strategy = STRATEGIES[recovery]
    assert strategy.recovery is recovery
    gone = OffsetsGoneError("gone", next_step="n", ranges=[FIRST])
    if recovery.ignores:
        strategy.admit(gone)
    else:
        with pytest.raises(OffsetsGoneError):
            strategy.admit(gone)


@pytest.mark.parametrize("recovery", [Recovery.REPLAY, Recovery.WAL, Recovery.HOT])
def test_a_strategy_lets_the_source_diagnose_a_batch_that_fails(recovery: Recovery) -> None:
    down = SourceUnreachableError("no broker", next_step="start it")
    writer = mock.Mock(lookups=NO_LOOKUPS, prepare=mock.Mock(side_effect=ODD))
    batch = mock.Mock(ranges=(FIRST,), source=mock.Mock(diagnose=mock.Mock(return_value=down)))
    assert isinstance(STRATEGIES[recovery], Replay)
    with pytest.raises(SourceUnreachableError):
        STRATEGIES[recovery].prepare(writer, batch)
    batch.source.diagnose.assert_called_once_with(ODD, (FIRST,))
