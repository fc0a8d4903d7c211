"""How far a run has come, in words."""

from __future__ import annotations

import logging
import time

import pytest

from sluice.ranges import Counts, OffsetRange, RangeAccount
from sluice_spark.engine.logs import logger
from sluice_spark.engine.progress import Progress


def span(start: int, end: int, partition: int = 0) -> OffsetRange:
    return OffsetRange("t", partition, start, end)


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(logger, "propagate", True)
    caplog.set_level(logging.INFO, logger.name)
    return caplog


def test_what_remains_counts_down_to_where_the_log_ended(
    said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 100.0, 104.0, 200.0, 201.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    given = {"t": {0: 10}}
    progress = Progress({"t": {0: 2_010, 1: 500}}, given)
    first = [span(10, 1_010)]
    progress.begin(0, first)
    progress.end(0, first, [RangeAccount(first[0], Counts(written=790, filtered=8, quarantined=2, absent=200))])
    second = [span(1_010, 2_010), span(0, 500, 1)]
    progress.begin(1, second)
    progress.end(1, second, [RangeAccount(r, Counts(written=len(r))) for r in second])
    assert said.messages == [
        "batch 0: 1,000 offsets in 1 partitions",
        "batch 0: 790 written, 8 filtered, 2 quarantined, 200 absent; 4.0 s, 200 records/s; "
        "1,500 offsets remain (40% done, about 6 s to go)",
        "batch 1: 1,500 offsets in 2 partitions",
        "batch 1: 1,500 written; 1.0 s, 1,500 records/s; 0 offsets remain",
    ]
    assert given == {"t": {0: 10}}, "the caller's positions are the caller's"


def test_a_batch_without_an_account_is_nothing(said: pytest.LogCaptureFixture) -> None:
    progress = Progress({"t": {0: 5}}, {"t": {0: 0}})
    progress.end(3, [], [])
    (line,) = said.messages
    assert line.startswith("batch 3: nothing; ")
    assert line.endswith("; 5 offsets remain")
