"""Windows that a sink refuses: the way on depends on whether state was made of their records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sluice_spark.batch.recomputed_windows import RecomputedWindows
from sluice_spark.batch.windows import WindowWriter
from sluice_spark.sinks.base import NOTHING, RowsRefusedError


@pytest.mark.parametrize(
    ("kind", "rebuilds"), [(WindowWriter, True), (RecomputedWindows, False)], ids=["live", "interval"]
)
def test_refused_window_needs_its_state_again_only_where_a_live_run_made_it(kind: Any, rebuilds: bool) -> None:
    writer = cast(Any, SimpleNamespace(pipeline=SimpleNamespace(name="p", no_rebuilding=None)))
    with pytest.raises(RowsRefusedError) as refused:
        kind.without(writer, RowsRefusedError("no", next_step="add a row rule"), NOTHING)
    assert ("--rebuild-state" in refused.value.next_step) is rebuilds
