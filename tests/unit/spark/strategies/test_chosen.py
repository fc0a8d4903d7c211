"""The strategy of each recovery name, and the error of a batch that fails under it."""

from __future__ import annotations

from unittest import mock

import pytest

from sluice.errors import SourceUnreachableError
from sluice.ranges import OffsetRange
from sluice.recovery import Recovery
from sluice_spark.strategies.chosen import STRATEGIES
from sluice_spark.strategies.ignore import Ignoring
from sluice_spark.transforms.lookups import NO_LOOKUPS

FIRST = OffsetRange("t", 0, 0, 5)
ODD = RuntimeError("Caused by: java.lang.NullPointerException")


@pytest.mark.parametrize("recovery", list(Recovery))
def test_strategy_of_a_recovery_name_lets_the_source_diagnose_a_failure_unless_it_ignores_it(
    recovery: Recovery,
) -> None:
    strategy = STRATEGIES[recovery]
    assert (strategy.recovery, isinstance(strategy, Ignoring)) == (recovery, recovery.ignores)
    if recovery.ignores:
        return
    down = SourceUnreachableError("no broker", next_step="start it")
    writer = mock.Mock(lookups=NO_LOOKUPS, prepare=mock.Mock(side_effect=ODD))
    batch = mock.Mock(ranges=(FIRST,), source=mock.Mock(diagnose=mock.Mock(return_value=down)))
    with pytest.raises(SourceUnreachableError):
        strategy.prepare(writer, batch)
    batch.source.diagnose.assert_called_once_with(ODD, (FIRST,))
