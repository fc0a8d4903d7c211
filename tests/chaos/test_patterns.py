"""Topics by a pattern: born and deleted between runs and while a run is going, killed in between."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.fixtures.runs import Sandbox, good

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

LONG = pytest.mark.long
IGNORING = ("ignore_range", pytest.param("ignore_batch", marks=LONG))
STRATEGIES = ("replay", *(pytest.param(s, marks=LONG) for s in ("wal", "hot", "ignore_range")))


def by_pattern(sandbox: Sandbox, **keys: Any) -> None:
    kafka = {"pattern": rf"{sandbox.topic}(\..*)?", "exclude": r".*\.not", "max_records_per_batch": 6}
    sandbox.configure(**{"source": {"kafka": kafka}, **keys})


def born(sandbox: Sandbox, suffix: str, records: int, *, partitions: int = 2) -> str:
    name = f"{sandbox.topic}.{suffix}"
    sandbox.topics.create(name, partitions, {"retention.ms": -1})
    sandbox.produce([(n % partitions, None, good(n)) for n in range(records)], name)
    return name


def audited(sandbox: Sandbox) -> None:
    """Each record once, none left out, and the proof of it by the sink."""
    assert sandbox.sink() == Counter(sandbox.produced)
    deep = sandbox.cli("audit", "--deep", str(sandbox.file), "--json")
    assert deep.returncode == 0, deep.stdout + deep.stderr


def lag(sandbox: Sandbox) -> dict[str, Any]:
    (told,) = json.loads(sandbox.cli("lag", str(sandbox.file), "--json").stdout)
    return dict(told)


@pytest.mark.parametrize("recovery", STRATEGIES)
def test_a_topic_that_appears_is_read_from_its_first_record(sandbox: Sandbox, recovery: str) -> None:
    by_pattern(sandbox, recovery=recovery)
    sandbox.feed(8)
    sandbox.run("first")
    born(sandbox, "b", 7)
    excluded = born(sandbox, "not", 3)
    sandbox.produced = [r for r in sandbox.produced if r[0] != excluded]
    sandbox.feed(2)
    assert lag(sandbox)["lag"] == 9
    sandbox.run("killed", kill_at="batch-started")
    born(sandbox, "c", 5, partitions=1)  # between the plan of a batch and the run that repeats it
    sandbox.run("second")
    audited(sandbox)
    assert lag(sandbox)["lag"] == 0


@pytest.mark.long
def test_a_topic_that_is_born_while_a_run_goes_on_belongs_to_the_next(sandbox: Sandbox) -> None:
    by_pattern(sandbox, transform={"python": "gate:passing"})
    sandbox.feed(8)
    driver = sandbox.start("first", gate_at="batch-started")
    try:
        driver.await_gate()
        name = born(sandbox, "b", 4)
        driver.open_gate()
        assert driver.wait().code == 0
    finally:
        driver.process.kill()
    assert name not in {topic for topic, *_ in sandbox.sink()}
    sandbox.run("second")
    audited(sandbox)


@pytest.mark.parametrize("recovery", IGNORING)
@pytest.mark.parametrize(
    "point", [None, *(pytest.param(p, marks=LONG) for p in ("before-sink-commit", "epoch-closed", "epoch-opened"))]
)
def test_what_was_seen_of_a_deleted_topic_is_lost_by_name_and_others_go_on(
    sandbox: Sandbox, recovery: str, point: str | None
) -> None:
    by_pattern(sandbox)
    sandbox.feed(8)
    name = born(sandbox, "b", 6)
    sandbox.run("first")
    held = Counter(sandbox.produced)
    unread = sandbox.produce([(0, None, good(n)) for n in range(6)], name)
    sandbox.feed(6)
    sandbox.run("killed", kill_at="batch-started")
    sandbox.topics.delete(name)
    sandbox.produced = [r for r in sandbox.produced if r not in set(unread)]

    assert lag(sandbox)["verdict"] == "RECREATED"
    before = sandbox.sink()
    told = sandbox.run("replayed", expect=21).message
    assert repr(name) in told
    assert f"6 offsets were seen and not read: {name}-0 [3, 9)" in told
    assert sandbox.sink() == before == held
    by_pattern(sandbox, recovery=recovery)
    if point is not None:
        sandbox.run("going", kill_at=point)
    sandbox.run("on")
    lost = {(r.range.topic, r.range.partition, r.range.start, r.range.end) for r in sandbox.ledger.lost(sandbox.name)}
    assert lost == {(name, 0, 3, 9)}
    audited(sandbox)
    if point is None:
        assert sandbox.account("on") == dict(planned=12, written=6, filtered=0, quarantined=0, absent=0, lost=6)
        assert repr(name) in str(sandbox.ledger.account(sandbox.name, "on")["notes"])
    sandbox.feed(2)
    by_pattern(sandbox)
    sandbox.run("later")
    audited(sandbox)
    assert lag(sandbox)["lag"] == 0

    sandbox.topics.create(name, 2)
    sandbox.topics.produce(name, [(0, None, good(1))])
    assert "deleted and recreated" in sandbox.run("again", expect=22).message


@pytest.mark.long
def test_a_reset_goes_on_without_a_deleted_topic(sandbox: Sandbox) -> None:
    by_pattern(sandbox)
    sandbox.feed(4)
    name = born(sandbox, "b", 6)
    sandbox.run("first")
    unread = sandbox.produce([(1, None, good(n)) for n in range(4)], name)
    sandbox.run("killed", kill_at="run-planned")
    sandbox.topics.delete(name)
    sandbox.produced = [r for r in sandbox.produced if r not in set(unread)]
    assert "sluice reset" in sandbox.run("refused", expect=21).message
    reset = sandbox.cli("reset", str(sandbox.file), "--reason", "it was deleted")
    assert reset.returncode == 0, reset.stderr
    assert [str(r.range) for r in sandbox.ledger.lost(sandbox.name)] == [f"{name}-1 [3, 7)"]
    sandbox.feed(3)
    sandbox.run("on")
    audited(sandbox)


def test_a_topic_that_is_created_again_between_runs_is_refused(sandbox: Sandbox) -> None:
    by_pattern(sandbox)
    name = born(sandbox, "b", 6)
    sandbox.run("first")
    before = sandbox.sink()
    sandbox.topics.recreate(name, 2)
    sandbox.topics.produce(name, [(0, None, good(n)) for n in range(20)])
    assert "deleted and recreated" in sandbox.run("second", expect=22).message
    assert sandbox.sink() == before


def test_what_a_new_topic_no_longer_has_is_refused_or_lost_and_never_passed_over(sandbox: Sandbox) -> None:
    by_pattern(sandbox)
    sandbox.feed(4)
    sandbox.run("first")
    name = born(sandbox, "b", 8)
    sandbox.topics.delete_records(name, {0: 3})
    sandbox.produced = [r for r in sandbox.produced if not (r[0] == name and r[1] == 0 and r[2] < 3)]
    assert f"3 planned offsets are gone from the source: {name}-0 [0, 3)" in sandbox.run("second", expect=21).message
    by_pattern(sandbox, recovery="ignore_range")
    sandbox.run("third")
    audited(sandbox)
    assert [str(r.range) for r in sandbox.ledger.lost(sandbox.name)] == [f"{name}-0 [0, 3)"]


def test_a_pattern_that_matches_nothing_is_an_error(sandbox: Sandbox) -> None:
    kafka = {"pattern": f"{sandbox.topic}x+"}
    sandbox.configure(source={"kafka": kafka})
    assert "matches source.kafka.pattern" in sandbox.run("first", expect=10).message
    assert lag(sandbox)["error"]


@LONG
def test_what_was_lost_of_a_topic_that_the_pattern_no_longer_matches_is_found(sandbox: Sandbox) -> None:
    by_pattern(sandbox)
    sandbox.feed(2)
    name = born(sandbox, "b", 4, partitions=1)
    sandbox.run("first")
    retracted = sandbox.cli("retract", str(sandbox.file), "first", "--reason", "wrong")
    assert retracted.returncode == 0, retracted.stderr
    sandbox.configure(source={"kafka": {"pattern": sandbox.topic}})
    assert sandbox.cli("reset", str(sandbox.file), "--reason", "narrower").returncode == 0
    planned = json.loads(sandbox.cli("redrive", str(sandbox.file), "--dry-run", "--json").stdout)
    assert {row["held by"] for row in planned} == {"kafka"}
    some = sandbox.cli("redrive", str(sandbox.file), "--range", f"{name}:0:0-3")
    assert some.returncode == 0, some.stderr
    sandbox.run("rest", redriven="lost")
    audited(sandbox)


@LONG
def test_a_topic_that_the_pattern_no_longer_matches_is_named(sandbox: Sandbox) -> None:
    by_pattern(sandbox)
    sandbox.feed(2)
    born(sandbox, "b", 2)
    sandbox.run("first")
    sandbox.configure(source={"kafka": {"pattern": sandbox.topic}})
    assert f"{sandbox.topic}.b', which its file no longer matches" in sandbox.run("second", expect=10).message
    reset = sandbox.cli("reset", str(sandbox.file), "--reason", "narrower")
    assert reset.returncode == 0, reset.stderr
    sandbox.feed(2)
    sandbox.run("third")
    # what was read of it is still in the table and in Kafka
    sandbox.run("again", interval=("2020-01-01T00:00:00Z", datetime.now(UTC).isoformat()))
    assert sandbox.account("again")["written"] == 6
    assert sandbox.cli("retract", str(sandbox.file), "again", "--reason", "wrong").returncode == 10, (
        "an interval's rows"
    )
    audited(sandbox)
    by_pattern(sandbox)
    assert "a second time" in sandbox.run("wider", expect=10).message
    assert sandbox.cli("reset", str(sandbox.file), "--reason", "wider").returncode == 0
    sandbox.run("fourth")
    audited(sandbox)
