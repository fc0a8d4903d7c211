"""PostgreSQL as a sink: whatever dies, each record is in one place once, and an interval replaces its rows."""

from __future__ import annotations

import signal
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from adbc_driver_manager import AdbcStatusCode
from adbc_driver_postgresql import dbapi
from tests.fixtures.database import PostgresSandbox
from tests.fixtures.runs import await_that, good

from sluice_spark.sinks.postgres.commits import lock_number

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
def test_kills_neither_lose_nor_double(into_postgres: PostgresSandbox, recovery: str, points: tuple[str, ...]) -> None:
    sandbox = into_postgres
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
    assert sandbox.staged() == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("recovery", "points"),
    [
        ("replay", ("before-sink-commit", "sink-committed")),
        ("wal", ("before-seal", "sealed", *DIRECT)),
        ("hot", ("rows-staged", *DIRECT)),
        ("ignore_range", DIRECT),
    ],
)
def test_kills_neither_bring_a_deleted_row_back_nor_keep_it(
    into_postgres: PostgresSandbox, recovery: str, points: tuple[str, ...]
) -> None:
    sandbox, wanted = into_postgres, {}
    sandbox.configure(
        recovery=recovery,
        sink={"postgres": {"table": "orders", "mode": "upsert", "key": ["key"]}},
        decode={"json": {"schema": "id BIGINT, name STRING", "key": "key", "tombstone": "delete"}},
        quality={"max_quarantined": "100%"},
    )
    for turn, point in enumerate(points):
        sent = [(f"k{n % 4}", None if (n + turn) % 3 == 0 else n + 10 * turn) for n in range(8)]
        sandbox.produce([(int(k[1]) % 2, k.encode(), None if n is None else good(n)) for k, n in sent])
        sandbox.produce([(0, b"bad", b"{")])  # without one the quarantine gets no commit
        wanted |= dict(sent)
        sandbox.run("killed", kill_at=point)
    sandbox.run("killed")
    assert {row["key"]: row["id"] for row in sandbox.orders()} == {k: n for k, n in wanted.items() if n is not None}
    assert None in wanted.values()
    assert sandbox.total("written") + len(points) == len(sandbox.produced)
    assert sum(sandbox.quarantine().values()) == len(points)
    sandbox.assert_balanced()


@pytest.mark.parametrize(
    "point",
    ["sink-committed", *(pytest.param(p, marks=pytest.mark.long) for p in ("before-sink-commit", "batch-recorded"))],
)
def test_an_interval_replaces_its_rows_once(into_postgres: PostgresSandbox, point: str) -> None:
    sandbox = into_postgres
    sandbox.configure(quality={"max_quarantined": "100%"})
    for day in (1, 2, 3):
        sandbox.produce(
            [(n % 2, b"k", b"{" if n == 4 else good(day * 10 + n), at(day, n)) for n in range(6)]
        )  # fmt: skip
    sandbox.run("live")
    sandbox.configure(
        quality={"max_quarantined": "100%"}, transform={"sql": "SELECT id, upper(name) AS name, _topic, _partition, "
        "_offset, _timestamp FROM source"},
    )  # fmt: skip
    sandbox.run("again", interval=("2026-03-02", "2026-03-03"), kill_at=point)
    sandbox.run("again", interval=("2026-03-02", "2026-03-03"))
    sandbox.assert_exact()
    names = Counter(row["name"].isupper() for row in sandbox.orders())
    assert names == {True: 5, False: 10}
    assert {row["_run"] for row in sandbox.orders() if row["name"].isupper()} == {"again"}
    assert sandbox.staged() == []


@pytest.mark.long
def test_what_was_refused_or_lost_is_redriven(into_postgres: PostgresSandbox) -> None:
    sandbox = into_postgres
    sandbox.configure(quality={"max_quarantined": "100%"}, decode={"json": {"schema": "id INT, name STRING"}})
    sandbox.produce([(0, b"k", b'{"id": %d, "name": "x"}' % n) for n in (1, 2**40, 3)])
    sandbox.run("live")
    assert sum(sandbox.quarantine().values()) == 1
    sandbox.change("ALTER TABLE public.orders ALTER COLUMN id TYPE bigint")
    sandbox.configure(quality={"max_quarantined": "100%"})
    sandbox.run("moved", redriven="quarantined", kill_at="sink-committed")
    sandbox.run("moved again", redriven="quarantined")
    assert [row["id"] for row in sandbox.orders()] == [1, 2**40, 3]
    assert sandbox.quarantine() == Counter()
    sandbox.assert_balanced()


def test_a_driver_that_wakes_up_late_adds_nothing(into_postgres: PostgresSandbox) -> None:
    sandbox = into_postgres
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


def test_a_commit_whose_answer_is_lost_is_in_the_table_once(into_postgres: PostgresSandbox, monkeypatch: Any) -> None:
    sandbox, real, cut = into_postgres, dbapi.Connection.commit, []
    sandbox.feed(5)

    def commit(self: Any) -> None:
        real(self)
        if not cut:  # the server has committed, and the client hears that the connection is gone
            cut.append(True)
            raise dbapi.OperationalError("the connection is lost", status_code=AdbcStatusCode.IO, sqlstate="08006")

    monkeypatch.setattr(dbapi.Connection, "commit", commit)
    sandbox.run("r")
    assert cut
    sandbox.assert_exact()


@pytest.mark.long
def test_a_server_that_dies_under_way_leaves_nothing(into_postgres: PostgresSandbox) -> None:
    """A backend that ends while rows are inserted: nothing is visible, and the next run has all."""
    sandbox = into_postgres
    sandbox.feed(3)
    sandbox.run("first")
    sandbox.change(
        "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$",
        "CREATE TRIGGER dies BEFORE INSERT ON public.orders FOR EACH ROW EXECUTE FUNCTION die()",
    )
    sandbox.feed(3)
    said = sandbox.run("second", expect=30).message
    assert "nothing of this batch was committed" in said
    assert sum(sandbox.sink().values()) == 3
    sandbox.change("DROP TRIGGER dies ON public.orders")
    sandbox.run("second")
    sandbox.assert_exact()


@pytest.mark.long
def test_a_commit_under_way_is_waited_for(into_postgres: PostgresSandbox) -> None:
    """What a dead driver's server process still does is known before anything is decided."""
    sandbox = into_postgres
    sandbox.configure(transform={"python": "gate:passing"})
    sandbox.feed(5)
    late = sandbox.start("r", gate_at="before-sink-commit")
    late.await_gate()
    engine = sa.create_engine(sandbox.database)
    with engine.connect() as other:  # as the dead driver's, which holds the lock and has not ended
        other.execute(sa.text(f"SELECT pg_advisory_xact_lock({lock_number('public', 'orders')})"))
        late.open_gate()
        waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        await_that(lambda: sandbox.query(waiting), "the driver waits", late.process)
        assert sandbox.sink() == Counter()
        other.rollback()
    engine.dispose()
    assert late.wait().code == 0
    sandbox.assert_exact()
