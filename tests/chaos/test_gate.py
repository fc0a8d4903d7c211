"""Batches that are judged before they are committed: what fails is not published, and waits for somebody's decision."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.fixtures.runs import Sandbox, good

from sluice.errors import ExitCode
from sluice.run.decision import accept, give_up
from sluice.run.held import waiting

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

_DAY = 86_400_000
_EPOCH = 1_356_998_400_000


def gated(sandbox: Sandbox, most: int, *, on_failed: str = "hold", **keys: Any) -> None:
    """Write a suite that no batch with an ``id`` above ``most`` passes."""
    below = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "id", "max_value": most}}
    (sandbox.home / "suite.json").write_text(json.dumps({"name": "s", "expectations": [below]}))
    quality = {"suite": "suite.json", "when": "before_commit", "on_failed": on_failed}
    sandbox.configure(quality=quality, **keys)


def fed(sandbox: Sandbox, start: int, end: int, at: int = _EPOCH) -> None:
    sandbox.produce([(n % 2, b"k", good(n), at + n) for n in range(start, end)])


def waits(sandbox: Sandbox, run: str) -> tuple[int, int] | None:
    return waiting(sandbox.ledger, sandbox.name, sandbox.ledger.known_run(sandbox.name, run))


@pytest.mark.parametrize("recovery", [pytest.param("replay", marks=pytest.mark.long), "wal"])
def test_a_batch_that_fails_is_not_published_until_it_is_accepted(sandbox: Sandbox, recovery: str) -> None:
    """Batches before it are; killed behind the verdict, nothing else comes of it."""
    gated(sandbox, 9, recovery=recovery)
    fed(sandbox, 0, 6)
    sandbox.run("first", validate=True)
    first = sandbox.sink()
    assert sum(first.values()) == 6
    assert sandbox.ledger.known_run(sandbox.name, "first").verdict == "passed"
    fed(sandbox, 6, 12)
    sandbox.run("bad", validate=True, kill_at="judged")
    assert sandbox.sink() == first
    assert waits(sandbox, "bad") == (1, 1)
    sandbox.run("bad", validate=True, kill_at="run-planned")
    assert waits(sandbox, "bad") == (1, 1), "it was not judged again"
    again = sandbox.run("later", validate=True, expect=ExitCode.HELD)
    assert "its batch 1 is not published" in again.stderr, again.stderr
    done = sandbox.run("bad", validate=True, expect=ExitCode.QUALITY_FAILED)
    assert "batch 1 of run 'bad'" in done.stderr
    assert "is judged failed before it is published: expect_column_values_to_be_between on id" in done.stderr
    assert "ForeachBatchUserFuncException" not in done.stderr, "a verdict is no traceback"
    assert sandbox.sink() == first
    accept(sandbox.ledger, sandbox.name, "bad", reason="a known outlier")
    fed(sandbox, 0, 3)
    sandbox.run("good", validate=True, kill_at="sink-committed")
    sandbox.run("good", validate=True)
    sandbox.assert_exact()
    row = sandbox.ledger.known_run(sandbox.name, "good")
    assert row.verdict in ("warned", "passed"), "what was accepted does not fail the run that publishes it"


@pytest.mark.long
def test_what_is_accepted_is_what_the_verdict_found(sandbox: Sandbox) -> None:
    """Not what another transform makes of the batch before it is published, although as many rows of it are wrong."""
    gated(sandbox, 9)
    fed(sandbox, 7, 11)
    sandbox.run("bad", validate=True, expect=ExitCode.QUALITY_FAILED)
    accept(sandbox.ledger, sandbox.name, "bad", reason="a known outlier")
    columns = "name, _topic, _partition, _offset, _timestamp FROM source"
    gated(sandbox, 9, transform={"sql": f"SELECT 17 - id AS id, {columns}"})
    done = sandbox.run("other", validate=True, expect=ExitCode.QUALITY_FAILED)
    assert "1 unexpected" in done.stderr
    assert "but not with this: rows made by another decode, rules or transform" in done.stderr
    assert sandbox.sink() == {}
    gated(sandbox, 9)
    assert waits(sandbox, "other") == (1, 0)
    sandbox.run("other", validate=True, kill_at="sink-committed")
    sandbox.run("other", validate=True)
    sandbox.assert_exact()
    row = sandbox.ledger.known_run(sandbox.name, "other")
    assert row.verdict == "warned", "what was accepted and published is not judged once more"
    assert row.judgement is not None
    again = sandbox.cli("validate", str(sandbox.file), "other")
    assert again.returncode == 0, again.stderr
    assert "accepted" in sandbox.cli("verdict", str(sandbox.file), "other").stderr


@pytest.mark.parametrize("by", [[], pytest.param(["name"], marks=pytest.mark.long)], ids=["whole", "partitions"])
def test_what_workers_set_aside_for_spark_is_judged_with_the_others(sandbox: Sandbox, by: list[str]) -> None:
    """It is in files of another write."""
    gated(sandbox, 9, sink={"delta": {"path": "table", "partition_by": by}})
    fed(sandbox, 0, 4)
    aside = [(0, b"k", json.dumps({"id": n, "name": n}).encode(), _EPOCH + n) for n in (4, 5, 99)]
    sandbox.produce(aside[:1])
    sandbox.run("both", validate=True)
    sandbox.produce(aside[1:2])
    sandbox.run("only", validate=True)
    sandbox.assert_exact()
    assert [sandbox.ledger.known_run(sandbox.name, run).verdict for run in ("both", "only")] == ["passed", "passed"]
    fed(sandbox, 6, 8)
    sandbox.produce(aside[2:])
    done = sandbox.run("bad", validate=True, expect=ExitCode.QUALITY_FAILED)
    assert "expect_column_values_to_be_between on id (slice): 1 unexpected" in done.stderr


def test_what_is_given_up_is_lost_and_can_be_redriven(sandbox: Sandbox) -> None:
    gated(sandbox, 9)
    fed(sandbox, 8, 12)
    sandbox.run("bad", validate=True, expect=ExitCode.QUALITY_FAILED)
    assert sandbox.sink() == {}
    told = sandbox.cli("retract", str(sandbox.file), "bad", "--reason", "wrong unit")
    assert (told.returncode, sandbox.sink()) == (0, {}), told.stderr
    assert "batch 0 of run bad, which waits, is given up" in told.stderr
    assert give_up(sandbox.ledger, sandbox.name, "bad", reason="twice") == (1, 0)
    gated(sandbox, 12, recovery="wal")
    switched = sandbox.run("switched", validate=True, expect=ExitCode.CONFIG)
    assert "batch 0" in switched.message, "another epoch would read and publish what was given up"
    gated(sandbox, 9)
    fed(sandbox, 0, 4)
    sandbox.run("good", validate=True, kill_at="batch-recorded")
    sandbox.run("good", validate=True)
    sandbox.assert_balanced()
    assert sum(sandbox.sink().values()) == 4
    assert {(row.reason, row.state) for row in sandbox.ledger.lost(sandbox.name)} == {("retracted: wrong unit", "open")}
    sandbox.run("still", validate=True, redriven="lost", expect=ExitCode.QUALITY_FAILED)
    assert sum(sandbox.sink().values()) == 4, "a redrive is judged first, too"
    gated(sandbox, 12)
    sandbox.run("again", validate=True, redriven="lost")
    assert sandbox.ledger.lost(sandbox.name) == []
    assert sandbox.sink() == sandbox.on_broker()


@pytest.mark.long
def test_what_was_published_before_it_was_given_up_is_told_and_can_be_taken_back(sandbox: Sandbox) -> None:
    """The driver that published it died, so that nobody knew."""
    gated(sandbox, 9)
    fed(sandbox, 8, 12)
    sandbox.run("bad", validate=True, expect=ExitCode.QUALITY_FAILED)
    accept(sandbox.ledger, sandbox.name, "bad", reason="a known outlier")
    sandbox.run("pub", validate=True, kill_at="sink-committed")
    told = sandbox.cli("retract", str(sandbox.file), "bad", "--reason", "wrong unit")
    assert (told.returncode, "if a run that died had published it before" in told.stderr) == (0, True), told.stderr
    fed(sandbox, 0, 3)
    sandbox.run("next", validate=True)
    why = (sandbox.ledger.known_run(sandbox.name, "next").judgement or {})["reasons"]
    assert [part for part in why if "batch 0 had been published by run pub when it was given up" in part], why
    sandbox.assert_exact()
    assert sandbox.ledger.lost(sandbox.name) == []
    refused = sandbox.cli("retract", str(sandbox.file), "bad", "--reason", "wrong unit")
    assert f"sluice retract {sandbox.name} pub --reason TEXT" in " ".join(refused.stderr.split())
    back = sandbox.cli("retract", str(sandbox.file), "pub", "--reason", "wrong unit")
    assert (back.returncode, sum(sandbox.sink().values())) == (0, 3), back.stderr
    sandbox.assert_balanced()


@pytest.mark.long
def test_what_was_left_out_before_it_was_accepted_is_told_and_can_be_redriven(sandbox: Sandbox) -> None:
    """The driver that left it out died, so that nobody knew."""
    gated(sandbox, 9)
    fed(sandbox, 8, 12)
    sandbox.run("bad", validate=True, expect=ExitCode.QUALITY_FAILED)
    give_up(sandbox.ledger, sandbox.name, "bad", reason="wrong unit")
    sandbox.run("out", validate=True, kill_at="sink-committed")
    told = sandbox.cli("accept", str(sandbox.file), "bad", "--reason", "right after all")
    assert (told.returncode, "a run that died had left it out" in told.stderr) == (0, True), told.stderr
    fed(sandbox, 0, 3)
    sandbox.run("next", validate=True)
    why = (sandbox.ledger.known_run(sandbox.name, "next").judgement or {})["reasons"]
    assert [part for part in why if "batch 0 had been left out by run out when it was accepted" in part], why
    sandbox.assert_balanced()
    assert (sum(sandbox.sink().values()), sum(len(r.range) for r in sandbox.ledger.lost(sandbox.name))) == (3, 4)
    refused = sandbox.cli("accept", str(sandbox.file), "bad", "--reason", "right after all")
    assert f"sluice redrive {sandbox.name}" in " ".join(refused.stderr.split()), refused.stderr


@pytest.mark.long
def test_what_is_given_up_need_not_be_read(sandbox: Sandbox) -> None:
    """While a batch waits for somebody, retention may remove its records."""
    gated(sandbox, 9)
    fed(sandbox, 0, 4)
    sandbox.run("first", validate=True)
    fed(sandbox, 8, 12)
    sandbox.run("bad", validate=True, expect=ExitCode.QUALITY_FAILED)
    give_up(sandbox.ledger, sandbox.name, "bad", reason="wrong")
    sandbox.topics.delete_records(sandbox.topic, {0: 4, 1: 4})
    fed(sandbox, 0, 4)
    sandbox.run("next", validate=True)
    sandbox.assert_balanced()
    assert sum(sandbox.sink().values()) == 8
    assert sum(len(row.range) for row in sandbox.ledger.lost(sandbox.name)) == 4


@pytest.mark.long
def test_a_fixed_suite_publishes_and_an_interval_that_fails_changes_nothing(sandbox: Sandbox) -> None:
    gated(sandbox, 9, on_failed="fail")
    fed(sandbox, 6, 12)
    sandbox.run("bad", validate=True, expect=ExitCode.QUALITY_FAILED)
    sandbox.run("later", validate=True, expect=ExitCode.QUALITY_FAILED)
    gated(sandbox, 11, on_failed="fail")
    sandbox.run("later", validate=True)
    sandbox.assert_exact()
    before = sandbox.rows()
    gated(sandbox, 9, on_failed="fail")
    day = ("2013-01-01T00:00:00Z", "2013-01-02T00:00:00Z")
    done = sandbox.run("day", validate=True, interval=day, expect=ExitCode.QUALITY_FAILED)
    assert "this run replaced nothing in sink and quarantine" in done.stderr
    assert sandbox.rows() == before
    sandbox.run("unjudged", interval=day)
    assert sandbox.sink() == sandbox.on_broker()


@pytest.mark.long
def test_rows_that_nobody_judged_are_judged_behind_the_next_run(sandbox: Sandbox) -> None:
    gated(sandbox, 9, on_failed="fail")
    fed(sandbox, 8, 12)
    sandbox.run("unjudged", kill_at="batch-recorded")
    fed(sandbox, 0, 4)
    sandbox.run("good", validate=True)
    sandbox.assert_exact()
    told = {run: sandbox.ledger.known_run(sandbox.name, run) for run in ("unjudged", "good")}
    assert {run: row.verdict for run, row in told.items()} == {"unjudged": "failed", "good": "failed"}
    (why,) = (told["good"].judgement or {})["reasons"]
    assert why.startswith("earlier_runs: unjudged, not judged before: expect_column_values_to_be_between on id")


def test_limits_count_before_anything_is_published(sandbox: Sandbox) -> None:
    sandbox.configure(quality={"when": "before_commit", "max_quarantined": 1})
    sandbox.feed(6, bad_every=3)
    done = sandbox.run("bad", validate=True, expect=ExitCode.QUALITY_FAILED)
    assert "max_quarantined: 2 of 6 records" in done.stderr
    assert (sandbox.sink(), sandbox.quarantine()) == ({}, {})


@pytest.mark.long
@pytest.mark.parametrize("kind", ["postgres", "iceberg", "files", "kafka"])
def test_other_sinks_are_judged_first_too(kind: str, request: pytest.FixtureRequest) -> None:
    sandbox: Sandbox = request.getfixturevalue(f"into_{kind}")
    gated(sandbox, 9)
    fed(sandbox, 0, 4)
    sandbox.run("first", validate=True)
    first = sandbox.sink()
    fed(sandbox, 6, 12)
    sandbox.run("bad", validate=True, kill_at="judged")
    assert sandbox.sink() == first
    sandbox.run("later", validate=True, expect=ExitCode.HELD)
    sandbox.run("bad", validate=True, expect=ExitCode.QUALITY_FAILED)
    assert sandbox.sink() == first
    accept(sandbox.ledger, sandbox.name, "bad", reason="a known outlier")
    sandbox.run("good", validate=True, kill_at="sink-committed")
    sandbox.run("good", validate=True)
    sandbox.assert_exact()
    fed(sandbox, 11, 14)
    sandbox.run("worse", validate=True, expect=ExitCode.QUALITY_FAILED)
    give_up(sandbox.ledger, sandbox.name, "worse", reason="wrong")
    fed(sandbox, 0, 2)
    sandbox.run("last", validate=True, kill_at="sink-committed")
    sandbox.run("last", validate=True)
    sandbox.assert_balanced()
    assert sum(len(row.range) for row in sandbox.ledger.lost(sandbox.name)) == 3
    assert sum(sandbox.sink().values()) == 12
