"""A pipeline begins again: later, where it stood, or from the beginning after its rows left; killed anywhere."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.chaos.test_redrive import assert_conserved, lost, redrive
from tests.fixtures.inside import without_spark
from tests.fixtures.runs import Sandbox

import reset as main

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

AGAIN = ("--from=earliest", "--truncate")


def reset(sandbox: Sandbox, *options: str, run: str | None = None, expect: int = 0, **extra: str) -> str:
    """Reset in this process: a reset needs no Spark session; return the error's text."""
    run = run or f"reset {sandbox.ledger.count(sandbox.name)}"
    asked = ["--pipeline", str(sandbox.file), "--run", run, "--reason", "another transform", *options]
    return without_spark(main, asked, sandbox.env(**extra), expect)


def proved(sandbox: Sandbox) -> None:
    deep = sandbox.cli("audit", "--deep", str(sandbox.file), "--json")
    assert deep.returncode == 0, deep.stdout + deep.stderr


@pytest.mark.parametrize(
    "point",
    [
        "epoch-closed",
        *(
            pytest.param(p, marks=pytest.mark.long)
            for p in ("before-sink-commit", "quarantine-emptied", "epoch-opened")
        ),
    ],
)
def test_a_killed_reset_is_finished_by_any_run_and_nothing_is_written_twice(sandbox: Sandbox, point: str) -> None:
    sandbox.feed(12, bad_every=4)
    sandbox.run("first")
    options = ("--reason", "another transform", *AGAIN)
    killed = sandbox.cli("reset", str(sandbox.file), *options, SLUICE_KILL_AT=point)
    assert killed.returncode not in (0, 1, 10), killed.stderr[-3000:]
    done = point != "before-sink-commit"
    assert not done or not sandbox.sink()
    sandbox.feed(4)
    sandbox.run("live")
    assert sandbox.account("live")["planned"] == (16 if done else 4)
    assert_conserved(sandbox)
    assert not sandbox.never_committed()
    reset(sandbox, *AGAIN, run="reset")
    assert not sandbox.sink()
    assert not sandbox.quarantine()
    reset(sandbox, "--from=latest", run="reset")
    assert not lost(sandbox), "the same run once more is the same reset"
    reset(sandbox, *AGAIN, run="the same once more")
    assert sandbox.ledger.account(sandbox.name, "the same once more")["reset"]["epoch"] is None
    proved(sandbox)
    sandbox.run("again")
    assert sandbox.account("again") == dict(planned=16, written=13, filtered=0, quarantined=3, absent=0, lost=0)
    assert sandbox.account("first")["written"] == 9, "what earlier runs did stays on record"
    assert not lost(sandbox)
    assert_conserved(sandbox)


@pytest.mark.long
@pytest.mark.parametrize("point", ["before-sink-commit", "epoch-closed", "epoch-opened"])
def test_what_a_reset_skips_is_open_and_redriven(sandbox: Sandbox, point: str) -> None:
    sandbox.feed(6)
    sandbox.run("first")
    sandbox.feed(5, bad_every=4)
    options = ("--reason", "the transform is broken", "--from", "latest")
    killed = sandbox.cli("reset", str(sandbox.file), *options, SLUICE_KILL_AT=point)
    assert killed.returncode not in (0, 1, 10), killed.stderr[-3000:]
    reset(sandbox, "--from=latest")
    assert sum(lost(sandbox).values()) == 5
    assert_conserved(sandbox)
    sandbox.feed(4)
    sandbox.run("second")
    assert sandbox.account("second")["planned"] == 4
    assert_conserved(sandbox)
    redrive(sandbox)
    assert not lost(sandbox)
    assert_conserved(sandbox)
    before = sandbox.cli("status", sandbox.name, "--json").stdout
    sandbox.ledger.rebuild()
    assert sandbox.cli("status", sandbox.name, "--json").stdout == before


