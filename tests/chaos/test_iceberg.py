"""Iceberg as a sink: whatever dies, each record is in one place once, and an interval replaces its rows."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from tests.fixtures.lake import IcebergSandbox
from tests.fixtures.runs import good

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

DIRECT = ("before-sink-commit", "sink-committed", "quarantine-committed", "batch-recorded")


def at(day: int, minutes: int = 0) -> int:
    return int(datetime(2026, 3, day, 0, minutes, tzinfo=UTC).timestamp() * 1000)


@pytest.mark.parametrize(
    ("recovery", "points"),
    [
        ("replay", ("before-sink-commit", "sink-committed")),
        pytest.param("replay", DIRECT, marks=pytest.mark.long),
        pytest.param("wal", ("before-seal", "sealed", *DIRECT), marks=pytest.mark.long),
        pytest.param("hot", ("rows-staged", *DIRECT), marks=pytest.mark.long),
        pytest.param("ignore_range", DIRECT, marks=pytest.mark.long),
        pytest.param("ignore_batch", DIRECT, marks=pytest.mark.long),
    ],
)
def test_kills_neither_lose_nor_double(into_iceberg: IcebergSandbox, recovery: str, points: tuple[str, ...]) -> None:
    sandbox = into_iceberg
    sandbox.configure(recovery=recovery, quality={"max_quarantined": "100%"})
    for point in points:
        sandbox.feed(8, bad_every=3)
        sandbox.run("killed", kill_at=point)
        assert set((sandbox.sink() + sandbox.quarantine()).values()) <= {1}
    sandbox.run("killed")
    lost = sandbox.total("lost")
    if recovery.startswith("ignore"):
        assert sum((sandbox.sink() + sandbox.quarantine()).values()) + lost == len(sandbox.produced)
        sandbox.assert_balanced()
    else:
        sandbox.assert_exact()
    assert sandbox.strays() == set()


@pytest.mark.long
@pytest.mark.parametrize(
    "point",
    ["sink-committed", "before-sink-commit", "batch-recorded"],
)
def test_an_interval_replaces_its_rows_once(into_iceberg: IcebergSandbox, point: str) -> None:
    sandbox = into_iceberg
    sandbox.configure(quality={"max_quarantined": "100%"}, kafka={"max_records_per_batch": 100})
    for day in (1, 2, 3):
        sandbox.produce([(n % 2, b"k", b"{" if n == 4 else good(day * 10 + n), at(day, n)) for n in range(6)])
    sandbox.run("live")  # one batch: its files hold rows to replace and rows to keep
    sql = "SELECT id, upper(name) AS name, _topic, _partition, _offset, _timestamp FROM source"
    sandbox.configure(quality={"max_quarantined": "100%"}, transform={"sql": sql})
    sandbox.run("again", interval=("2026-03-02", "2026-03-03"), kill_at=point)
    sandbox.run("again", interval=("2026-03-02", "2026-03-03"))
    sandbox.assert_exact()
    assert Counter(row["name"].isupper() for row in sandbox.lines()) == {True: 5, False: 10}
    assert {row["_run"] for row in sandbox.lines() if row["name"].isupper()} == {"again"}
    assert sandbox.strays() == set()


def _compacted(sandbox: IcebergSandbox) -> None:
    table = sandbox.orders
    table.overwrite(table.scan().to_arrow())


def _renamed(sandbox: IcebergSandbox) -> None:
    with sandbox.orders.update_schema() as update:
        update.rename_column("name", "title")


def _dropped(sandbox: IcebergSandbox) -> None:
    with sandbox.orders.update_schema() as update:
        update.delete_column("name")


@pytest.mark.parametrize(
    ("changes", "columns"),
    [
        ([_compacted], "id, name"),
        pytest.param([_renamed], "id, name AS title", marks=pytest.mark.long),
        pytest.param([_compacted, _renamed], "id, name AS title", marks=pytest.mark.long),
        pytest.param([_dropped], "id", marks=pytest.mark.long),
    ],
)
def test_rows_beside_an_interval_are_kept_whatever_others_did_to_their_file(
    into_iceberg: IcebergSandbox, changes: list[Callable[[IcebergSandbox], None]], columns: str
) -> None:
    sandbox = into_iceberg
    sql = f"SELECT {columns}, _topic, _partition, _offset, _timestamp FROM source"
    sandbox.configure(kafka={"max_records_per_batch": 100})
    for day in (1, 2, 3):
        sandbox.produce([(n % 2, b"k", good(day * 10 + n), at(day, n)) for n in range(6)])
    sandbox.run("live")
    for change in changes:
        change(sandbox)
    sandbox.configure(kafka={"max_records_per_batch": 100}, transform={"sql": sql})
    for again in ("again", "once more"):
        sandbox.run(again, interval=("2026-03-02", "2026-03-03"))
        sandbox.assert_exact()
    assert Counter(row["_run"] for row in sandbox.lines()) == {"live": 12, "once more": 6}
    if columns != "id":
        assert all(row.get("name", row.get("title")) == f"name {row['id']}" for row in sandbox.lines())


@pytest.mark.long
def test_what_was_refused_is_redriven(into_iceberg: IcebergSandbox) -> None:
    sandbox = into_iceberg
    sandbox.configure(quality={"max_quarantined": "100%"}, rules=[{"name": "small", "sql": {"passes": "id < 100"}}])
    sandbox.produce([(0, b"k", b'{"id": %d, "name": "x"}' % n) for n in (1, 2000, 3)])
    sandbox.run("live")
    assert sum(sandbox.quarantine().values()) == 1
    sandbox.configure(quality={"max_quarantined": "100%"})
    sandbox.run("moved", redriven="quarantined", kill_at="sink-committed")
    sandbox.run("moved again", redriven="quarantined")
    assert [row["id"] for row in sandbox.lines()] == [1, 2000, 3]
    assert sandbox.quarantine() == Counter()
    sandbox.assert_balanced()


def test_a_driver_that_wakes_up_late_adds_nothing(into_iceberg: IcebergSandbox) -> None:
    sandbox = into_iceberg
    sandbox.configure(transform={"python": "gate:passing"})
    sandbox.feed(5)
    frozen = sandbox.start("frozen", gate_at="before-sink-commit")
    frozen.await_gate()
    frozen.signal(signal.SIGSTOP)
    sandbox.execute("UPDATE sluice_lease SET expires = 0")
    sandbox.run("second")
    sandbox.assert_exact()
    frozen.open_gate()
    frozen.signal(signal.SIGCONT)
    assert frozen.wait().code == 40
    sandbox.assert_exact()
