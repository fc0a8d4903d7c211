"""Windows over several runs: open windows and their state, ``flush``, changes of the file, dead attempts.

Their kills are in ``test_operators.py``.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.chaos.cases import long
from tests.chaos.commands import listed, said
from tests.chaos.models import windows
from tests.chaos.models.planned import BEGIN, EPOCH, MINUTE, milliseconds
from tests.chaos.models.windows import HOURLY, PANES, SESSIONS, SLIDING, Stream, stream_of
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]


@pytest.mark.long
@pytest.mark.parametrize(
    "window", [SLIDING, *long(HOURLY, PANES, SESSIONS)], ids=["sliding", "tumbling", "panes", "sessions"]
)
def test_open_windows_stay_open_between_runs(sandbox: Sandbox, window: dict[str, Any]) -> None:
    stream = stream_of(sandbox, window)
    # the first watermark is that of 1970: Spark takes older records for late ones
    stream.feed(0, 90, 8, bad=True, also=[EPOCH - timedelta(hours=12), EPOCH - timedelta(minutes=5)], run="first")
    stream.feed(60, 200, 14, run="second")
    stream.feed(0, 240, 14, bad=True)  # some of them late
    sandbox.run("third")
    sandbox.run("idle")
    stream.assert_exact()
    rows, late, partly = stream.expected()
    assert rows
    assert late
    assert bool(partly) is ("slide" in window)
    said = stream.assert_open()
    assert stream.open()
    delay = milliseconds(EPOCH + windows.length(window["watermark"]))
    assert all(w["closes_at"] == w["window_end"] + delay > said["watermark"] + delay for w in said["windows"])
    assert (said["shares"], said["definition"]["by"]) == (2, ["k"])
    *_, state = stream.model()
    kept = stream.state("--key", "k=a")["rows"]
    assert {tuple(row["key"].items()) for row in kept} == {(("k", "a"),)}
    mine = {
        (milliseconds(start), milliseconds(end)): [len(values), sum(values)]
        for (start, end, k), values in state.items()
        if k == "a"
    }
    if "panes" not in window:
        assert {(row["window_start"], row["window_end"]) for row in kept} == set(mine)
    if "size" in window and "panes" not in window:
        assert {row["window_end"]: list(json.loads(row["state"]).values()) for row in kept} == {
            end: values for (_, end), values in mine.items()
        }


@pytest.mark.long
@pytest.mark.parametrize(
    ("window", "point"),
    [(SLIDING, None), *((window, "closing-planned") for window in (SLIDING, PANES, SESSIONS))],
    ids=["sliding", "sliding-killed", "panes-killed", "sessions-killed"],
)
def test_windows_of_a_resting_stream_are_flushed_once(
    sandbox: Sandbox, window: dict[str, Any], point: str | None
) -> None:
    stream = stream_of(sandbox, {**window, "flush": {"after": "1d"}})
    stream.feed(0, 60, 6, run="first")
    before = stream.held()
    sandbox.run("not yet")
    assert sandbox.ledger.account(sandbox.name, "not yet").get("windows", {}) == {}
    assert stream.held() == before
    stream.window = {**window, "flush": {"after": "0s"}}
    stream.configure()
    if point:
        sandbox.run("flushes", kill_at=point)
    sandbox.run("flushes")
    rows, *_, state = stream.model()
    assert state
    assert stream.held() == rows + windows.rows_of(state)
    sandbox.run("again")
    assert sandbox.ledger.account(sandbox.name, "again").get("windows", {}) == {}
    at = max(record[0] for record in stream.records.values() if record is not None)
    sandbox.produce([(0, b"", windows.event(at, "a", 1))])
    sandbox.run("late")
    assert sandbox.ledger.account(sandbox.name, "late").get("windows", {})["late"] == 1
    assert sandbox.account("late")["filtered"] == 1
    assert stream.held() == rows + windows.rows_of(state)
    sandbox.assert_balanced()


def reset_plan(stream: Stream) -> None:
    """Leave the checkpoint of a driver that dies between Spark's commit of a batch and its plan of the closing one."""
    offsets = stream.checkpoint / "offsets"
    newest = max(int(f.name) for f in offsets.iterdir() if f.name.isdigit())
    assert not (stream.checkpoint / "commits" / str(newest)).exists()
    (offsets / str(newest)).unlink()
    (offsets / f".{newest}.crc").unlink()


@pytest.mark.long
@pytest.mark.parametrize("recovery", ["replay", "wal"])
def test_closing_batch_that_spark_never_planned_is_planned(sandbox: Sandbox, recovery: str) -> None:
    """By way of the log, Kafka may forget each record once it is landed; and other records are not cleaned."""
    stream = stream_of(sandbox, HOURLY, recovery=recovery)
    stream.feed(0, 50, 4)
    if recovery == "wal":
        sandbox.run("dies first", kill_at="sink-committed")
        sandbox.topics.delete_records(sandbox.topic, sandbox.topics.ends(sandbox.topic))
    stream.feed(170, 200, 4, run="dies", kill_at="batch-started:2")
    reset_plan(stream)
    sandbox.run("dies again", kill_at="closing-planned")
    assert not stream.held()
    sandbox.run("mends")
    assert stream.held(), "nothing waits, and yet windows are due"
    assert (sandbox.account("mends")["planned"], sandbox.account("mends")["written"]) == (0, 0)
    assert sandbox.ledger.account(sandbox.name, "mends").get("windows", {})["rows"] == sum(stream.held().values())
    stream.feed(0, 170, 8)
    if recovery == "wal":
        sandbox.run("lands", kill_at="seal-recorded")
        sandbox.topics.delete_records(sandbox.topic, sandbox.topics.ends(sandbox.topic))
        said(sandbox, "clean", "--older-than", "0s")
        assert len(listed(sandbox, f"logs/{sandbox.name}")) == 8, "what was applied was cleaned, and nothing else"
        stream.configure(recovery="replay")
        assert "strategy wal" in sandbox.run("replay", expect=10).message
        stream.configure()
    sandbox.run("last")
    stream.assert_exact()
    assert stream.expected()[1], "late by the watermark of the closing batch"


