"""Sessions that are found at once are those that batches make one after another."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from sluice.audit.windows import doubt
from sluice.pipeline.window import Window
from sluice_spark.windows.sessions import in_sessions, in_whole_sessions

pytestmark = pytest.mark.spark

GAP = 5_000
"""Milliseconds, as all times here."""
WINDOW = Window(time="at", gap=timedelta(milliseconds=GAP), by=("key",), aggregates={"n": "count(*)"}, watermark="0s")  # type: ignore[arg-type]  # fmt: skip


class Record(NamedTuple):
    history: int
    key: str | None
    at: int
    late: int


class Found(NamedTuple):
    history: int
    key: str | None
    start: int
    end: int
    count: int


def replayed(number: int, chance: random.Random) -> tuple[list[Record], Counter[Found], set[str]]:
    """A history of batches, its sessions as batch after batch makes them, and what happened in it."""
    older = now = 0
    records, happened = list[Record](), set[str]()
    open_now, written = list[tuple[str | None, int, int, int]](), Counter[Found]()
    for _ in range(chance.randrange(1, 9)):
        begin = max(0, older + chance.randrange(-20, 20) * 500)
        batch = [
            Record(number, chance.choice(("a", "b", None)), begin + chance.randrange(0, 30) * 500, older)
            for _ in range(chance.randrange(0, 6))
        ]
        records += batch
        timely = [r for r in batch if r.at + GAP > older]
        happened |= {"late" for r in batch if r not in timely}
        happened |= {"after" for r in timely for w in written if w.key == r.key and r.at <= w.end}
        before = Counter[str | None](key for key, *_ in open_now)
        merged = list[tuple[str | None, int, int, int]]()
        alone = [(r.key, r.at, r.at + GAP, 1) for r in timely]
        for key, start, end, count in sorted([*open_now, *alone], key=lambda s: (s[0] or "", s[1])):
            if merged and merged[-1][0] == key and start <= merged[-1][2]:
                _, first, last, held = merged.pop()
                merged.append((key, first, max(last, end), held + count))
            else:
                merged.append((key, start, end, count))
        happened |= {"joined" for key in before if Counter(k for k, *_ in merged)[key] < before[key]}
        written.update(Found(number, *session) for session in merged if session[2] <= now)
        open_now = [session for session in merged if session[2] > now]
        older, now = now, max([now, *(r.at - chance.choice((0, 1000, 4000)) for r in batch)])
    written.update(Found(number, *session) for session in open_now)
    return records, written, happened


@pytest.fixture(scope="module")
def histories() -> list[tuple[list[Record], Counter[Found], set[str]]]:
    chance = random.Random(11)
    return [replayed(number, chance) for number in range(1000)]


def at_once(spark: SparkSession, records: Sequence[Record]) -> Counter[Found]:
    rows = spark.createDataFrame(records, "history LONG, key STRING, at LONG, late LONG").coalesce(2)
    rows = rows.withColumn("at", F.timestamp_millis("at"))
    numbered = in_sessions(rows, WINDOW, ["history"], F.col("late"), "session")
    assert numbered.columns == [*rows.columns, "session"]
    made = numbered.groupBy("history", "key", "session").agg(
        F.unix_millis(F.min("at")), F.unix_millis(F.max("at")) + GAP, F.count("*")
    )
    return Counter(Found(r[0], r[1], *r[3:]) for r in made.collect())


def test_sessions_at_once_are_those_of_batches_one_after_another(
    spark: SparkSession, histories: list[tuple[list[Record], Counter[Found], set[str]]]
) -> None:
    happened = Counter(what for *_, found in histories for what in found)
    assert all(happened[what] > 50 for what in ("late", "joined", "after")), happened
    wanted = sum((sessions for _, sessions, _ in histories), Counter[Found]())
    assert at_once(spark, [record for records, *_ in histories for record in records]) == wanted


def test_sessions_without_some_records_differ_only_where_there_is_doubt(
    spark: SparkSession, histories: list[tuple[list[Record], Counter[Found], set[str]]]
) -> None:
    chance, kept, spans = random.Random(5), list[Record](), dict[int, tuple[int, int]]()
    for number, (records, *_) in enumerate(histories):
        batch = chance.choice(records).late if records else None
        gone = [r for r in records if r.late == batch]
        kept += [r for r in records if r not in gone]
        if gone:
            spans[number] = doubt(WINDOW, min(r.at for r in gone), max(r.at for r in gone))

    def sure(found: Counter[Found]) -> Counter[Found]:
        out = {
            f for f in found if f.history in spans and f.end >= spans[f.history][0] and f.start < spans[f.history][1]
        }
        return Counter({f: n for f, n in found.items() if f not in out})

    wanted = sum((sessions for _, sessions, _ in histories), Counter[Found]())
    found = at_once(spark, kept)
    assert found != wanted
    assert sure(found) == sure(wanted)
    assert 100 < sum(sure(wanted).values()) < sum(wanted.values()) - 100


def test_sessions_are_those_of_spark_if_no_record_is_late(
    spark: SparkSession, histories: list[tuple[list[Record], Counter[Found], set[str]]]
) -> None:
    records = [record for found, *_ in histories[:300] for record in found]
    rows = spark.createDataFrame(records, "history LONG, key STRING, at LONG, late LONG").coalesce(2)
    rows = rows.withColumn("at", F.timestamp_millis("at"))
    whole = in_whole_sessions(rows, WINDOW, ["history"], "first", "last")
    assert whole.columns == [*rows.columns, "first", "last"]
    mine = whole.groupBy("history", "key", "first", "last").count().collect()
    span = F.session_window("at", f"{GAP} milliseconds")
    theirs = rows.groupBy("history", "key", span.alias("s")).count()
    bounds = F.unix_micros("s.start"), F.unix_micros("s.end")
    found = Counter(tuple(row) for row in theirs.select("history", "key", *bounds, "count").collect())
    assert Counter(tuple(row) for row in mine) == found
    assert any(row["count"] > 3 for row in mine)
