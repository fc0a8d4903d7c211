"""A deep audit recomputes closed windows from the records, and finds what somebody did to the table."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.chaos.test_window_intervals import fed, interval, minute
from tests.chaos.test_windows import HOURLY, PANES, SESSIONS, SLIDING, Sessions, Stream, Updated
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]


def deep(sandbox: Sandbox, *, balanced: bool = True) -> dict[str, Any]:
    done = sandbox.cli("audit", str(sandbox.file), "--deep", "--windows", "--json")
    assert done.returncode == (0 if balanced else 1), done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def changed(sandbox: Sandbox, change: Callable[[DeltaTable], None]) -> list[str]:
    """The problems that a change of the table makes; the table is as it was afterwards."""
    table = DeltaTable(str(sandbox.home / "table"))
    version = table.version()
    change(table)
    problems = deep(sandbox, balanced=False)["problems"]
    table = DeltaTable(str(sandbox.home / "table"))
    table.restore(version)
    return problems


def appended(table: DeltaTable, *, number: int = 0, **values: Any) -> None:
    """Append a row of the table, with other values."""
    rows = table.to_pyarrow_table()
    row = {**rows.sort_by([("window_start", "ascending"), ("k", "ascending")]).to_pylist()[number], **values}
    write_deltalake(table, pa.Table.from_pylist([row], schema=rows.schema), mode="append")


def test_what_is_done_to_the_windows_of_a_table_is_found(sandbox: Sandbox) -> None:
    stream = fed(sandbox, HOURLY)
    held = stream.held()
    report = deep(sandbox)
    assert report["problems"] == report["unproved"] == []
    assert report["tables"]["windows"]["windows"] == sum(held.values()), "the late ones are not held against it"
    first, second, third, *_ = sorted(held)
    mine, gone = (f"k = '{key}' AND window_start = '{start.isoformat()}'" for start, _, key, *_ in (first, second))

    def tampered(table: DeltaTable) -> None:
        appended(table, number=2)
        appended(table, k="zz")
        appended(table, window_start=minute(600), window_end=minute(660))  # where no window is closed
        table.update({"n": "n + 1"}, predicate=mine)
        table.delete(gone)

    def at(row: tuple[Any, ...], key: str | None = None) -> str:
        return f"window {row[0].isoformat()} to {row[1].isoformat()}, k {key or row[2]}: "

    n, total = second[3:]
    problems = changed(sandbox, tampered)
    assert len(problems) == 5
    for said, start in (
        (f"{at(first)}n is {first[3] + 1} in the sink, and {first[3]} by the records. ", first[0]),
        (f"{at(second)}the sink has no such row, and by the records it has n {n}, total {total}. ", second[0]),
        (f"{at(third)}the sink has a row that no record accounts for, or has it twice: n {third[3]}, ", third[0]),
        (f"{at(first, 'zz')}the sink has a row that no record accounts for", first[0]),
        (f"window {minute(600).isoformat()} to {minute(660).isoformat()}, k ", minute(600)),
    ):
        (problem,) = [p for p in problems if p.startswith(said)]
        assert f"sluice run {sandbox.name} --start {start.isoformat()} --end " in problem
    assert deep(sandbox)["problems"] == []

    # an interval has the late ones in its windows, and nobody else's
    sandbox.run("again", interval=interval(60, 120))
    assert stream.held() != held
    assert deep(sandbox)["problems"] == []
    stream.feed(240, 400, 12)
    stream.feed(0, 120, 4)
    sandbox.run("fourth")
    report = deep(sandbox)
    assert report["problems"] == report["unproved"] == []
    assert report["tables"]["windows"]["windows"] == sum(stream.held().values())

    # what cannot be read any more is not wrong, and neither is what another file made
    ends = sandbox.topics.ends(sandbox.topic)
    sandbox.topics.delete_records(sandbox.topic, {p: end - 1 for p, end in ends.items()})
    table = DeltaTable(str(sandbox.home / "table"))
    table.update({"n": "n + 1"}, predicate=mine)
    report = deep(sandbox)
    assert report["problems"] == []
    assert any("are in neither the source nor the write-ahead log any more" in text for text in report["unproved"])
    stream.configure(transform={"sql": "SELECT at, k, v + 1 AS v, _topic, _partition, _offset, _timestamp FROM source"})
    assert any("the pipeline file makes other windows" in text for text in deep(sandbox)["unproved"])


@pytest.mark.parametrize(
    ("window", "kind", "recovery"),
    [
        pytest.param(PANES, Stream, "wal", marks=pytest.mark.long),
        pytest.param(SLIDING, Stream, "replay", marks=pytest.mark.long),
        pytest.param({**SLIDING, "output": "update"}, Updated, "replay", marks=pytest.mark.long),
    ],
    ids=["panes-by-the-log", "sliding", "update"],
)
def test_windows_of_each_kind_are_proved(
    sandbox: Sandbox, window: dict[str, Any], kind: type[Stream], recovery: str
) -> None:
    stream = fed(sandbox, window, kind=kind, recovery=recovery)
    if recovery == "wal":  # Kafka has forgotten them, and the log has not
        sandbox.topics.delete_records(sandbox.topic, sandbox.topics.ends(sandbox.topic))
    report = deep(sandbox)
    assert report["problems"] == report["unproved"] == []
    assert report["tables"]["windows"]["windows"] > 0
    start, _, key, n, _ = min(stream.held())
    wrong = f"k = '{key}' AND window_start = '{start.isoformat()}'"
    (problem,) = changed(sandbox, lambda table: table.update({"n": f"{n + 1}"}, predicate=wrong))
    assert f"n is {n + 1} in the sink, and {n} by the records" in problem
    assert f"--end {(start + timedelta(minutes=10)).isoformat()}" in problem


@pytest.mark.long
@pytest.mark.parametrize("window", [HOURLY, SLIDING], ids=["tumbling", "sliding"])
def test_records_of_another_file_are_not_put_into_windows_by_the_present_one(
    sandbox: Sandbox, window: dict[str, Any]
) -> None:
    stream = fed(sandbox, window)
    later = "SELECT at + INTERVAL 9 HOURS AS at, k, v, _topic, _partition, _offset, _timestamp FROM source"
    stream.configure(transform={"sql": later})
    stream.give([(minute(400), "zz", 1), (minute(410), "zz", 1)])  # nine hours later, which the present file does not
    sandbox.run("other")
    stream.configure()
    stream.give([(minute(1200), "zz", 1), (minute(1210), "zz", 1)])
    sandbox.run("behind")
    report = deep(sandbox)
    assert report["problems"] == []
    (unproved,) = report["unproved"]
    first = 940 - (60 if window is HOURLY else 30)
    assert unproved.startswith(f"windows that begin from {(minute(first) + timedelta(milliseconds=1)).isoformat()} to ")
    assert f" to {minute(950).isoformat()}: the pipeline file makes other windows" in unproved
    told = sum(n for (start, *_), n in stream.held().items() if not minute(first) < start <= minute(950))
    assert report["tables"]["windows"]["windows"] == told > 0, "all others are proved"
    sound = min(row for row in stream.held() if row[2] != "zz")
    wrong = f"k = '{sound[2]}' AND window_start = '{sound[0].isoformat()}'"
    (problem,) = changed(sandbox, lambda table: table.update({"n": "99"}, predicate=wrong))
    assert f"n is 99 in the sink, and {sound[3]} by the records" in problem


@pytest.mark.long
def test_windows_of_another_length_are_not_held_against_the_present_one(sandbox: Sandbox) -> None:
    stream = Stream(sandbox, HOURLY, limit=100)
    stream.configure()
    for time, run in ((55, "first"), (300, "second")):  # the first one's window begins 55 minutes before its record
        stream.give([(minute(time), "a", 1)])
        sandbox.run(run)
    done = sandbox.cli("reset", str(sandbox.file), "--reason", "shorter", "--yes")
    assert done.returncode == 0, done.stderr
    stream.window = {**HOURLY, "size": "30m"}
    stream.configure()
    for time, run in ((500, "third"), (700, "fourth")):
        stream.give([(minute(time), "a", 1)])
        sandbox.run(run)
    assert [row[:2] for row in sorted(stream.held())] == [(minute(0), minute(60)), (minute(480), minute(510))]
    report = deep(sandbox)
    assert report["problems"] == []
    assert report["tables"]["windows"]["windows"] == 1
    assert any("the pipeline file makes other windows" in text for text in report["unproved"])
    assert any(text.startswith(f"windows that begin from {minute(0).isoformat()} ") for text in report["unproved"])
    wrong = f"window_start = '{minute(480).isoformat()}'"
    (problem,) = changed(sandbox, lambda table: table.update({"n": "9"}, predicate=wrong))
    assert "n is 9 in the sink, and 1 by the records" in problem


@pytest.mark.long
def test_doubles_may_differ_in_their_last_bits(sandbox: Sandbox) -> None:
    window = {**HOURLY, "aggregates": {"n": "count(*)", "total": "avg(v / 7D)", "any": "first(v)"}}
    fed(sandbox, window)
    report = deep(sandbox)
    assert report["problems"] == []
    (unproved,) = report["unproved"]
    assert unproved.startswith("window.aggregates: any: first(v) depends on the order of records")
    table = DeltaTable(str(sandbox.home / "table"))
    table.update({"total": "total * 1.0000000001D"})
    assert deep(sandbox)["problems"] == []
    table.update({"total": "total * 1.00001D"})
    assert deep(sandbox, balanced=False)["problems"]


def in_sessions(sandbox: Sandbox, *, recovery: str = "replay", **window: Any) -> tuple[Sessions, dict[int, int]]:
    """Four runs, in which each thing that can happen to a session happens to one of the key c; and where one ended."""
    stream = Sessions(sandbox, {**SESSIONS, **window}, recovery=recovery, limit=100)
    stream.configure()
    batches: dict[str, tuple[tuple[int, ...], int]] = {
        "first": ((0, 18), 35),
        "second": ((9, 29), 70),  # 9 joins the two that are open; the watermark 40 closes them, and that of 29
        "third": ((35, 20, 5), 120),  # 35 is not late, and its session was written; the others are late
        "fourth": ((95, 104), 200),
    }
    earlier, ends = 0, dict[str, dict[int, int]]()
    for run, (times, clock) in batches.items():
        stream.feed(earlier, clock, 6, bad=run != "first")
        stream.give([(minute(clock), "b", 1), *((minute(time), "c", time) for time in times)])
        sandbox.run(run)
        earlier, ends[run] = max(0, clock - 60), sandbox.topics.ends(sandbox.topic)
    spans = {(start, end) for start, end, key, *_ in stream.held() if key == "c"}
    assert spans == {(minute(a), minute(b)) for a, b in ((0, 28), (29, 39), (35, 45), (95, 114))}
    assert stream.expected()[1] >= 2
    assert stream.open()
    stream.assert_exact()
    return stream, ends["first"]


def of(key: str, first: int) -> str:
    return f"k = '{key}' AND window_start = '{minute(first).isoformat()}'"


@pytest.mark.long
def test_what_is_done_to_sessions_is_found(sandbox: Sandbox) -> None:
    stream, _ = in_sessions(sandbox)
    table = DeltaTable(str(sandbox.home / "table"))
    whole = sum(stream.held().values())
    appended(table, window_start=minute(29), window_end=minute(39), k="c", n=1, total=29)
    table.delete(of("c", 0))
    table.update({"n": "7"}, predicate=of("c", 35))
    report = deep(sandbox, balanced=False)
    assert report["tables"]["windows"]["windows"] == whole + 1, "all of them, and one twice"
    gone, twice, other = report["problems"]
    assert report["unproved"] == []
    names = [
        f"window {minute(a).isoformat()} to {minute(b).isoformat()}, k c: " for a, b in ((0, 28), (29, 39), (35, 45))
    ]
    assert gone.startswith(f"{names[0]}the sink has no such row, and by the records it has n 3, total 27. ")
    assert twice.startswith(f"{names[1]}the sink has a row that no record accounts for, or has it twice: n 1, total 29")
    assert other.startswith(f"{names[2]}n is 7 in the sink, and 1 by the records. ")
    for problem, start in ((gone, 0), (twice, 29), (other, 35)):
        assert f"sluice run {sandbox.name} --start {minute(start).isoformat()}" in problem
        assert problem.endswith("with an earlier start, if it is a part of a session that begins before")


@pytest.mark.long
def test_sessions_are_proved_from_the_log(sandbox: Sandbox) -> None:
    aggregates = {**SESSIONS["aggregates"], "any": "first(v)"}
    stream, _ = in_sessions(sandbox, recovery="wal", aggregates=aggregates)
    sandbox.topics.delete_records(sandbox.topic, sandbox.topics.ends(sandbox.topic))
    report = deep(sandbox)
    (unproved,) = report["unproved"]
    assert unproved.startswith("window.aggregates: any: first(v) depends on the order of records")
    assert report["tables"]["windows"]["windows"] == sum(stream.held().values())
    (problem,) = changed(sandbox, lambda table: table.update({"total": "3"}, predicate=of("c", 29)))
    assert "total is 3 in the sink, and 29 by the records" in problem


@pytest.mark.long
def test_sessions_are_proved_as_far_as_their_records_are_there(sandbox: Sandbox) -> None:
    stream, read = in_sessions(sandbox)
    later = "SELECT at + INTERVAL 9 HOURS AS at, k, v, _topic, _partition, _offset, _timestamp FROM source"
    stream.configure(transform={"sql": later})
    stream.give([(minute(400), "c", 1)])  # which this file puts nine hours later, and the file of before would not
    sandbox.run("fifth")
    stream.configure()
    report = deep(sandbox)
    assert report["problems"] == []
    (unproved,) = report["unproved"]
    assert unproved.startswith(f"sessions that last at any time from {minute(940).isoformat()} to ")
    assert "the pipeline file makes other windows" in unproved
    assert report["tables"]["windows"]["windows"] == sum(stream.held().values())

    sandbox.topics.delete_records(sandbox.topic, read)
    table = DeltaTable(str(sandbox.home / "table"))
    for first in (0, 95):
        table.update({"n": "9"}, predicate=of("c", first))
    report = deep(sandbox, balanced=False)
    (problem,) = report["problems"]
    assert "n is 9 in the sink, and 2 by the records" in problem
    assert problem.startswith(f"window {minute(95).isoformat()} to ")
    assert any("are in neither the source nor the write-ahead log any more" in text for text in report["unproved"])
