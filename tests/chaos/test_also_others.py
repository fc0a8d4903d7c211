"""Further sinks of the other kinds, and what others do to a further sink between runs."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from tests.chaos.test_also import AlsoSandbox, reset
from tests.fixtures.lake import IcebergSandbox
from tests.fixtures.outward import WriterSandbox
from tests.fixtures.runs import Offset

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

ICEBERG: dict[str, Any] = {"iceberg": {"table": "shop.orders"}}
DELTA: dict[str, Any] = {"delta": {"path": "second"}}
WRITER: dict[str, Any] = {"foreach": {"python": "collector:Lines"}}


class OthersSandbox(AlsoSandbox):
    """A sandbox with a catalog, and a folder to which a user's writer writes."""

    properties, catalog, orders = IcebergSandbox.properties, IcebergSandbox.catalog, IcebergSandbox.orders
    strays, collected = IcebergSandbox.strays, WriterSandbox.collected

    def env(self, **extra: str) -> dict[str, str]:
        """The environment that configures a run."""
        lake = json.dumps({"conn_type": "iceberg", "extra": self.properties})
        return super().env(**({"AIRFLOW_CONN_ICEBERG_DEFAULT": lake, "COLLECTED": str(self.collected)} | extra))

    def in_iceberg(self) -> Counter[Offset]:
        """What the Iceberg table holds."""
        rows = self.orders.scan().to_arrow().to_pylist()
        return Counter((row["_topic"], row["_partition"], row["_offset"]) for row in rows)

    def handed_over(self) -> Counter[Offset]:
        """How often the user's writer got each row."""
        rows = WriterSandbox.lines(self)  # type: ignore[arg-type]
        return Counter((row["_topic"], row["_partition"], row["_offset"]) for row in rows)


@pytest.fixture
def into_others(sending: Callable[[type[OthersSandbox]], OthersSandbox]) -> OthersSandbox:
    """A pipeline into a table, and also into what a test says."""
    return sending(OthersSandbox)


@pytest.mark.parametrize(
    "points", [("sink-committed",), pytest.param(("also-staged", "also-committed"), marks=pytest.mark.long)]
)
def test_an_iceberg_table_that_is_not_there_yet_is_created_and_gets_each_batch_once(
    into_others: OthersSandbox, points: tuple[str, ...]
) -> None:
    sandbox = into_others
    sandbox.configure(also=[ICEBERG], quality={"max_quarantined": "100%"})
    for point in points:
        sandbox.feed(5, bad_every=3)
        sandbox.run("died", kill_at=point)
    sandbox.feed(3)
    sandbox.run("next")
    sandbox.assert_exact()
    assert sandbox.in_iceberg() == sandbox.sink()
    assert not sandbox.strays()


@pytest.mark.long
def test_a_writer_that_raises_halfway_gets_the_batch_again_before_those_behind_it(into_others: OthersSandbox) -> None:
    sandbox = into_others
    sandbox.configure(also=[{"console": {"rows": 2}}, WRITER, {"files": {"path": "out"}}])
    sandbox.produce([(0, b"k", json.dumps({"id": n, "name": f"name {n}"}).encode()) for n in range(5)])
    for run in ("first", "again"):
        said = sandbox.run(run, expect=30, POISON="name 3")
        assert f"failed at {sandbox.topic}-0 offset 3 of batch {sandbox.name}:1:0: ValueError: poison" in said.message
        assert "go on without this batch there: sluice reset" in said.message
    assert (len(sandbox.sink()), len(sandbox.in_files())) == (5, 0)
    sandbox.feed(3)
    said = sandbox.run("fixed")
    assert '"name": "name 1"' not in said.stderr, "the console has the first batch already"
    assert "and 1 more" in said.stderr
    sandbox.assert_exact()
    assert sandbox.in_files() == sandbox.sink()
    got = sandbox.handed_over()
    assert set(got) == set(sandbox.sink())
    assert {offset: times for (_, _, offset), times in got.items() if times > 1} == {0: 3, 1: 3, 2: 3}


