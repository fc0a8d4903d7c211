"""What was lost or refused is driven again: from the log, from Kafka, from the quarantine; once."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.fixtures.runs import Offset, Sandbox, good, refuse_a_topic_made_anew

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

DYING = {"python": "poison:dying"}


def redrive(sandbox: Sandbox, *arguments: str, expect: int = 0, **extra: str) -> str:
    done = sandbox.cli("redrive", str(sandbox.file), "--no-validate", *arguments, **extra)
    assert done.returncode == expect, done.stderr[-5000:]
    return done.stdout + done.stderr


def lost(sandbox: Sandbox) -> Counter[Offset]:
    spans = [row.range for row in sandbox.ledger.lost(sandbox.name)]
    return Counter((r.topic, r.partition, offset) for r in spans for offset in range(r.start, r.end))


def assert_conserved(sandbox: Sandbox) -> None:
    """Each record is in the sink, in the quarantine, or open as lost; once; and the books agree."""
    assert sandbox.sink() + sandbox.quarantine() + lost(sandbox) == Counter(sandbox.produced)
    deep = sandbox.cli("audit", "--deep", str(sandbox.file), "--json")
    assert deep.returncode == 0, deep.stdout + deep.stderr


def versions(sandbox: Sandbox) -> list[int]:
    return [table.version() if (table := sandbox.table(path)) else -1 for path in ("table", "table_quarantine")]


@pytest.mark.long
def test_what_was_lost_to_a_poison_is_written_once_it_no_longer_is_one(sandbox: Sandbox) -> None:
    sandbox.configure(transform=DYING, recovery="ignore_range", kafka={"max_records_per_batch": 10})
    sandbox.feed(20, bad_every=6)
    sandbox.run("lossy", POISON_IDS="3,7,15")
    assert sorted(n for *_, n in lost(sandbox)) == [1, 3, 7]  # ids 3, 7, 15 lie in partition 1
    assert_conserved(sandbox)

    redrive(sandbox, "--run", "again", POISON_IDS="7")
    assert [row.range.start for row in sandbox.ledger.lost(sandbox.name)] == [3]
    assert "poison: 7" in sandbox.ledger.lost(sandbox.name)[0].reason
    assert sandbox.account("again") == dict(planned=2, written=2, filtered=0, quarantined=0, absent=0, lost=0)
    assert_conserved(sandbox)

    listed = json.loads(sandbox.cli("redrive", str(sandbox.file), "--dry-run", "--json").stdout)
    assert [(item["start"], item["end"], item["held by"]) for item in listed] == [(3, 4, "kafka")]
    redrive(sandbox, "--of", "nobody", expect=10)
    redrive(sandbox, "--range", f"{sandbox.topic}:1:0-3")
    assert len(lost(sandbox)) == 1
    redrive(sandbox, "--of", "lossy", "--range", f"{sandbox.topic}:1:0-100")
    assert not lost(sandbox)
    assert_conserved(sandbox)

    before = versions(sandbox)
    assert "nothing to redrive" in redrive(sandbox)
    assert versions(sandbox) == before
    sandbox.feed(2)
    sandbox.run("next")
    assert_conserved(sandbox)


def test_lost_records_of_a_topic_that_is_made_anew_while_they_are_redriven_stay_lost(sandbox: Sandbox) -> None:
    sandbox.configure(transform=DYING, recovery="ignore_batch")
    sandbox.feed(6)
    sandbox.run("lossy", POISON_IDS="1")
    assert lost(sandbox) == Counter(sandbox.produced)
    sandbox.configure(transform={"python": "gate:passing"})
    driver = sandbox.start("again", gate_at="rows-staged", redriven="lost")
    refuse_a_topic_made_anew(sandbox, driver)
    assert not sandbox.sink()
    assert lost(sandbox) == Counter(sandbox.produced)


@pytest.mark.long
@pytest.mark.parametrize(
    "points",
    [["batch-started", "rows-staged", "before-sink-commit"], ["sink-committed", "quarantine-committed"]],
    ids=["before-the-commit", "after-it"],
)
def test_a_redrive_that_is_killed_redrives_nothing_twice(sandbox: Sandbox, points: list[str]) -> None:
    sandbox.configure(transform=DYING, recovery="ignore_batch", kafka={"max_records_per_batch": 6})
    for number, point in enumerate(points):
        first = len(sandbox.produced)
        sandbox.feed(6, bad_every=4)
        sandbox.run(f"lossy-{number}", POISON_IDS=str(first + 1))
        assert len(lost(sandbox)) == 6
        killed = sandbox.cli("redrive", str(sandbox.file), "--no-validate", SLUICE_KILL_AT=point)
        assert killed.returncode not in (0, 1), killed.stderr[-3000:]
        if point in ("sink-committed", "quarantine-committed"):
            sandbox.run(f"live-{number}")  # any run enters what the killed one committed
            assert not lost(sandbox)
        else:
            redrive(sandbox)
        assert not lost(sandbox)
        assert_conserved(sandbox)
    assert sandbox.orphans() == sandbox.orphans("table_quarantine") == set()


@pytest.mark.parametrize(
    "point",
    [
        "sink-committed",
        *(pytest.param(p, marks=pytest.mark.long) for p in ("before-sink-commit", "quarantine-committed")),
        pytest.param("batch-recorded", marks=pytest.mark.long),
    ],
)
def test_what_is_dropped_leaves_the_quarantine_once_and_is_on_the_books(sandbox: Sandbox, point: str) -> None:
    sandbox.feed(12, bad_every=3)
    sandbox.produce([(0, b"k", None), (1, b"k", None)])
    sandbox.run("live")
    before, held = sandbox.sink(), sandbox.quarantine()
    drop = ("quarantine", str(sandbox.file), "--rule", "json", "--drop", "--reason", "test data")
    killed = sandbox.cli(*drop, SLUICE_KILL_AT=point)
    assert killed.returncode not in (0, 1, 10), killed.stderr[-3000:]
    sandbox.run("next")  # any run enters what the killed one committed
    done = sandbox.cli(*drop, "--json")
    assert done.returncode == (0 if point == "before-sink-commit" else 10), done.stderr
    assert (sandbox.sink(), sum(sandbox.quarantine().values())) == (before, 2)
    assert sum(held.values()) == 6
    told = [e["payload"] for e in sandbox.ledger.events(sandbox.name) if e["type"] == "RangeRedriven"]
    assert [e["source"] for e in told] == [{"kind": "dropped", "reason": "test data"}]
    split = Counter[str]()
    for run in sandbox.ledger.runs(sandbox.name):
        split.update(sandbox.account(run.run) if run.kind == "redrive" else {})
    assert (split["planned"], split["filtered"], split["written"]) == (4, 4, 0)
    deep = sandbox.cli("audit", "--deep", str(sandbox.file), "--json")
    assert deep.returncode == 0, deep.stdout + deep.stderr


@pytest.mark.long
def test_what_is_older_than_a_retention_is_dropped_and_nothing_else(sandbox: Sandbox) -> None:
    moments = [(datetime.now(UTC) - timedelta(days=age)).replace(microsecond=0) for age in (5, 4, 3, 2)]
    sandbox.produce([(n % 2, None, b"nothing", int(at.timestamp() * 1000)) for n, at in enumerate(moments)])
    sandbox.run("live")
    assert sum(sandbox.quarantine().values()) == 4
    drop = ("quarantine", str(sandbox.file), "--drop", "--reason", "old", "--before", moments[2].isoformat(), "--json")
    done = sandbox.cli(*drop)
    assert done.returncode == 0, done.stderr
    assert "2 records are to be dropped" in done.stderr
    assert sandbox.quarantine() == Counter({(sandbox.topic, n % 2, 1): 1 for n in (2, 3)})
    again = sandbox.cli(*drop)
    assert (again.returncode, "there is nothing to drop" in again.stderr) == (0, True), "each day is such a day"
    deep = sandbox.cli("audit", "--deep", str(sandbox.file), "--json")
    assert deep.returncode == 0, deep.stdout + deep.stderr


def segments(sandbox: Sandbox) -> list[Path]:
    return sorted((sandbox.home / "logs" / sandbox.name / "batches").glob("*/*.parquet"))


def test_a_lost_range_is_redriven_from_the_segment_that_holds_it_and_no_other(sandbox: Sandbox) -> None:
    sandbox.configure(transform=DYING, recovery="wal", kafka={"max_records_per_batch": 6})
    sandbox.feed(18)
    sandbox.run("r", expect=1, POISON_IDS="7")  # in the second of three batches
    sandbox.configure(transform=DYING, recovery="ignore_range", kafka={"max_records_per_batch": 6})
    sandbox.run("r", POISON_IDS="7")
    assert list(lost(sandbox)) == [(sandbox.topic, 1, 3)]
    sandbox.topics.delete_records(sandbox.topic, {0: 9, 1: 9})
    files = segments(sandbox)
    needed = [f for f in files if "e1-000001" in str(f)]
    assert len(files) == 6
    spoilt = [f for f in files if f not in needed]
    for file in spoilt:
        file.write_bytes(b"not a segment")
    told = redrive(sandbox, "--run", "again")
    assert "1 written" in told
    assert not lost(sandbox)
    assert sandbox.sink() == Counter(sandbox.produced)
    (event,) = [e for e in sandbox.ledger.events(sandbox.name, "again") if e["type"] == "RangeRedriven"]
    assert event["payload"]["source"] == {"kind": "log"}


@pytest.mark.long
def test_what_is_nowhere_any_more_stays_lost_and_is_named(sandbox: Sandbox) -> None:
    sandbox.feed(6)
    sandbox.run("first")
    sandbox.feed(8)
    sandbox.topics.delete_records(sandbox.topic, {0: 5})
    sandbox.configure(recovery="ignore_range")
    sandbox.run("second")
    assert sorted(lost(sandbox)) == [(sandbox.topic, 0, 3), (sandbox.topic, 0, 4)]
    before = versions(sandbox)
    told = redrive(sandbox)
    assert f"{sandbox.topic}-0 [3, 5)" in told
    assert "2 offsets are still lost" in told
    assert versions(sandbox) == before
    assert len(lost(sandbox)) == 2
    assert_conserved(sandbox)


def test_quarantined_records_that_decode_after_a_fix_move_to_the_sink(sandbox: Sandbox) -> None:
    sandbox.configure(kafka={"max_records_per_batch": 100})
    sandbox.produce([(0, b"k", b'{"id": "7", "name": "seven"}'), (1, None, b"broken"), (0, None, good(1))])
    sandbox.produce([(1, None, b'{"id": "8"}'), (0, None, b'{"id": "x9"}')])
    sandbox.run("first")
    assert sandbox.account("first")["quarantined"] == 4
    assert "no quarantined record decodes" in sandbox.run("too early", redriven="quarantined").stderr

    transform = {"sql": "SELECT cast(id AS BIGINT) AS id, name, _topic, _partition, _offset, _timestamp FROM source"}
    sandbox.configure(
        decode={"json": {"schema": "id STRING, name STRING"}}, rows="filter",
        transform={"sql": transform["sql"] + " WHERE try_cast(id AS BIGINT) IS NOT NULL"},
    )  # fmt: skip
    killed = sandbox.cli(
        "redrive", str(sandbox.file), "--quarantined", "--no-validate", SLUICE_KILL_AT="sink-committed"
    )
    assert killed.returncode not in (0, 1)
    sandbox.run("fixed", redriven="quarantined")
    told = {r.run: sandbox.account(r.run) for r in sandbox.ledger.runs(sandbox.name) if r.kind == "redrive"}
    counted = Counter()
    for account in told.values():
        counted.update(account)
    assert (counted["written"], counted["filtered"]) == (2, 1)
    assert Counter(sandbox.rows().column("id").to_pylist()) == Counter([1, 7, 8])
    (left,) = sandbox.rows("table_quarantine").to_pylist()
    assert (left["value"], left["_errors"][0]["rule"], left["_run"]) == (b"broken", "json", "first")
    before = versions(sandbox)
    sandbox.run("again", redriven="quarantined")
    assert versions(sandbox) == before
    deep = sandbox.cli("audit", "--deep", str(sandbox.file), "--json")
    assert deep.returncode == 0, deep.stdout + deep.stderr
