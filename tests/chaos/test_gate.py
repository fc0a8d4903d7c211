"""``quality.when: before_commit``: a batch that fails is not published, and waits for a decision."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.chaos.cases import long
from tests.chaos.commands import below, lost, suite
from tests.fixtures.runs import Sandbox, good

from sluice.errors import ExitCode
from sluice.run.circuit_breaker import waiting
from sluice.run.decision import accept, give_up

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

_EPOCH = 1_356_998_400_000


def gated(sandbox: Sandbox, most: int, *, on_failed: str = "hold", **keys: Any) -> None:
    """Write a suite that no batch with an ``id`` above ``most`` passes."""
    quality = {**suite(sandbox, below(most)), "when": "before_commit", "on_failed": on_failed}
    sandbox.configure(quality=quality, **keys)


def fed(sandbox: Sandbox, start: int, end: int, at: int = _EPOCH) -> None:
    sandbox.produce([(n % 2, b"k", good(n), at + n) for n in range(start, end)])


def refused(sandbox: Sandbox, run: str, **options: Any) -> str:
    """Run, with a verdict that fails."""
    return sandbox.run(run, validate=True, expect=ExitCode.QUALITY_FAILED, **options).stderr


def waits(sandbox: Sandbox, run: str) -> tuple[int, int] | None:
    return waiting(sandbox.ledger, sandbox.name, sandbox.ledger.runs.known(sandbox.name, run))


@pytest.mark.parametrize(
    ("kind", "recovery", "points"),
    [
        ("delta", "replay", ()),
        *long(
            *(("delta", recovery, ("judged", "run-planned")) for recovery in ("replay", "wal")),
            *((kind, "replay", ("judged",)) for kind in ("postgres", "iceberg", "files", "kafka")),
        ),
    ],
)
def test_batch_that_fails_is_published_once_when_it_is_accepted(
    request: pytest.FixtureRequest, kind: str, recovery: str, points: tuple[str, ...]
) -> None:
    """Batches before it are published; killed behind the verdict, it is not judged again."""
    sandbox: Sandbox = request.getfixturevalue("sandbox" if kind == "delta" else f"into_{kind}")
    gated(sandbox, 9, recovery=recovery)
    fed(sandbox, 0, 6)
    sandbox.run("first", validate=True)
    first = sandbox.sink()
    assert sum(first.values()) == 6
    assert sandbox.ledger.runs.known(sandbox.name, "first").verdict == "passed"
    fed(sandbox, 6, 12)
    for point in points:
        sandbox.run("bad", validate=True, kill_at=point)
        assert sandbox.sink() == first
        assert waits(sandbox, "bad") == (1, 1)
    stderr = refused(sandbox, "bad")
    assert "ForeachBatchUserFuncException" not in stderr, "a verdict is no traceback"
    assert waits(sandbox, "bad") == (1, 1)
    sandbox.run("later", validate=True, expect=ExitCode.HELD)
    assert sandbox.sink() == first
    accept(sandbox.ledger, sandbox.name, "bad", reason="a known outlier")
    fed(sandbox, 0, 3)
    sandbox.run("good", validate=True, kill_at="sink-committed")
    sandbox.run("good", validate=True)
    sandbox.assert_exact()
    row = sandbox.ledger.runs.known(sandbox.name, "good")
    assert row.verdict in ("warned", "passed"), "an accepted batch does not fail the run that publishes it"
    if kind != "delta":
        before = sandbox.sink()
        fed(sandbox, 11, 14)
        refused(sandbox, "worse")
        give_up(sandbox.ledger, sandbox.name, "worse", reason="wrong")
        fed(sandbox, 0, 2)
        sandbox.run("last", validate=True, kill_at="sink-committed")
        sandbox.run("last", validate=True)
        sandbox.assert_balanced()
        assert (sandbox.sink() - before).total() == 2
        assert lost(sandbox).total() == 3


@pytest.mark.long
@pytest.mark.parametrize("by", [[], ["name"]], ids=["whole", "partitions"])
def test_rows_that_workers_leave_to_spark_are_judged_with_the_others(sandbox: Sandbox, by: list[str]) -> None:
    """They are in files of another write."""
    gated(sandbox, 9, sink={"delta": {"path": "table", "partition_by": by}})
    fed(sandbox, 0, 4)
    aside = [(0, b"k", json.dumps({"id": n, "name": n}).encode(), _EPOCH + n) for n in (4, 5, 99)]
    for number, run in enumerate(("both", "only")):
        sandbox.produce(aside[number : number + 1])
        sandbox.run(run, validate=True)
        assert sandbox.ledger.runs.known(sandbox.name, run).verdict == "passed"
    sandbox.assert_exact()
    fed(sandbox, 6, 8)
    sandbox.produce(aside[2:])
    assert "expect_column_values_to_be_between on id (slice): at most 9, 1 unexpected" in refused(sandbox, "bad")


@pytest.mark.long
def test_batch_that_is_given_up_is_not_read_again(sandbox: Sandbox) -> None:
    """Nor by a redrive, which is judged first, too. That it can be redriven is in recorded states."""
    gated(sandbox, 9)
    fed(sandbox, 8, 12)
    refused(sandbox, "bad")
    give_up(sandbox.ledger, sandbox.name, "bad", reason="wrong unit")
    gated(sandbox, 12, recovery="wal")
    message = sandbox.run("switched", validate=True, expect=ExitCode.CONFIG).message
    assert "batch 0" in message, "another epoch would read and publish the batch"
    gated(sandbox, 9)
    fed(sandbox, 0, 4)
    sandbox.run("good", validate=True)
    refused(sandbox, "still", redriven="lost")
    assert (sandbox.sink().total(), lost(sandbox).total()) == (4, 4)
    fed(sandbox, 8, 12)
    refused(sandbox, "worse")
    give_up(sandbox.ledger, sandbox.name, "worse", reason="wrong")
    sandbox.topics.delete_records(sandbox.topic, sandbox.topics.ends(sandbox.topic))
    fed(sandbox, 0, 4)
    sandbox.run("next", validate=True)
    sandbox.assert_balanced()
    assert (sandbox.sink().total(), lost(sandbox).total()) == (8, 8)


@pytest.mark.long
def test_interval_that_fails_changes_nothing_and_a_fixed_suite_publishes(sandbox: Sandbox) -> None:
    gated(sandbox, 9, on_failed="fail")
    fed(sandbox, 6, 12)
    refused(sandbox, "bad")
    refused(sandbox, "later")
    gated(sandbox, 11, on_failed="fail")
    sandbox.run("later", validate=True)
    sandbox.assert_exact()
    before = sandbox.rows()
    gated(sandbox, 9, on_failed="fail")
    day = ("2013-01-01T00:00:00Z", "2013-01-02T00:00:00Z")
    refused(sandbox, "day", interval=day)
    assert sandbox.rows() == before
    sandbox.run("unjudged", interval=day)
    assert sandbox.sink() == sandbox.on_broker()
