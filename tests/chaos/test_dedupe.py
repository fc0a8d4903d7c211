"""``dedupe``: records that it refuses, and the state behind a dead attempt or a change of the file.

That keys are remembered whatever dies is in ``test_operators.py`` and in recorded states.
"""

from __future__ import annotations

from collections import Counter

import pytest
from tests.chaos.commands import delta, listed
from tests.chaos.models.dedupe import DEDUPE, WITHIN, Stream, event
from tests.chaos.models.planned import BEGIN, MINUTE, milliseconds
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka, pytest.mark.long]


def test_dedupe_refuses_records_without_a_key_or_a_time_and_filters_duplicates_and_late_ones(sandbox: Sandbox) -> None:
    stream = Stream(sandbox)
    stream.configure()
    stream.feed(0, 200, 14, bad=True, run="first")
    stream.feed(0, 240, 14, run="second")
    assert all(stream.assert_exact().values())
    rules = Counter(row["_errors"][0]["rule"] for row in listed(sandbox, "table_quarantine"))
    assert rules == Counter(["json", "event_time_missing", "dedupe_key_missing", "event_time_ahead"])


def test_state_of_a_committed_batch_is_that_of_its_rows_in_the_sink(sandbox: Sandbox) -> None:
    """Another attempt may see other duplicates first: then it would forget their keys at another time."""
    stream = Stream(sandbox, batch=100)
    stream.configure()
    early, later = BEGIN, BEGIN + 50 * MINUTE
    stream.put([(n % 2, b"", event(at, 1), (at, 1)) for n, at in enumerate([early, later, early, later])])
    sandbox.run("dies", kill_at="sink-committed")
    ((at, _),) = stream.held().values()
    place, record = next((place, record) for place, record in stream.records.items() if record and record[0] != at)
    # as if that attempt had taken another one of them
    delta(sandbox).update(new_values={"_partition": place[0], "_offset": place[1], "at": record[0]})
    sandbox.run("goes on")
    stream.assert_exact()
    assert stream.state()["first_forgotten_at"] == milliseconds(record[0] + WITHIN)


def test_state_of_an_attempt_that_was_not_committed_is_dropped(sandbox: Sandbox) -> None:
    stream = Stream(sandbox)
    stream.configure()
    stream.feed(0, 10, 4, ids=1, run="dies", kill_at="before-sink-commit")
    stream.configure(transform={"sql": "SELECT * FROM source WHERE id > 5"}, rows="filter")
    sandbox.run("dies again", kill_at="state-dropped")
    sandbox.run("drops all")
    assert stream.state()["keys"] == 0
    stream.configure()
    stream.feed(0, 10, 2, ids=1, run="last")
    assert len(stream.held()) == 1


def test_dedupe_that_was_changed_or_removed_is_refused_by_runs_of_each_kind(sandbox: Sandbox) -> None:
    stream = Stream(sandbox)
    stream.configure()
    stream.feed(0, 100, 4, run="first")
    stream.configure({**DEDUPE, "keys": ["id", "at"]})
    stream.feed(0, 100, 4)
    message = sandbox.run("second", expect=41).message
    assert "keys was ['id'] and is ['id', 'at']" in message
    assert f"sluice reset {sandbox.file} --reason" in message
    stream.configure(None)
    # each would write duplicates, and the keys of its rows would not be remembered
    past = ("2020-01-01T00:00:00Z", "2026-01-01T00:00:00Z")
    for run, options in {"live": {}, "redrive": {"redriven": "quarantined"}, "interval": {"interval": past}}.items():
        assert "dedupe" in sandbox.run(run, expect=41, **options).message
    window = {"time": "at", "size": "1h", "aggregates": {"n": "count(*)"}, "watermark": "1h"}
    stream.configure(None, window=window)
    assert "window" in sandbox.run("fourth", expect=41).message
    stream.configure({**DEDUPE, "ahead": "2d"})
    sandbox.run("fifth")
    stream.assert_exact()