@pytest.mark.long
def test_a_lost_checkpoint_an_earlier_start_and_a_run_at_work(sandbox: Sandbox) -> None:
    sandbox.feed(6)
    sandbox.run("first")
    shutil.rmtree(sandbox.home / "checkpoints" / sandbox.name)
    sandbox.feed(3)
    assert f"sluice reset {sandbox.name} --reason" in sandbox.run("second", expect=41).message
    assert "6 offsets would be written twice" in reset(sandbox, "--from=earliest", expect=10)
    with sandbox.ledger.acquire(sandbox.name, "at work"):
        reset(sandbox, expect=40)
    reset(sandbox)
    sandbox.run("second")
    assert sandbox.account("second")["planned"] == 3
    assert_conserved(sandbox)


@pytest.mark.long
def test_a_recreated_topic_is_read_from_its_beginning_when_the_former_rows_have_left(sandbox: Sandbox) -> None:
    sandbox.feed(6)
    sandbox.run("first")
    sandbox.topics.delete(sandbox.topic)
    sandbox.topics.create(sandbox.topic, 2, {"retention.ms": -1})
    sandbox.produced.clear()
    sandbox.feed(8, bad_every=4)
    assert "sluice reset" in sandbox.run("second", expect=22).message
    assert "deleted and recreated" in reset(sandbox, expect=10)
    assert "nobody can read their records" in reset(sandbox, *AGAIN, expect=10)
    reset(sandbox, *AGAIN, "--yes")
    assert not lost(sandbox)
    proved(sandbox)
    sandbox.run("second")
    assert_conserved(sandbox)
    sandbox.feed(2)
    sandbox.run("third")
    assert_conserved(sandbox)


@pytest.mark.long
def test_a_table_that_was_removed_or_rolled_back_is_filled_again(sandbox: Sandbox) -> None:
    sandbox.feed(6, bad_every=3)
    sandbox.run("first")
    assert sandbox.cli("retract", str(sandbox.file), f"{sandbox.topic}:1:0-1", "--reason", "wrong").returncode == 0
    redrive(sandbox)
    shutil.rmtree(sandbox.home / "table")
    sandbox.feed(2)
    assert "--truncate --from earliest" in sandbox.run("second", expect=41).message
    reset(sandbox, expect=41)
    reset(sandbox, *AGAIN)
    proved(sandbox)
    sandbox.run("second")
    assert_conserved(sandbox)
    part = f"{sandbox.topic}:1:0-1"
    assert sandbox.cli("retract", str(sandbox.file), part, "--reason", "wrong").returncode == 0
    redrive(sandbox, "--run", "back")
    assert_conserved(sandbox)
    table = sandbox.table()
    assert table is not None
    table.restore(0)
    assert "--truncate --from earliest" in sandbox.run("third", expect=41).message
    reset(sandbox, expect=41)
    reset(sandbox, *AGAIN)
    sandbox.run("third")
    assert_conserved(sandbox)


@pytest.mark.long
def test_what_the_log_holds_is_redriven_if_the_source_no_longer_has_it(sandbox: Sandbox) -> None:
    sandbox.configure(recovery="wal", kafka={"max_records_per_batch": 100})
    sandbox.feed(6)
    sandbox.run("first")
    sandbox.configure(recovery="wal", kafka={"max_records_per_batch": 100}, transform={"python": "poison:dying"})
    sandbox.feed(8)
    sandbox.run("landed", expect=None, POISON_IDS="6")
    assert len(sandbox.sink()) == 6, "landed, and not applied"
    sandbox.configure(recovery="wal", kafka={"max_records_per_batch": 100})
    sandbox.topics.delete_records(sandbox.topic, {0: 5, 1: 5})
    reset(sandbox)
    assert sum(lost(sandbox).values()) == 4
    proved(sandbox)
    sandbox.feed(2)
    sandbox.run("second")
    assert sandbox.account("second")["planned"] == 6
    assert_conserved(sandbox)
    redrive(sandbox)
    assert not lost(sandbox)
    assert_conserved(sandbox)
    part = [f"{sandbox.topic}:{n}:0-7" for n in (0, 1)]  # landed in both epochs
    assert sandbox.cli("retract", str(sandbox.file), *part, "--reason", "x").returncode == 0
    redrive(sandbox)
    assert not lost(sandbox)
    assert_conserved(sandbox)
    assert "the source no longer has" in reset(sandbox, *AGAIN, expect=10)
    listed = json.loads(sandbox.cli("reset", str(sandbox.file), "--reason", "x", *AGAIN, "--dry-run", "--json").stdout)
    assert sum(end - start for *_, start, end in listed["skipped"]) == 10
    reset(sandbox, *AGAIN, "--yes")
    sandbox.run("third")
    assert_conserved(sandbox)
    redrive(sandbox)
    assert not lost(sandbox)
    assert_conserved(sandbox)