def test_a_table_that_does_not_fit_any_more_does_not_say_that_nothing_was_committed(into_others: OthersSandbox) -> None:
    sandbox = into_others
    sandbox.configure(also=[ICEBERG])
    sandbox.feed(5)
    sandbox.run("died", kill_at="sink-committed")
    with sandbox.orders.update_schema() as update:
        update.rename_column("name", "title")
    said = sandbox.run("next", expect=10).message
    assert "name is missing in the table" in said
    assert "table has batch 0, and table shop.orders (iceberg_default) may not" in said
    with sandbox.orders.update_schema() as update:
        update.rename_column("title", "name")
    sandbox.run("next")
    sandbox.assert_exact()
    assert sandbox.in_iceberg() == sandbox.sink()


@pytest.mark.long
def test_hand_overs_go_on_behind_batches_that_some_sinks_lack(into_others: OthersSandbox) -> None:
    sandbox = into_others
    also = [{"files": {"path": "out"}}, DELTA, WRITER]
    points = ["sink-committed"] * 5 + ["epoch-closed", "sink-committed", "epoch-opened"]
    for number, point in enumerate(points):
        sandbox.configure(also=also, recovery="wal" if number % 2 else "replay")
        sandbox.feed(5)
        sandbox.run(f"died {number}", kill_at=point)
    sandbox.feed(3)
    sandbox.run("last")
    sandbox.assert_exact()
    assert sandbox.in_files() == sandbox.sink() == sandbox.offsets("second")
    assert set(sandbox.handed_over()) == set(sandbox.sink())


def _restored(sandbox: OthersSandbox) -> None:
    DeltaTable(str(sandbox.home / "second")).restore(1)


def _overwritten(sandbox: OthersSandbox) -> None:
    path = str(sandbox.home / "second")
    write_deltalake(path, DeltaTable(path).to_pyarrow_table().slice(0, 2), mode="overwrite", schema_mode="overwrite")


def _removed(sandbox: OthersSandbox) -> None:
    shutil.rmtree(sandbox.home / "second")


def _rolled_back(sandbox: OthersSandbox) -> None:
    first = sandbox.orders.snapshots()[0].snapshot_id
    sandbox.orders.manage_snapshots().set_current_snapshot(snapshot_id=first).commit()


def _dropped(sandbox: OthersSandbox) -> None:
    sandbox.catalog.drop_table("shop.orders")


@pytest.mark.long
@pytest.mark.parametrize(
    ("sink", "done", "left"),
    [
        (DELTA, _restored, 4),
        pytest.param(ICEBERG, _rolled_back, 4, marks=pytest.mark.long),
        pytest.param(DELTA, _overwritten, 2, marks=pytest.mark.long),
        pytest.param(DELTA, _removed, 0, marks=pytest.mark.long),
        pytest.param(ICEBERG, _dropped, 0, marks=pytest.mark.long),
    ],
)
def test_a_table_that_others_set_back_is_refused_and_a_reset_takes_it_as_it_is(
    into_others: OthersSandbox, sink: dict[str, Any], done: Callable[[OthersSandbox], None], left: int
) -> None:
    sandbox = into_others
    sandbox.configure(also=[sink])
    for run in ("a", "b"):
        sandbox.feed(4)
        sandbox.run(run)
    done(sandbox)
    sandbox.feed(3)
    said = sandbox.run("c", expect=41).message
    assert f"sluice reset {sandbox.name} --reason TEXT" in said
    assert "--truncate" not in said
    reset(sandbox)
    for run in ("d", "e"):
        sandbox.feed(1)
        sandbox.run(run)
    sandbox.assert_exact()
    held = sandbox.offsets("second") if sink is DELTA else sandbox.in_iceberg()
    assert (sum(held.values()), max(held.values())) == (left + 5, 1)
    assert set(held) <= set(sandbox.sink())


@pytest.mark.long
def test_a_topic_that_was_made_again_needs_another_place(into_others: OthersSandbox) -> None:
    sandbox = into_others
    sandbox.configure(also=[sandbox.into()])
    sandbox.feed(4)
    sandbox.run("a")
    sandbox.topics.delete(sandbox.target)
    sandbox.topics.create(sandbox.target, 3, {})
    sandbox.feed(4)
    said = sandbox.run("b", expect=41).message
    assert "was made again" in said
    assert f"next: give it another place in also, and go on: sluice reset {sandbox.name}" in " ".join(said.split())
    sandbox.configure(also=[{"files": {"path": "out"}}])
    reset(sandbox)
    sandbox.run("c")
    sandbox.assert_exact()
    assert sum(sandbox.in_files().values()) == 4
