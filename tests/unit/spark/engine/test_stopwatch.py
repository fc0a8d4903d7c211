"""Where a run's seconds go."""

from __future__ import annotations

import time

import pytest

from sluice_spark.engine.stopwatch import Stopwatch


def test_phases_add_up_also_when_they_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Stopwatch()
    assert watch.seconds.keys() == {"process"}
    assert watch.seconds["process"] > 0, "what passed before it was made"
    watch.seconds["process"] = 1.0
    clock = iter([0.0, 2.5, 10.0, 10.25, 20.0, 21.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    with watch.phase("read"):
        pass
    with watch.phase("commit"):
        pass
    with pytest.raises(ValueError, match="broken"), watch.phase("read"):
        raise ValueError("broken")
    assert str(watch) == "process 1.00, read 3.50, commit 0.25"
