"""Several sinks of one pipeline: each gets each batch once and in order, whatever dies or is changed between runs.

Rows that windows, dedupe and processors give off take the same way: test_operators.py.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from kafka.admin import ConfigResource, ConfigResourceType
from tests.chaos.cases import DIRECT, LONG
from tests.chaos.commands import ALL_BAD, AS_NUMBER, at, days, delta, drain, feed_days, json_of, killed, said
from tests.fixtures.folder import FolderSandbox
from tests.fixtures.lake import IcebergSandbox
from tests.fixtures.outward import WriterSandbox
from tests.fixtures.runs import Offset, by_place, good
from tests.fixtures.stream import StreamSandbox, origin

from sluice.run.decision import accept

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

POINTS = ("also-staged", *DIRECT[:3], "also-committed", "also-committed:2", "batch-recorded")
FILES: dict[str, Any] = {"files": {"path": "out"}}
DELTA: dict[str, Any] = {"delta": {"path": "second"}}
ICEBERG: dict[str, Any] = {"iceberg": {"table": "shop.orders"}}
WRITER: dict[str, Any] = {"foreach": {"python": "collector:Lines"}}
OTHER_NAMES = {"sql": "SELECT id, 'other' AS name, _topic, _partition, _offset, _timestamp FROM source"}


@dataclass
class Several(StreamSandbox):
    """A sandbox that writes to a table, and also to a topic and to a folder of files, or to what a test says."""

    def configure(self, *, kafka: Mapping[str, Any] | None = None, **keys: Any) -> None:
        usual = {"sink": {"delta": {"path": "table"}}, "also": [self.into(), FILES]}
        super().configure(kafka=kafka, **{**ALL_BAD, **usual, **keys})

    def env(self, **extra: str) -> dict[str, str]:
        lake = json.dumps({"conn_type": "iceberg", "extra": self.properties})
        return super().env(**({"AIRFLOW_CONN_ICEBERG_DEFAULT": lake, "COLLECTED": str(self.collected)} | extra))

    def sink(self) -> Counter[Offset]:
        return self.offsets("table")

    def quarantine(self) -> Counter[Offset]:
        return self.offsets("table_quarantine")

    def in_topic(self) -> Counter[Offset]:
        return StreamSandbox.sink(self)

    def in_files(self) -> Counter[Offset]:
        return by_place(self.lines())

    def in_iceberg(self) -> Counter[Offset]:
        return by_place(self.orders.scan().to_arrow().to_pylist())

    def handed_over(self) -> Counter[Offset]:
        return by_place(WriterSandbox.lines(self))  # type: ignore[arg-type]

    def held(self, sink: dict[str, Any]) -> Counter[Offset]:
        """Return the rows of a further sink; of a writer, each once."""
        (kind,) = sink
        found = {"files": self.in_files, "iceberg": self.in_iceberg, "delta": lambda: self.offsets("second"),
                 "kafka": self.in_topic, "foreach": lambda: Counter({*self.handed_over()})}  # fmt: skip
        return found[kind]()

    def died(self, **keys: Any) -> None:
        """Feed, and let a driver die whose batch the first sink alone has."""
        if keys:
            self.configure(**keys)
        drain(self, 5, "died", kill_at="sink-committed")

    out, named, all_rows, lines = FolderSandbox.out, FolderSandbox.named, FolderSandbox.all_rows, FolderSandbox.lines
    properties, catalog, orders = IcebergSandbox.properties, IcebergSandbox.catalog, IcebergSandbox.orders
    strays, collected = IcebergSandbox.strays, WriterSandbox.collected

    def assert_together(self) -> None:
        """The account is exact, each sink has the same rows, and nothing is left over."""
        self.assert_exact()
        assert self.in_topic() == self.in_files() == self.sink()
        assert self.held_up() == []
        assert {name for name in self.staged() if "-e1-" not in name} == set()


@pytest.fixture
def several(sending: Callable[[type[Several]], Several]) -> Several:
    """A pipeline into a table, and also into a topic and a folder."""
    return sending(Several)


def reset(sandbox: Several) -> None:
    said(sandbox, "reset", "--reason", "it stays without these rows")


# --- killed ----------------------------------------------------------------------------------------------------------


def test_also_sink_that_lacks_a_batch_gets_it_before_any_other_as_the_first_sink_has_it(several: Several) -> None:
    several.died()
    assert several.sink().total() == 5
    assert not several.in_topic()
    several.configure(transform=OTHER_NAMES)  # which makes other rows of these records
    several.run("next")
    several.assert_together()
    assert {json.loads(r.value)["name"] for r in several.sent()} == {f"name {n}" for n in range(5)}
    assert several.account("died")["written"] == 5


@LONG
@pytest.mark.parametrize("recovery", ["replay", "wal", "hot", "ignore_range", "ignore_batch"])
def test_also_sinks_neither_lose_nor_double_when_drivers_are_killed(several: Several, recovery: str) -> None:
    several.configure(recovery=recovery)
    for point in ("sealed", *POINTS) if recovery == "wal" else POINTS:
        drain(several, 8, "killed", bad_every=3, kill_at=point)
        every = (several.sink(), several.in_topic(), several.in_files())
        assert set(sum(every, Counter())) == set(every[0]), "a row that is anywhere is in the table"
        assert all(set(held.values()) <= {1} for held in every)
    several.run("killed")
    several.assert_together()


BEHIND = ["sink-committed"] * 5 + ["epoch-closed", "sink-committed", "epoch-opened"]


@LONG
@pytest.mark.parametrize(
    ("also", "points"),
    [([ICEBERG], ["sink-committed"]), ([ICEBERG], ["also-staged", "also-committed"]), ([FILES, DELTA, WRITER], BEHIND)],
    ids=["iceberg", "iceberg-also", "change-of-strategy"],
)
def test_also_sinks_go_on_behind_batches_that_some_of_them_lack(
    several: Several, also: list[dict[str, Any]], points: list[str]
) -> None:
    for number, point in enumerate(points):
        several.configure(also=also, recovery="wal" if number % 2 and points is BEHIND else "replay")
        drain(several, 5, f"died {number}", bad_every=3, kill_at=point)
    drain(several, 3, "last")
    several.assert_exact()
    assert [several.held(sink) for sink in also] == [several.sink()] * len(also)
    assert ICEBERG not in also or not several.strays()


@LONG
def test_also_sinks_get_redriven_records(several: Several) -> None:
    several.configure(recovery="ignore_range", transform={"python": "poison:dying"})
    drain(several, 5, "live", POISON_IDS="3")
    for point in ("sink-committed", "also-committed", None):
        several.run("again", redriven="lost", kill_at=point)
    assert several.sink() == several.in_topic() == several.in_files() == several.on_broker()
    several.configure()
    several.produce([(0, b"k", b'{"id": "x"}')])
    several.run("refused")
    assert several.quarantine().total() == 1
    several.configure(**AS_NUMBER)
    several.run("let in", redriven="quarantined", kill_at="sink-committed")
    several.run("let in", redriven="quarantined")
    several.assert_together()


@LONG
def test_also_sink_that_was_added_is_filled_by_an_interval(several: Several) -> None:
    several.configure(also=[])
    feed_days(several, 2, 5)
    several.produce([(0, b"k", b"{", at(3))])
    several.run("live")
    several.configure(also=[FILES], transform=OTHER_NAMES)
    points = ("also-staged", "before-sink-commit", "sink-committed", "also-committed", "batch-recorded")
    for number, point in enumerate(points):
        several.run(f"interval {number}", interval=days(2, 4), kill_at=point)
    several.run("interval", interval=days(2, 5))
    several.assert_exact()
    assert several.in_files() == several.sink()
    assert {row["name"] for row in several.lines()} == {"other"}


@LONG
@pytest.mark.parametrize("point", ["sink-committed", "also-committed"])
def test_also_sinks_lose_the_rows_of_a_retracted_run(several: Several, point: str) -> None:
    several.configure(also=[FILES, DELTA])
    drain(several, 6, "right")
    drain(several, 5, "wrong")
    killed(several, point, "retract", "wrong", "--reason", "wrong currency")
    assert several.sink().total() == 6
    several.feed(3)
    several.run("next")  # any run finishes what the killed one began
    assert several.sink().total() == 9
    assert several.sink() == several.in_files() == several.offsets("second")
    several.run("back", redriven="lost")
    assert several.sink() == several.in_files() == several.offsets("second") == several.on_broker()
    several.assert_balanced()


# --- not killed ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sink", "same"),
    [({"delta": {"path": "table"}}, True), ({"delta": {"path": "table", "partition_by": ["name"]}}, False)],
    ids=["copied", "written"],
)
def test_also_files_sink_gets_copies_of_files_that_fit_as_they_are(
    several: Several, sink: dict[str, Any], same: bool
) -> None:
    several.configure(sink=sink, also=[FILES])
    drain(several, 6, "r")
    several.assert_exact()
    assert several.in_files() == several.sink()
    there = {Path(path).read_bytes() for path in delta(several).file_uris()}
    assert ({(several.out / name).read_bytes() for name in several.named()} == there) is same


@pytest.mark.long
def test_also_kafka_topic_has_the_rows_of_a_partition_in_order(several: Several) -> None:
    several.configure(
        kafka={"max_records_per_batch": 1000},
        sink={"delta": {"path": "table", "partition_by": ["rest"]}},  # so its files have the rows in another order
        also=[several.into(key=None, partition="part"), FILES],
        decode={"json": {"schema": "id BIGINT"}},
        transform={"sql": "SELECT id, 0 AS part, id % 7 AS rest, _topic, _partition, _offset, _timestamp FROM source"},
    )
    several.produce([(0, b"k", b'{"id": %d}' % n) for n in range(200)])
    several.run("r")
    assert [origin(record)[2] for record in several.sent()] == list(range(200))
    several.assert_together()


@LONG
def test_also_sinks_get_nothing_of_a_batch_that_is_held_back(several: Several) -> None:
    limits = {"quality": {"when": "before_commit", "max_quarantined": 1}}
    several.configure(also=[several.into(), FILES, DELTA], **limits)
    drain(several, 6, "bad", bad_every=3, validate=True, expect=50)
    held = several.sink(), several.quarantine(), several.in_topic(), several.in_files(), several.offsets("second")
    assert held == ({}, {}, {}, {}, {})
    accept(several.ledger, several.name, "bad", reason="known")
    several.run("bad", validate=True)
    several.assert_together()
    assert several.offsets("second") == several.sink()
    for command in ("compact", "vacuum"):
        paths = [row["path"] for row in json_of(several, command)["tables"]]
        assert paths == [str(several.home / path) for path in ("table", "second", "table_quarantine")]
    assert several.cli("adopt", "another", "--as", str(several.file)).returncode == 10


@LONG
def test_also_staged_rows_that_are_gone_are_not_passed_over(several: Several) -> None:
    several.died()
    staged = several.home / "staged"
    shutil.move(staged, several.home / "aside")
    several.run("next", expect=41)
    assert not several.in_topic()
    shutil.move(several.home / "aside", staged)
    several.run("next")
    several.assert_together()
    several.died()
    shutil.rmtree(staged)
    several.feed(2)
    assert "sluice reset" in several.run("next", expect=41).message
    reset(several)
    several.run("without")
    several.assert_exact()
    assert several.in_files() == several.sink()
    assert (several.sink() - several.in_topic()).total() == 5


@LONG
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"kafka": {"headers": ["name"]}}, {"kafka": {"headers": ["id"]}}),
        (DELTA, {"delta": {"path": "./second"}}),
        (DELTA, {"delta": {"path": "second", "partition_by": ["name"]}}),
    ],
    ids=["headers", "path", "partition_by"],
)
def test_also_sink_is_not_given_rows_that_were_staged_for_other_settings(
    several: Several, before: dict[str, Any], after: dict[str, Any]
) -> None:
    first, second = (several.into(**keys["kafka"]) if "kafka" in keys else keys for keys in (before, after))
    several.died(also=[first])
    several.configure(also=[second])
    several.run("next", expect=10)
    several.configure(also=[first])
    several.run("next")
    assert several.held(first) == several.sink()
    several.assert_exact()


@LONG
def test_also_sink_that_never_takes_a_row_is_left_behind_by_a_reset(several: Several) -> None:
    limits = {"max.message.bytes": "2000"}
    with several.topics._admin() as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, several.target, configs=limits)])
    several.produce([(0, b"k", json.dumps({"id": 77, "name": "x" * 5000}).encode())])
    for run in ("first", "again"):
        assert "sluice reset" in several.run(run, expect=30).message
    reset(several)
    drain(several, 4, "goes on")
    several.assert_exact()
    assert several.in_files() == several.sink()
    assert (several.sink() - several.in_topic()).total() == 1


@LONG
def test_also_foreach_writer_that_raises_gets_the_batch_again_before_the_sinks_behind_it(several: Several) -> None:
    several.configure(also=[{"console": {"rows": 2}}, WRITER, FILES])
    several.produce([(0, b"k", good(n)) for n in range(5)])
    for run in ("first", "again"):
        message = several.run(run, expect=30, POISON="name 3").message
        assert f"{several.topic}-0 offset 3 of batch {several.name}:1:0" in message
        assert "sluice reset" in message
    assert (several.sink().total(), several.in_files().total()) == (5, 0)
    several.feed(3)
    output = several.run("fixed").stderr
    assert '"name": "name 1"' not in output, "the console has the first batch already"
    assert "and 1 more" in output
    several.assert_exact()
    assert several.in_files() == several.sink()
    got = several.handed_over()
    assert set(got) == set(several.sink())
    assert {offset: times for (_, _, offset), times in got.items() if times > 1} == {0: 3, 1: 3, 2: 3}


@LONG
def test_also_iceberg_table_that_does_not_fit_is_named_with_what_the_first_sink_has(several: Several) -> None:
    several.died(also=[ICEBERG])
    with several.orders.update_schema() as update:
        update.rename_column("name", "title")
    message = several.run("next", expect=10).message
    assert "table has batch 0, and table shop.orders (iceberg_default) may not" in message
    with several.orders.update_schema() as update:
        update.rename_column("title", "name")
    several.run("next")
    several.assert_exact()
    assert several.in_iceberg() == several.sink()


# --- set back by others ----------------------------------------------------------------------------------------------


@pytest.mark.long
def test_also_sink_that_is_added_gets_what_comes_and_one_that_was_rolled_back_is_noticed(several: Several) -> None:
    several.configure(also=[])
    drain(several, 5, "alone")
    several.configure()
    before = len(several.sink())
    several.feed(5)
    assert "gets rows from this run on" in several.run("together").stderr
    several.assert_exact()
    assert several.in_topic() == several.in_files()
    assert (several.sink() - several.in_files()).total() == before
    newest = max(several.out.glob("_sluice/*.json"))
    newest.rename(several.home / newest.name)
    drain(several, 3, "restored", expect=41)
    (several.home / newest.name).rename(newest)
    several.run("restored")
    several.assert_exact()
    assert several.in_topic() == several.in_files()


@LONG
def test_also_sink_that_was_restored_or_swapped_behind_a_redrive_is_noticed(several: Several) -> None:
    keys = {"recovery": "ignore_range", "transform": {"python": "poison:dying"}, "quarantine": {"delta": {"path": "q"}}}
    several.configure(also=[FILES], **keys)
    drain(several, 6, "live", POISON_IDS="1,4")
    several.run("again", redriven="lost", POISON_IDS="4")
    newest = max(several.out.glob("_sluice/*.json"))
    newest.rename(several.home / newest.name)
    several.run("live again", expect=41)
    several.run("again too", redriven="lost", expect=41)
    several.configure(sink=FILES, also=[{"delta": {"path": "table"}}], **keys)
    several.run("swapped", redriven="lost", expect=41)
    several.configure(also=[FILES], **keys)
    reset(several)
    drain(several, 3, "goes on")
    several.run("the last", redriven="lost")
    assert (several.sink() - several.in_files()).total() == 1
    assert several.sink() == several.on_broker()


def _restored(sandbox: Several) -> None:
    DeltaTable(str(sandbox.home / "second")).restore(1)


def _removed(sandbox: Several) -> None:
    shutil.rmtree(sandbox.home / "second")


def _rolled_back(sandbox: Several) -> None:
    first = sandbox.orders.snapshots()[0].snapshot_id
    sandbox.orders.manage_snapshots().set_current_snapshot(snapshot_id=first).commit()


@LONG
@pytest.mark.parametrize(
    ("sink", "change", "left", "point"),
    [
        (DELTA, _restored, 4, None),
        (DELTA, _removed, 0, None),
        (DELTA, _restored, 4, "epoch-closed"),
        (ICEBERG, _rolled_back, 4, "epoch-closed"),
    ],
)
def test_also_table_that_others_set_back_is_refused_and_a_reset_takes_it_as_it_is(
    several: Several, sink: dict[str, Any], change: Callable[[Several], None], left: int, point: str | None
) -> None:
    several.configure(also=[sink])
    for run in ("a", "b"):
        drain(several, 4, run)
    change(several)
    several.feed(3)
    message = several.run("c", expect=41).message
    assert f"sluice reset {several.name} --reason TEXT" in message
    assert "--truncate" not in message
    if point is None:
        reset(several)
    else:
        killed(several, point, "reset", "--reason", "x")
    for run in ("d", "e"):
        drain(several, 1, run)
    several.assert_exact()
    held = several.held(sink)
    assert (held.total(), max(held.values())) == (left + 5, 1)
    assert set(held) <= set(several.sink())


@LONG
def test_also_topic_that_was_recreated_needs_another_place(several: Several) -> None:
    several.configure(also=[several.into()])
    drain(several, 4, "a")
    several.topics.delete(several.target)
    several.topics.create(several.target, 3, {})
    several.feed(4)
    assert f"sluice reset {several.name}" in " ".join(several.run("b", expect=41).message.split())
    several.configure(also=[FILES])
    reset(several)
    several.run("c")
    several.assert_exact()
    assert several.in_files().total() == 4