@pytest.mark.long
def test_a_changed_window_is_written_by_the_new_definition(sandbox: Sandbox) -> None:
    def configure(size: str) -> None:
        window = {"time": "at", "size": size, "aggregates": {"n": "count(*)"}, "watermark": "0m"}
        sandbox.configure(decode={"json": {"schema": "at TIMESTAMP"}}, window=window)

    def feed(*hours: int) -> None:
        sandbox.produce([(0, b"k", json.dumps({"at": f"2026-01-01T{hour:02}:10:00Z"}).encode()) for hour in hours])

    def counts() -> list[int]:
        rows = sandbox.rows()
        return [] if rows is None else sorted(rows.column("n").to_pylist())

    configure("1h")
    feed(1, 1, 2, 3)
    sandbox.run("first")
    assert counts() == [1, 2], "that of three o'clock is open"
    configure("2h")
    feed(4)
    assert "sluice reset" in sandbox.run("second", expect=41).message
    assert "windows that are open are dropped" in reset(sandbox, expect=10)
    reset(sandbox, *AGAIN)
    assert counts() == []
    proved(sandbox)
    feed(9)
    sandbox.run("second")
    assert counts() == [1, 2, 2]
    proved(sandbox)
    configure("3h")
    reset(sandbox, "--yes")
    feed(10, 20)
    sandbox.run("third")
    assert counts() == [1, 2, 2], "the window of nine and ten o'clock was begun before"
    assert sandbox.account("third") == dict(planned=2, written=1, filtered=1, quarantined=0, absent=0, lost=0)
    proved(sandbox)
    sandbox.run("interval", interval=("2026-01-01", "2026-01-02"))
    assert counts() == [2, 2, 3]
    proved(sandbox)


@pytest.mark.long
@pytest.mark.parametrize("size", ["1h", pytest.param("30m", marks=pytest.mark.long)], ids=["sliding", "tumbling"])
def test_a_window_is_never_replaced_by_a_part_of_it(sandbox: Sandbox, size: str) -> None:
    """The new epoch has read only a part of the windows that the one before began. An interval makes them whole."""
    window = {
        "time": "at", "size": size, "slide": "30m", "aggregates": {"n": "count(*)"}, "watermark": "1h",
        "output": "update",
    }  # fmt: skip
    sandbox.configure(decode={"json": {"schema": "at TIMESTAMP"}}, window=window)
    fed: list[datetime] = []

    def feed(*times: str) -> None:
        fed.extend(datetime.fromisoformat(f"2026-01-01T{time}:00Z") for time in times)
        sandbox.produce([(0, b"k", json.dumps({"at": at.isoformat()}).encode()) for at in fed[-len(times) :]])

    def counts(of: Sequence[datetime]) -> Counter[datetime]:
        step = timedelta(minutes=30)
        firsts = [at - timedelta(minutes=at.minute % 30) for at in of]
        return Counter(first - n * step for first in firsts for n in range(2 if size == "1h" else 1))

    def held() -> Counter[datetime]:
        rows = sandbox.rows()
        assert rows is not None
        found = Counter({row["window_start"]: row["n"] for row in rows.to_pylist()})
        assert len(found) == rows.num_rows
        return found

    feed("01:10", "01:40", "02:10")
    sandbox.run("first")
    assert held() == (before := counts(fed))
    assert "windows that are open are updated no more" in reset(sandbox, expect=10)
    reset(sandbox, "--yes")
    feed("02:20", "02:40", "03:10", "01:30")
    sandbox.run("second", kill_at="sink-committed")
    sandbox.run("second")
    behind = Counter({start: n for start, n in counts(fed[3:]).items() if start > fed[2]})
    assert held() == before + behind
    moved = sandbox.ledger.windows(sandbox.name, "second")
    assert (moved["former"], moved["late"], moved["partly_late"]) == (2, 0, 1 if size == "1h" else 0)
    assert sandbox.account("second") == dict(planned=4, written=2, filtered=2, quarantined=0, absent=0, lost=0)
    told = json.loads(sandbox.cli("state", str(sandbox.file), "--json").stdout)
    assert {w["window_start"] for w in told["windows"]} == {round(start.timestamp() * 1000) for start in behind}
    proved(sandbox)
    feed("12:00")
    sandbox.run("third")
    sandbox.run("interval", interval=("2026-01-01", "2026-01-02"))
    assert held() == counts(fed)
    proved(sandbox)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["files", "postgres", "iceberg"])