@pytest.mark.long
def test_changed_window_is_refused_until_a_reset(sandbox: Sandbox) -> None:
    stream = stream_of(sandbox, HOURLY)
    stream.feed(0, 100, 4, run="first")
    stream.feed(0, 100, 4)
    stream.configure(window={**HOURLY, "size": "2h"})
    message = sandbox.run("second", expect=41).message
    assert "size was 3600.0 and is 7200.0" in message
    assert f"sluice reset {sandbox.name} --reason" in message
    sandbox.configure(decode={"json": {"schema": "at TIMESTAMP, k STRING, v INT"}})
    assert "window" in sandbox.run("third", expect=41).message
    stream.configure(window={**HOURLY, "watermark": "45m"})
    sandbox.run("fourth")
    assert sandbox.account("fourth")["planned"] == 4


@pytest.mark.long
def test_complete_output_of_a_new_epoch_begins_empty(sandbox: Sandbox) -> None:
    stream = stream_of(sandbox, windows.COMPLETE)
    for first in (600, 500, 0):  # each is older than what came before
        stream.feed(first, first + 60, 6, bad=True, run=f"from-{first}")
    stream.assert_exact()
    assert {w["closes_at"] for w in stream.assert_open()["windows"]} == {None}
    said(sandbox, "reset", "--reason", "x", "--yes")
    sandbox.produce([(0, b"k", b"no record")])
    sandbox.run("nothing")
    assert stream.held() == Counter()
    assert sandbox.rows() is not None


@pytest.mark.long
def test_values_of_open_windows_keep_their_type(sandbox: Sandbox) -> None:
    stream = stream_of(sandbox, {**HOURLY, "aggregates": {"n": "count(*)", "total": "size(collect_set(V))"}})
    stream.feed(0, 50, 6, run="first")
    other = {"json": {"schema": "at TIMESTAMP, k STRING, v BIGINT, more STRING"}}
    stream.configure(decode=other)
    stream.feed(0, 50, 6)
    assert "v was INT and is BIGINT" in sandbox.run("refused", expect=41).message
    columns = "at, k, cast(v AS INT) AS v, _topic, _partition, _offset, _timestamp"
    stream.configure(decode=other, transform={"sql": f"SELECT {columns} FROM source"})
    stream.feed(300, 301, 2, run="second")
    values: dict[str, list[int]] = defaultdict(list)
    for record in filter(None, stream.records.values()):
        if record[0] < BEGIN + 60 * MINUTE:
            values[record[1]].append(record[2])
    held = {(row["k"], row["n"], row["total"]) for row in listed(sandbox)}
    assert held == {(k, len(found), len(set(found))) for k, found in values.items()}


@pytest.mark.long
def test_windows_are_updated_after_another_spark_rewrote_them(sandbox: Sandbox, spark: SparkSession) -> None:
    stream = stream_of(sandbox, {**HOURLY, "output": "update"})
    for run in ("first", "second"):
        stream.feed(0, 90, 8, run=run)
    before = spark.conf.get("spark.sql.parquet.outputTimestampType")
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")  # its own default
    try:
        spark.sql(f"OPTIMIZE delta.`{sandbox.home / 'table'}`")
    finally:
        spark.conf.set("spark.sql.parquet.outputTimestampType", before)
    stream.feed(30, 120, 8, run="third")
    stream.assert_exact()
    assert spark.read.format("delta").load(str(sandbox.home / "table")).count() == sum(stream.held().values())


@pytest.mark.long
def test_state_of_an_attempt_that_was_not_committed_is_dropped(sandbox: Sandbox) -> None:
    """Spark keeps the files of the first attempt, and the second one, which the sink holds, absorbed other records."""
    stream = Stream(sandbox, HOURLY)
    stream.configure(transform={"sql": "SELECT at, k, v + 1000 AS v, * EXCEPT (at, k, v) FROM source"})
    stream.feed(0, 50, 4, run="dies", kill_at="before-sink-commit")
    stream.configure()
    sandbox.run("absorbs")
    stream.feed(170, 200, 4, run="closes")
    assert stream.held()
    stream.assert_exact()


@pytest.mark.long
def test_state_of_a_committed_batch_is_made_from_the_rows_that_were_counted(sandbox: Sandbox) -> None:
    stream = stream_of(sandbox, HOURLY)
    stream.feed(0, 100, 4, run="dies", kill_at="sink-committed")
    stream.configure(window={**HOURLY, "ahead": "2d"})
    assert "undo the change" in sandbox.run("second", expect=41).message
    stream.configure()
    sandbox.run("third")
    stream.configure(window={**HOURLY, "ahead": "2d"})
    stream.feed(0, 300, 4, run="last")
    stream.assert_exact()
