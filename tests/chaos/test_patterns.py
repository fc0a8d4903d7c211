"""Topics by a pattern: created and deleted between runs and during them, and drivers are killed in between."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from tests.chaos.cases import LONG
from tests.chaos.commands import deep, drain, json_of, said
from tests.chaos.drivers import PASSING, gated, opened
from tests.fixtures.runs import Sandbox, good

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]


def by_pattern(sandbox: Sandbox, **keys: Any) -> None:
    kafka = {"pattern": rf"{sandbox.topic}(\..*)?", "exclude": r".*\.not", "max_records_per_batch": 6}
    sandbox.configure(**{"source": {"kafka": kafka}, **keys})


def created(sandbox: Sandbox, suffix: str, records: int, *, partitions: int = 2) -> str:
    name = f"{sandbox.topic}.{suffix}"
    sandbox.topics.create(name, partitions, {"retention.ms": -1})
    sandbox.produce([(n % partitions, None, good(n)) for n in range(records)], name)
    return name


def audited(sandbox: Sandbox) -> None:
    """Each record once, none left out, and the proof of it by the sink."""
    assert sandbox.sink() == Counter(sandbox.produced)
    deep(sandbox)


def lag(sandbox: Sandbox) -> dict[str, Any]:
    (row,) = json.loads(sandbox.cli("lag", str(sandbox.file), "--json").stdout)
    return dict(row)


@LONG
@pytest.mark.parametrize("recovery", ["replay", "wal", "hot", "ignore_range"])
def test_pattern_topic_that_appears_is_read_from_its_first_record_beside_kills(sandbox: Sandbox, recovery: str) -> None:
    by_pattern(sandbox, recovery=recovery)
    drain(sandbox, 8, "first")
    created(sandbox, "b", 7)
    excluded = created(sandbox, "not", 3)
    sandbox.produced = [r for r in sandbox.produced if r[0] != excluded]
    sandbox.feed(2)
    assert lag(sandbox)["lag"] == 9
    sandbox.run("killed", kill_at="batch-started")
    created(sandbox, "c", 5, partitions=1)  # between the plan of a batch and the run that repeats it
    sandbox.run("second")
    audited(sandbox)
    assert lag(sandbox)["lag"] == 0


@LONG
def test_pattern_topic_that_is_created_during_a_run_belongs_to_the_next(sandbox: Sandbox) -> None:
    by_pattern(sandbox, **PASSING)
    sandbox.feed(8)
    driver = gated(sandbox, "batch-started", "first")
    name = created(sandbox, "b", 4)
    opened(driver)
    assert name not in {topic for topic, *_ in sandbox.sink()}
    sandbox.run("second")
    audited(sandbox)


@LONG
@pytest.mark.parametrize("recovery", ["ignore_range", "ignore_batch"])
@pytest.mark.parametrize("point", [None, "before-sink-commit", "epoch-closed", "epoch-opened"])
def test_pattern_topic_that_was_deleted_is_lost_by_name_as_far_as_it_was_seen_and_others_go_on(
    sandbox: Sandbox, recovery: str, point: str | None
) -> None:
    by_pattern(sandbox)
    sandbox.feed(8)
    name = created(sandbox, "b", 6)
    sandbox.run("first")
    held = Counter(sandbox.produced)
    unread = sandbox.produce([(0, None, good(n)) for n in range(6)], name)
    drain(sandbox, 6, "killed", kill_at="batch-started")
    sandbox.topics.delete(name)
    sandbox.produced = [r for r in sandbox.produced if r not in set(unread)]

    assert lag(sandbox)["verdict"] == "RECREATED"
    before = sandbox.sink()
    assert f"{name}-0 [3, 9)" in sandbox.run("replayed", expect=21).message
    assert sandbox.sink() == before == held
    by_pattern(sandbox, recovery=recovery)
    if point is not None:
        sandbox.run("going", kill_at=point)
    sandbox.run("on")
    lost = {
        (r.range.topic, r.range.partition, r.range.start, r.range.end)
        for r in sandbox.ledger.offsets.lost(sandbox.name)
    }
    assert lost == {(name, 0, 3, 9)}
    audited(sandbox)
    if point is None:
        assert sandbox.account("on") == dict(planned=12, written=6, filtered=0, quarantined=0, absent=0, lost=6)
        assert repr(name) in str(sandbox.ledger.runs.account(sandbox.name, "on")["notes"])
    sandbox.feed(2)
    by_pattern(sandbox)
    sandbox.run("later")
    audited(sandbox)
    assert lag(sandbox)["lag"] == 0

    sandbox.topics.create(name, 2)
    sandbox.topics.produce(name, [(0, None, good(1))])
    sandbox.run("again", expect=22)


def test_pattern_that_matches_no_topic_is_an_error(sandbox: Sandbox) -> None:
    sandbox.configure(source={"kafka": {"pattern": f"{sandbox.topic}x+"}})
    assert "source.kafka.pattern" in sandbox.run("first", expect=10).message
    assert lag(sandbox)["error"]


@LONG
def test_pattern_redrives_offsets_of_a_topic_that_it_no_longer_matches(sandbox: Sandbox) -> None:
    by_pattern(sandbox)
    sandbox.feed(2)
    name = created(sandbox, "b", 4, partitions=1)
    sandbox.run("first")
    said(sandbox, "retract", "first", "--reason", "wrong")
    sandbox.configure(source={"kafka": {"pattern": sandbox.topic}})
    said(sandbox, "reset", "--reason", "narrower")
    assert {row["held by"] for row in json_of(sandbox, "redrive", "--dry-run")} == {"kafka"}
    said(sandbox, "redrive", "--range", f"{name}:0:0-3")
    sandbox.run("rest", redriven="lost")
    audited(sandbox)