def test_other_sinks_begin_again_too(kind: str, request: pytest.FixtureRequest) -> None:
    sandbox: Sandbox = request.getfixturevalue(f"into_{kind}")
    sandbox.configure(quality={"max_quarantined": "100%"})
    sandbox.feed(8, bad_every=4)
    sandbox.run("first")
    killed = sandbox.cli(
        "reset", str(sandbox.file), "--reason", "x", *AGAIN, SLUICE_KILL_AT="epoch-closed", **sandbox.env()
    )
    assert killed.returncode not in (0, 1, 10), killed.stderr[-3000:]
    assert not sandbox.sink()
    sandbox.feed(4)
    sandbox.run("second")
    assert sandbox.account("second")["planned"] == 12
    sandbox.assert_exact()
    shutil.rmtree(sandbox.home / "checkpoints" / sandbox.name)
    sandbox.feed(2)
    sandbox.run("third", expect=41)
    reset(sandbox)
    sandbox.run("third")
    sandbox.assert_exact()


@pytest.mark.long
@pytest.mark.parametrize("recovery", ["replay", "wal", "ignore_range"])
def test_a_topic_begins_again_later_and_where_it_stood(into_kafka: Any, recovery: str) -> None:
    sandbox: Sandbox = into_kafka
    sandbox.configure(recovery=recovery, quality={"max_quarantined": "100%"})
    sandbox.feed(8, bad_every=4)
    sandbox.run("first")
    sandbox.feed(4)
    options = ("--reason", "x", "--from", "latest")
    killed = sandbox.cli("reset", str(sandbox.file), *options, SLUICE_KILL_AT="epoch-closed")
    assert killed.returncode not in (0, 1, 10), killed.stderr[-3000:]
    sandbox.feed(2)
    sandbox.run("second")
    assert sandbox.account("second")["planned"] == 2
    assert sum(lost(sandbox).values()) == 4
    assert "does not take such rows back" in reset(sandbox, *AGAIN, expect=10)
    shutil.rmtree(sandbox.home / "checkpoints" / sandbox.name)
    sandbox.feed(2)
    sandbox.run("third", expect=41)
    reset(sandbox)
    sandbox.run("third")
    assert sandbox.account("third")["planned"] == 2
    sandbox.assert_balanced()
    assert sum((sandbox.sink() + sandbox.quarantine()).values()) == 12
    assert set((sandbox.sink() + sandbox.quarantine()).values()) == {1}
    redrive(sandbox)
    assert not lost(sandbox)
    assert sandbox.sink() + sandbox.quarantine() == sandbox.on_broker()  # audit --deep refuses a topic
    sandbox.assert_balanced()
