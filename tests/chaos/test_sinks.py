"""Sinks: intervals replace once, redrives write once, a driver that wakes late adds nothing; tables that are upserted.

That kills neither lose nor double is in test_kills.py; what a sink's own ``commit`` promises is in ``tests/contract``.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession
from tests.chaos.boxed import BOXES, Box, exact, made
from tests.chaos.cases import DIRECT, LONG, long
from tests.chaos.commands import ALL_BAD, drain
from tests.chaos.drivers import PASSING, asleep, ended, gated, lost, woken
from tests.chaos.states.boxes import TopicBox
from tests.fixtures.runs import await_that, good

from sluice.pipeline import load
from sluice.run.actions import Preview
from sluice_spark.runs.preview import preview
from sluice_spark.sinks.postgres.commits import lock_number

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

DAY = ("2026-03-02", "2026-03-03")


@pytest.fixture
def into(request: pytest.FixtureRequest) -> Box:
    """A pipeline into the sink of that name."""
    return made(BOXES[request.param], request)


def sinks(*names: str, fast: Sequence[str] = ()) -> pytest.MarkDecorator:
    """Run a test with each of these sinks, all but the fast ones among the long tests."""
    marked = [pytest.param(name, marks=() if name in fast else LONG) for name in names]
    return pytest.mark.parametrize("into", marked, indirect=True)


UPPER = {"sql": "SELECT id, upper(name) AS name, _topic, _partition, _offset, _timestamp FROM source"}


def at(day: int, minutes: int = 0) -> int:
    return int(datetime(2026, 3, day, 0, minutes, tzinfo=UTC).timestamp() * 1000)


@pytest.mark.long
@sinks("iceberg", "files", "postgres", fast=["postgres"])
@pytest.mark.parametrize("point", ["sink-committed", *long("before-sink-commit", "batch-recorded")])
def test_interval_replaces_rows_of_the_sink_once_when_its_driver_is_killed(into: Box, point: str) -> None:
    into.configure(kafka={"max_records_per_batch": 100})
    for day in (1, 2, 3):
        into.produce([(n % 2, b"k", b"{" if n == 4 else good(day * 10 + n), at(day, n)) for n in range(6)])
    into.run("live")  # one batch: its files hold rows to replace and rows to keep
    keep = {"sink": {"files": {"path": "out", "keep": "0s"}}} if "files" in into.spec["sink"] else {}
    into.configure(transform=UPPER, **keep)
    into.run("again", interval=DAY, kill_at=point)
    into.run("again", interval=DAY)
    into.assert_exact()
    assert Counter((row["name"].isupper(), row["_run"]) for row in into.rows_of_sink()) == {
        (True, "again"): 5,
        (False, "live"): 10,
    }
    assert into.astray() == []  # with `files`, what was replaced longer ago than `keep` is gone, too


@pytest.mark.parametrize("into", ["postgres"], indirect=True)
@pytest.mark.parametrize(
    ("recovery", "engine", "points"),
    [
        ("replay", "auto", ("rows-refused",)),
        *long(
            *(
                (recovery, engine, ("rows-refused", "before-sink-commit:2", *DIRECT[1:]))
                for recovery in ("replay", "wal", "hot", "ignore_range", "ignore_batch")
                for engine in ("auto", "spark")
            )
        ),
    ],
)
def test_rows_that_the_sink_refuses_are_in_the_quarantine_once_and_the_others_in_the_sink(
    into: Box, recovery: str, engine: str, points: tuple[str, ...]
) -> None:
    into.configure(recovery=recovery, engine=engine)
    refused = Counter[Any]()
    for number, point in enumerate([*points, None]):
        values = [good(20 * number + n) for n in range(12)]
        values[3] = values[7] = b'{"id": 5, "name": "a\\u0000b"}'
        values[9] = b"{"
        offsets = into.produce([(n % 2, b"k", value, at(1, n)) for n, value in enumerate(values)])
        refused += Counter(offsets[n] for n in (3, 7, 9))
        into.run(f"r{number}", kill_at=point)

    def exactly(refused: Counter[Any]) -> None:
        into.assert_exact()
        into.assert_balanced()
        assert (into.quarantine(), into.astray()) == (refused, [])

    into.run("live")
    exactly(refused)
    errors = into.rows(f"quarantine/{into.name}")["_errors"].to_pylist()
    assert Counter((error["rule"], "zero character" in str(error["detail"])) for (error,) in errors) == {
        ("sink", True): 2 * number + 2,
        ("json", False): number + 1,
    }
    for point in points[1:]:
        into.run("part", interval=("2026-03-01", "2026-03-02"), kill_at=point)
    into.run("part", interval=("2026-03-01", "2026-03-02"))
    exactly(refused)
    into.run("redriven", redriven="quarantined")
    exactly(refused)


@sinks("iceberg", "files", "postgres", "kafka")
def test_driver_that_wakes_up_late_adds_nothing_to_the_sink(into: Box) -> None:
    """Into Delta, in each run of the suite: test_driver_killed.py."""
    into.configure(**PASSING)
    into.feed(8, bad_every=3)
    in_topic = isinstance(into, TopicBox)
    zombie = asleep(into, "records-sent" if in_topic else "before-sink-commit")
    assert not in_topic or into.astray(), "its transaction is open"
    drain(into, 8, "second", bad_every=3)
    exact(into)
    woken(zombie)
    exact(into)


@sinks("iceberg", "files", "postgres", "kafka")
def test_redrive_writes_to_the_sink_once_when_killed(into: Box) -> None:
    rules = [{"name": "small", "sql": {"passes": "id < 100"}}]
    into.configure(recovery="ignore_range", transform={"python": "poison:dying"}, rules=rules)
    into.produce([(0, b"k", b'{"id": %d, "name": "x"}' % n) for n in (1, 2000, 3, 4)])
    into.run("live", POISON_IDS="3")
    assert (lost(into).total(), into.quarantine().total()) == (1, 1)
    in_topic = isinstance(into, TopicBox)
    for point in (*["records-sent"] * in_topic, "sink-committed", None):
        into.run("again", redriven="lost", kill_at=point)
    assert not lost(into)
    into.configure()
    if in_topic:
        into.run("refused", redriven="quarantined", expect=10)
    else:
        into.run("moved", redriven="quarantined", kill_at="sink-committed")
        into.run("moved again", redriven="quarantined")
    assert into.quarantine().total() == in_topic
    assert into.sink() + into.quarantine() == into.on_broker()
    into.assert_balanced()


# --- what others do to a table, and servers that end -----------------------------------------------------------------


def _compacted(table: Any) -> None:
    table.overwrite(table.scan().to_arrow())


def _renamed(table: Any) -> None:
    with table.update_schema() as update:
        update.rename_column("name", "title")


def _dropped(table: Any) -> None:
    with table.update_schema() as update:
        update.delete_column("name")


@pytest.mark.long
@sinks("iceberg", fast=["iceberg"])
@pytest.mark.parametrize(
    ("changes", "columns"),
    [
        ([_compacted], "id, name"),
        *long(([_renamed], "id, name AS title"), ([_compacted, _renamed], "id, name AS title"), ([_dropped], "id")),
    ],
)
def test_iceberg_keeps_rows_beside_an_interval_in_files_that_others_changed(
    into: Any, changes: list[Callable[[Any], None]], columns: str
) -> None:
    sql = f"SELECT {columns}, _topic, _partition, _offset, _timestamp FROM source"
    into.configure(kafka={"max_records_per_batch": 100})
    for day in (1, 2, 3):
        into.produce([(n % 2, b"k", good(day * 10 + n), at(day, n)) for n in range(6)])
    into.run("live")
    for change in changes:
        change(into.orders)
    into.configure(kafka={"max_records_per_batch": 100}, transform={"sql": sql})
    for again in ("again", "once more"):
        into.run(again, interval=DAY)
        into.assert_exact()
    rows = into.rows_of_sink()
    assert Counter(row["_run"] for row in rows) == {"live": 12, "once more": 6}
    if columns != "id":
        assert all(row.get("name", row.get("title")) == f"name {row['id']}" for row in rows)


@sinks("postgres")
def test_postgres_commit_of_a_dead_driver_that_is_under_way_is_waited_for(into: Any) -> None:
    into.configure(**PASSING)
    into.feed(5)
    late = gated(into, "before-sink-commit")
    engine = sa.create_engine(into.database)
    with engine.connect() as other:  # as the dead driver's, which holds the lock and has not ended
        other.execute(sa.text(f"SELECT pg_advisory_xact_lock({lock_number('public', 'orders')})"))
        late.open_gate()
        waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        await_that(lambda: into.query(waiting), "the driver waits", late.process)
        assert into.sink() == Counter()
        other.rollback()
    engine.dispose()
    ended(late)
    exact(into)


# --- foreach ---------------------------------------------------------------------------------------------------------


@sinks("foreach", fast=["foreach"])
def test_foreach_gets_a_batch_again_under_the_same_ids_when_its_driver_is_killed(into: Any) -> None:
    drain(into, 5, "killed", bad_every=3, kill_at="rows-handed-over")
    into.run("last")
    seen: dict[tuple[str, str], list[tuple[str, list[int]]]] = {}
    for row in into.lines():
        attempts = seen.setdefault((row["batch"], row["in"]), [])
        if not attempts or attempts[-1][0] != row["run"]:
            attempts.append((row["run"], []))
        attempts[-1][1].append(row["_offset"])
    assert max(map(len, seen.values())) == 2, "one batch was handed over twice"
    assert all(offsets == attempts[0][1] == sorted(offsets) for attempts in seen.values() for _, offsets in attempts)
    assert set(into.handed_over()) | set(into.quarantine()) == set(into.on_broker())
    into.assert_balanced()


@sinks("foreach")
def test_foreach_writer_that_knows_what_it_has_holds_each_row_once(into: Any) -> None:
    into.configure(sink={"foreach": {"python": "collector:Once"}})
    for point in ("rows-handed-over", "sink-committed", None):
        drain(into, 5, "killed", kill_at=point)
    into.assert_exact()


# --- tables that are upserted ----------------------------------------------------------------------------------------


class Keys:
    """Records of a few keys, some of them tombstones and some malformed; and what each key must have."""

    def __init__(self, box: Box) -> None:
        self.box, self.wanted, self.refused = box, dict[str, str | None](), Counter[Any]()
        self.had: set[str] = set()

    def configure(self, **keys: Any) -> None:
        ((kind, where),) = (self.box.spec["sink"]).items()
        sink = {kind: {**where, "mode": "upsert", "key": ["key"], "sequence": "_offset"}}
        decode = {"json": {"schema": "name STRING NOT NULL", "key": "key", "tombstone": "delete"}}
        self.box.configure(**{"sink": sink, "decode": decode, **ALL_BAD, **keys})

    def feed(self, count: int = 10) -> None:
        chance = random.Random(len(self.box.produced))
        for n in range(count):
            self.send(chance.choice("abcdef"), chance.choice(["gone", "bad", "row", "row"]) if n else "bad")

    def send(self, key: str, form: str) -> None:
        name = f"n{len(self.box.produced)}"
        value = {"gone": None, "bad": b"{", "row": json.dumps({"name": name}).encode()}[form]
        placed = self.box.produce([(ord(key) % 2, key.encode(), value)])
        if form == "bad":
            self.refused += Counter(placed)
        else:
            self.wanted[key] = name if form == "row" else None
            self.had |= {key} if form == "row" else set()

    @property
    def gone(self) -> set[str]:
        """Keys that had a row, and have none any more."""
        return {key for key in self.had if self.wanted[key] is None}

    def exact(self) -> None:
        rows = self.box.rows_of_sink()
        assert {row["key"]: row["name"] for row in rows} == {k: n for k, n in self.wanted.items() if n is not None}
        assert len({row["key"] for row in rows}) == len(rows), "a key has two rows"
        assert self.box.quarantine() == self.refused
        written, refused = self.box.total("written"), self.box.total("quarantined")
        assert (refused, written + refused) == (self.refused.total(), len(self.box.produced))
        self.box.assert_balanced()
        assert self.box.astray() == []


@sinks("delta", "postgres", fast=["delta", "postgres"])
@pytest.mark.parametrize(
    ("recovery", "points"),
    [
        ("replay", ("sink-committed",)),
        *long(("wal", ("before-seal", "sealed", *DIRECT)), ("hot", ("rows-staged", *DIRECT)), ("ignore_range", DIRECT)),
    ],
)
def test_upsert_leaves_each_key_its_newest_row_or_none_when_drivers_are_killed(
    into: Box, recovery: str, points: tuple[str, ...]
) -> None:
    keys = Keys(into)
    keys.configure(recovery=recovery)
    for point in (*points, None):
        keys.feed()
        into.run("killed", kill_at=point)
    keys.exact()
    assert keys.gone, "no row was deleted"


@sinks("delta")
def test_delta_upsert_follows_its_topic_whatever_others_do_to_the_table(into: Box, spark: SparkSession) -> None:
    keys = Keys(into)
    keys.configure(kafka={"max_records_per_batch": 5})
    keys.feed(30)
    into.run("first")
    table = f"delta.`{into.home / 'table'}`"
    for statement in ("OPTIMIZE {}", "UPDATE {} SET name = 'theirs' WHERE key = 'a'", "DELETE FROM {} WHERE key = 'b'"):
        spark.sql(statement.format(table))
        keys.feed()
        into.run(statement.split()[0])
    for key in "abcdef":  # each key has a record of its own
        keys.send(key, "row")
    into.run("last")
    rows = into.rows_of_sink()
    assert into.cli("audit", "--deep", str(into.file)).returncode == 10
    assert {row["key"]: row["name"] for row in rows} == keys.wanted
    keys.send("b", "gone")
    with mock.patch.dict(os.environ, into.env(), clear=True):
        seen = preview(load(into.file), Preview(Path("not used"), 1), lambda: spark)
    assert json.loads(seen["shown"][0])["_deleted"]
    assert seen["table"] == {"differences": [], "ways_out": []}
