"""The windows of an interval are made again from all of their records; everything else stays as it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient
from pyspark.sql import SparkSession
from tests.chaos.boxed import BOXES, made
from tests.chaos.cases import BATCH
from tests.chaos.commands import deep, notes
from tests.chaos.models.planned import MINUTE, milliseconds, minute
from tests.chaos.models.windows import HOURLY, PANES, SESSIONS, SLIDING, UPDATED, Stream, event, rows_of, stream_of
from tests.fixtures.runs import KeptSandbox, Sandbox, await_that, consume

from sluice.local.kafka import Broker, Topics
from sluice.run.interval import Interval
from sluice_spark.runs.window_interval import WindowIntervalRun

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka, pytest.mark.long]

GAP = 10 * MINUTE
POINTS = ("run-planned", *BATCH)


def interval(first: int, last: int) -> tuple[str, str]:
    return minute(first).isoformat(), minute(last).isoformat()


def closed_to(sandbox: Sandbox, epoch: int = 1) -> datetime:
    return datetime.fromtimestamp(
        sandbox.ledger.facts.reach(sandbox.name, range(epoch, epoch + 1)).closed_to / 1000, UTC
    )


def all_at_once(stream: Stream, first: int, last: int, until: datetime, *, add: int = 0) -> Counter[Any]:
    """The windows that begin between two minutes and end by a time, from every record, late or not."""
    found: dict[Any, list[int]] = {}
    for at, key, value in filter(None, stream.records.values()):
        for start, end in stream.spans(at):
            if minute(first) <= start < minute(last) and end <= until:
                found.setdefault((start, end, key), []).append(value + add)
    return rows_of(found)


def elsewhere(rows: Counter[Any], first: int, last: int, until: datetime) -> Counter[Any]:
    return Counter({r: n for r, n in rows.items() if not (minute(first) <= r[0] < minute(last) and r[1] <= until)})


def adding(number: int, to: str = "v") -> dict[str, str]:
    return {"sql": f"SELECT at, k, {to} + {number} AS v, _topic, _partition, _offset, _timestamp FROM source"}


def fed(sandbox: Sandbox, window: dict[str, Any], *, recovery: str = "replay") -> Stream:
    """Three runs, with late records and refused ones."""
    stream = stream_of(sandbox, window, recovery=recovery, limit=100)
    for run, (first, last) in {"first": (0, 120), "second": (60, 200), "third": (0, 240)}.items():
        stream.feed(first, last, 12, bad=True, also=[minute(65)] if run == "third" else [], run=run)
    assert stream.expected()[1], "some came late"
    return stream


@pytest.mark.parametrize(
    ("window", "recovery", "sink"),
    [
        (SLIDING, "replay", "delta"), (HOURLY, "wal", "delta"), (UPDATED, "replay", "delta"),
        (PANES, "replay", "delta"), (SLIDING, "replay", "iceberg"), (UPDATED, "replay", "files"),
        (SLIDING, "replay", "postgres"),
    ],
    ids=["sliding", "by-the-log", "update", "panes", "iceberg", "files", "postgres"],
)  # fmt: skip
def test_interval_makes_its_windows_again_and_no_others(
    request: pytest.FixtureRequest, window: dict[str, Any], recovery: str, sink: str
) -> None:
    sandbox = made(BOXES[sink], request)
    stream = fed(sandbox, window, recovery=recovery)
    before, until, split = stream.held(), closed_to(sandbox), sandbox.total("written")
    refused = sandbox.quarantine()
    again = all_at_once(stream, 60, 120, until)
    assert again != before - elsewhere(before, 60, 120, until), "the late ones are in their windows"
    for run in ("march", "again"):
        sandbox.run(run, interval=interval(60, 120))
        assert stream.held() == elsewhere(before, 60, 120, until) + again
        assert stream.held(run) == again
        assert sandbox.ledger.runs.account(sandbox.name, run).get("windows", {})["replaced"] > 0
        # live runs counted the late ones, and refused what is still refused
        assert sandbox.total("written") == split
        assert sandbox.quarantine() == refused
        sandbox.assert_balanced()
    # open windows are left to live runs, which go on as if nothing had been
    sandbox.run("the rest", interval=interval(0, 600))
    assert stream.held() == elsewhere(before, 0, 600, until) + all_at_once(stream, 0, 600, until)
    assert any("are left to live runs" in note for note in notes(sandbox, "the rest"))
    stream.feed(240, 400, 12, run="fourth")
    live = stream.expected()[0]
    assert stream.held() == elsewhere(live, 0, 600, until) + all_at_once(stream, 0, 600, until)
    assert sink != "delta" or deep(sandbox)["problems"] == []


def test_sliding_interval_keeps_a_refused_record_until_all_of_its_windows_have_it(sandbox: Sandbox) -> None:
    stream = stream_of(sandbox, SLIDING, limit=100)
    stream.configure(rules=[{"name": "known", "sql": {"passes": "k <> 'odd'"}}])
    (odd,) = sandbox.produce([(0, b"", event(minute(65), "odd", 5))])
    stream.feed(60, 240, 16, run="live")
    stream.configure()
    for run, first, starts, refused in (
        ("part", 60, {60}, 1),
        ("whole", 40, {40, 50, 60}, 0),
        ("again", 60, {40, 50, 60}, 0),
    ):
        sandbox.run(run, interval=interval(first, 80))
        assert {row[0] for row in stream.held() if row[2] == "odd"} == {minute(start) for start in starts}
        assert sandbox.quarantine() == Counter([odd] * refused)
        assert any("in windows of the interval now" in note for note in notes(sandbox, run)) is bool(refused)
        assert deep(sandbox, "--windows")["problems"] == []
        sandbox.assert_balanced()


@pytest.mark.timeout(1800)
def test_killed_interval_leaves_all_of_its_windows_or_none(sandbox: Sandbox) -> None:
    stream = fed(sandbox, SLIDING)
    until, refused = closed_to(sandbox), sandbox.quarantine()
    for number, point in enumerate(POINTS):
        before = stream.held()
        stream.configure(transform=adding(number + 1))
        sandbox.run(f"killed {number}", interval=interval(30, 130), kill_at=point)
        new = elsewhere(before, 30, 130, until) + all_at_once(stream, 30, 130, until, add=number + 1)
        there = POINTS.index(point) >= POINTS.index("sink-committed")
        assert stream.held() == (new if there else before)
        if number % 2:
            sandbox.run("live in between")
        else:
            sandbox.run(f"killed {number}", interval=interval(30, 130))
        assert stream.held() == (new if there or not number % 2 else before)
        assert sandbox.quarantine() == refused
        sandbox.assert_balanced()
    assert sandbox.never_committed() == set()


def test_interval_needs_the_records_of_its_own_windows_alone(sandbox: Sandbox) -> None:
    stream = stream_of(sandbox, HOURLY)
    stream.feed(0, 60, 10, run="first")
    sandbox.topics.delete_records(sandbox.topic, sandbox.topics.ends(sandbox.topic))
    stream.feed(60, 300, 20, run="second")
    until, before = closed_to(sandbox), stream.held()
    sandbox.run("there", interval=interval(60, 180))
    assert stream.held() == elsewhere(before, 60, 180, until) + all_at_once(stream, 60, 180, until)
    sandbox.run("gone", interval=interval(0, 60), expect=21)
    stream.configure(transform=adding(1))  # another event time: the times that were noted are of no use
    sandbox.run("all", interval=interval(60, 180), expect=21)
    sandbox.assert_balanced()


def test_windows_of_times_without_records_are_removed(sandbox: Sandbox) -> None:
    """The file moved records to another time, and was put right again: no batch has records of that time."""
    stream = stream_of(sandbox, HOURLY, limit=100)
    for run, (first, last) in {"first": (0, 60), "second": (600, 700)}.items():
        stream.feed(first, last, 6, run=run)
    before = stream.held()
    stream.configure(transform={"sql": "SELECT at + interval 5 hours AS at, * EXCEPT (at) FROM source"})
    sandbox.run("moved", interval=interval(300, 360))
    assert stream.held() - before
    stream.configure()
    sandbox.run("put right", interval=interval(300, 360))
    assert stream.held() == before
    assert sandbox.ledger.runs.account(sandbox.name, "put right").get("windows", {})["rows"] == 0
    sandbox.assert_balanced()


def test_interval_is_refused_when_records_were_compacted_away(
    spark: SparkSession, broker: Broker, topics: Topics, topic: Callable[..., str], tmp_path: Path
) -> None:
    name = topic(2, cleanup_policy="compact", min_cleanable_dirty_ratio=0.01, max_compaction_lag_ms=200)
    sandbox = KeptSandbox(tmp_path / "home", broker, topics, name, spark=spark)
    stream = stream_of(sandbox, HOURLY, limit=100)
    stream.feed(0, 200, 12)  # one key, in the segment that Kafka does not compact
    sandbox.run("live")
    sandbox.run("before", interval=interval(0, 60))
    held = stream.held()
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        config = {"cleanup.policy": "compact", "segment.ms": "100", "max.compaction.lag.ms": "200"}
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, configs=config)])

    def compacted() -> bool:
        sandbox.produce([(0, b"", b"{}"), (1, b"", b"{}")])  # rolls the segment
        return len(consume(broker, name)) < 12

    await_that(compacted, "the first records were compacted away")
    assert "compaction" in sandbox.run("after", interval=interval(0, 60), expect=21).message
    assert stream.held() == held


# --- sessions ------------------------------------------------------------------------------------------------------


def whole_sessions(stream: Stream) -> list[tuple[str, datetime, datetime, list[int]]]:
    """The sessions of every record, late or not."""
    found: list[tuple[str, datetime, datetime, list[int]]] = []
    for k, at, v in sorted((k, at, v) for at, k, v in filter(None, stream.records.values())):
        if found and found[-1][0] == k and at <= found[-1][2]:
            _, start, _, values = found.pop()
            found.append((k, start, at + GAP, [*values, v]))
        else:
            found.append((k, at, at + GAP, [v]))
    return found


def made_again(stream: Stream, rows: Counter[Any], first: int, last: int, until: datetime) -> Counter[Any]:
    """The table after an interval has replaced the sessions that begin between two minutes, and are closed."""
    whole = whole_sessions(stream)

    def mine(start: datetime, end: datetime) -> bool:
        return minute(first) <= start < minute(last) and end <= until

    def leaves(row: Any) -> bool:
        start, end, key = row[:3]
        if start < minute(first) or end > until:
            return False
        of = [(s, e) for k, s, e, _ in whole if k == key and s <= start < e]
        return mine(*of[0]) if of else start < minute(last)

    stay = Counter({row: n for row, n in rows.items() if not leaves(row)})
    return stay + rows_of({(s, e, k): values for k, s, e, values in whole if mine(s, e)})


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("recovery", "points", "sink"),
    [
        ("replay", ("sink-committed",), "delta"),
        ("wal", POINTS, "delta"),
        *(("replay", ("sink-committed",), sink) for sink in ("iceberg", "postgres")),
    ],
)
def test_interval_makes_its_sessions_again(
    request: pytest.FixtureRequest, recovery: str, points: tuple[str, ...], sink: str
) -> None:
    sandbox = made(BOXES[sink], request)
    stream = stream_of(sandbox, SESSIONS, recovery=recovery, limit=100)
    for run, (first, last, count) in {"first": (0, 120, 16), "second": (60, 200, 14), "third": (0, 240, 14)}.items():
        # one session of three parts: the one in the middle comes when the others are written
        joining = [minute(n) for n in {"first": (58, 76), "third": (67,)}.get(run, ())]
        stream.feed(first, last, count, bad=True, also=joining, run=run)
    assert stream.expected()[1], "some came late"
    before, until, split = stream.held(), closed_to(sandbox), sandbox.total("written")
    due = made_again(stream, before, 50, 120, until)
    assert sum(due.values()) < sum(before.values()), "parts of sessions are put together"
    for point in points:
        sandbox.run("march", interval=interval(50, 120), kill_at=point)
    for run in ("march", "again"):
        sandbox.run(run, interval=interval(50, 120))
        assert stream.held() == due
        assert sandbox.total("written") == split
        sandbox.assert_balanced()
    sandbox.run("the rest", interval=interval(0, 600))
    every = made_again(stream, due, 0, 600, until)
    assert stream.held() == every
    live = stream.expected()[0]
    stream.feed(240, 400, 12, run="fourth")
    assert stream.held() == every + (stream.expected()[0] - live)
    if sink != "delta":
        return
    report = deep(sandbox, "--windows")
    assert report["problems"] == []
    assert any("an interval made them again" in why for why in report["unproved"])


def test_record_that_decodes_now_joins_the_session_of_all_records(sandbox: Sandbox) -> None:
    """Alone, one of the two would begin a session of the interval, and the other one would not belong to its own."""
    stream = stream_of(sandbox, SESSIONS, limit=100)
    stream.give([(minute(n), "a", 1) for n in (56, 58, 90, 94)])
    # in a session that begins before the interval; in two places of one that is its own
    odd = sandbox.produce([(0, b"", event(minute(n), "a", "7")) for n in (62, 101, 101)])
    stream.give([(minute(n), "a", 1) for n in (110, 300)])
    sandbox.run("live")
    assert set(odd) <= set(sandbox.quarantine())
    decode = {"json": {"schema": "at TIMESTAMP, k STRING, v STRING"}}
    stream.configure(decode=decode, transform=adding(0, to="cast(v AS INT)"))
    sandbox.run("march", interval=interval(60, 95))
    assert stream.held() == Counter([(minute(56), minute(68), "a", 2, 2), (minute(90), minute(120), "a", 5, 17)])
    assert set(sandbox.quarantine()) & set(odd) == {odd[0]}
    sandbox.assert_balanced()
    sandbox.run("before", interval=interval(50, 60))
    assert stream.held()[minute(56), minute(72), "a", 3, 9] == 1
    assert not set(sandbox.quarantine()) & set(odd)
    sandbox.assert_balanced()


def test_sessions_that_the_file_divides_are_replaced_together_or_not_at_all(sandbox: Sandbox) -> None:
    stream = stream_of(sandbox, SESSIONS, limit=100)
    values = [(40, 1), (48, 2), (56, 1), (63, 1), (70, 2), (77, 1), (300, 1)]
    stream.give([(minute(n), "a", v) for n, v in values])
    sandbox.run("live")
    whole, refused = stream.held(), sandbox.quarantine()
    assert whole == Counter([(minute(40), minute(87), "a", 6, 8)])
    # records of value 2, which hold the session together, are refused now
    stream.configure(rules=[{"name": "small", "sql": {"passes": "v < 2"}}])
    # the row begins before; its end belongs to a session that begins behind
    for first, last in ((50, 75), (30, 75)):
        message = sandbox.run(f"{first}", interval=interval(first, last), expect=10).message
        assert "2026-03-01T00:40:00" in message
        assert "2026-03-01T01:27:00" in message
        assert (stream.held(), sandbox.quarantine()) == (whole, refused)
    sandbox.run("all", interval=interval(30, 90))
    parts = ((40, 50, 1), (56, 73, 2), (77, 87, 1))
    assert stream.held() == Counter((minute(a), minute(b), "a", n, n) for a, b, n in parts)
    assert len(sandbox.quarantine()) == 2
    sandbox.assert_balanced()


def test_intervals_whose_sessions_may_touch_are_rivals() -> None:
    def note(first: int, last: int, reach: int | None) -> dict[str, Any]:
        windows = {"rows": 1} if reach is None else {"rows": 1, "reach": milliseconds(minute(reach))}
        return {"interval": Interval(minute(first), minute(last)).key, "windows": windows}

    mine = Interval(minute(60), minute(120))
    run: Any = SimpleNamespace(interval=mine, scope=mine.key, _reach=milliseconds(minute(130)))
    others = {
        "behind, and its sessions begin before mine end": note(120, 180, 190),
        "behind": note(140, 180, 190),
        "before, and its sessions end behind my beginning": note(0, 60, 61),
        "before": note(0, 60, 59),
        "itself": note(60, 120, 130),
        "windows with a size": note(120, 180, None),
    }
    rivals = [name for name, other in others.items() if WindowIntervalRun._reaches(run, other)]
    assert rivals == [name for name in others if ", and its sessions" in name]
