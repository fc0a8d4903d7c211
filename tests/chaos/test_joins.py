"""``tables``: a batch that is processed again joins the versions of before, although a table has newer ones."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.chaos import commands
from tests.chaos.cases import each
from tests.chaos.commands import assert_conserved, days, deep, delta, listed
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka, pytest.mark.long]

JOIN = "SELECT s.*, c.carrier FROM source s LEFT JOIN carriers c ON c.id = s.id % 2"
Row = tuple[int, int, str]


def joining(sandbox: Sandbox, sql: str = JOIN, table: dict[str, Any] | None = None, **keys: Any) -> None:
    tables = {"carriers": {"delta": {"path": "carriers", **(table or {})}}}
    sandbox.configure(transform={"sql": sql}, tables=tables, **keys)


def carriers(sandbox: Sandbox, name: str, **more: Any) -> int:
    """Write a version of the table in which all carriers have this name; return the version."""
    path = str(sandbox.home / "carriers")
    rows = {"id": pa.array([0, 1], pa.int64()), "carrier": [f"{name} 0", f"{name} 1"], **more}
    write_deltalake(path, pa.table(rows), mode="overwrite", schema_mode="overwrite")
    return int(DeltaTable(path).version())


def vacuumed(sandbox: Sandbox) -> int:
    """Remove the files of older versions; return the newest one."""
    delta(sandbox, "carriers").vacuum(0, dry_run=False, enforce_retention_duration=False)
    return int(delta(sandbox, "carriers").version())


def joined(sandbox: Sandbox) -> Counter[Row]:
    return Counter((row["_partition"], row["_offset"], row["carrier"]) for row in listed(sandbox))


def expected(offsets: list[tuple[str, int, int]], name: str) -> Counter[Row]:
    """The rows of records that were fed one after another, the first of them with an even id."""
    return Counter((p, o, f"{name} {n % 2}") for n, (_, p, o) in enumerate(offsets))


def versions(sandbox: Sandbox) -> list[int]:
    """The versions that the commits of the sink name, oldest first."""
    history = delta(sandbox).history()
    notes = [json.loads(note) if isinstance(note := c["sluice"], str) else note for c in history if "sluice" in c]
    return [note["tables"]["carriers"]["version"] for note in notes[::-1]]


BEGUN = {
    "replay": ("batch-started", "rows-staged", "before-sink-commit", "sink-committed", "batch-recorded", "query-ended"),
    "wal": ("sealed", "batch-started", "rows-staged", "sink-committed"),
    **dict.fromkeys(("hot", "ignore_range", "ignore_batch"), ("rows-staged",)),
}


@pytest.mark.parametrize(("recovery", "point"), each(BEGUN))
def test_batch_that_is_processed_again_makes_the_same_rows(sandbox: Sandbox, recovery: str, point: str) -> None:
    joining(sandbox, recovery=recovery)
    assert carriers(sandbox, "old") == 0
    first = sandbox.feed(6)
    sandbox.run("died", kill_at=point)
    assert carriers(sandbox, "new") == 1
    second = sandbox.feed(6)
    sandbox.run("next")
    # a batch that was never begun is not bound to any version
    begun = "new" if point == "sealed" else "old"
    assert joined(sandbox) == expected(first, begun) + expected(second, "new")
    sandbox.assert_exact()
    assert versions(sandbox) == [int(begun == "new"), 1]
    status = json.loads(sandbox.cli("status", sandbox.name, "--json").stdout)
    shown = {row["run"]: row.get("tables", {}).get("carriers") for row in status}
    here = point in ("sealed", "sink-committed", "batch-recorded", "query-ended")
    assert shown == {"died": None if point == "sealed" else [0], "next": [1] if here else [0, 1]}
    assert "tables: carriers at version" in sandbox.cli("status", sandbox.name).stderr


@pytest.mark.parametrize(("recovery", "join"), [("ignore_range", "LEFT JOIN"), ("ignore_batch", "JOIN")])
def test_no_record_is_blamed_for_a_wrong_row_of_a_table(sandbox: Sandbox, recovery: str, join: str) -> None:
    """Spark makes numbers of all codes before it looks for those of the records."""
    sql = f"SELECT s.*, c.carrier FROM source s {join} carriers c ON CAST(c.code AS INT) = s.id % 2"
    joining(sandbox, sql, recovery=recovery)
    carriers(sandbox, "wrong", code=["0", "n/a"])
    fed = sandbox.feed(6)
    message = sandbox.run("stopped", expect=10).message
    assert "a row of a joined table (carriers) is the cause" in message
    assert "'n/a'" in message
    assert sandbox.total("lost") == 0
    joining(sandbox, sql, {"version": carriers(sandbox, "right", code=["0", "1"])}, recovery=recovery)
    sandbox.run("corrected")
    assert joined(sandbox) == expected(fed, "right")
    sandbox.assert_exact()


def test_interval_joins_the_version_of_its_run(sandbox: Sandbox) -> None:
    joining(sandbox)
    carriers(sandbox, "old")
    commands.feed_days(sandbox, 1, 5)
    sandbox.run("live")

    def names() -> Counter[str]:
        return Counter(row[2].split()[0] for row in joined(sandbox).elements())

    assert names() == {"old": 16}
    carriers(sandbox, "new")
    sandbox.run("interval", interval=days(2, 3), kill_at="rows-staged")
    carriers(sandbox, "newer")
    sandbox.run("interval", interval=days(2, 3))
    assert names() == {"old": 12, "new": 4}, "another attempt of the same run"
    sandbox.run("interval", interval=days(2, 3), kill_at="rows-staged")
    carriers(sandbox, "newest")
    sandbox.run("another", interval=days(2, 3))
    assert names() == {"old": 12, "newest": 4}, "another run"
    joining(sandbox, table={"version": 0})
    sandbox.run("as it was", interval=days(2, 3))
    assert names() == {"old": 16}
    assert versions(sandbox) == [0, 0, 0, 1, 3, 0], "three batches of the live run, then intervals"
    assert sandbox.ledger.runs.account(sandbox.name, "as it was")["tables"] == {"carriers": [0]}
    sandbox.assert_exact()


def test_redriven_rows_join_the_newest_version(sandbox: Sandbox) -> None:
    joining(sandbox)
    carriers(sandbox, "wrong")
    fed = sandbox.feed(6)
    sandbox.run("first")
    carriers(sandbox, "right")
    commands.retract(sandbox, "first")
    commands.killed(sandbox, "before-sink-commit", "redrive", "--run", "again", "--no-validate")
    carriers(sandbox, "later")
    commands.redrive(sandbox, "--run", "again")
    assert joined(sandbox) == expected(fed, "right")
    assert_conserved(sandbox)


def at_hour(sandbox: Sandbox, hour: int, ids: range) -> None:
    """Feed records of an hour."""
    rows = [{"id": n, "name": "x", "at": f"2026-01-01T{hour:02}:{n % 60:02}:00Z"} for n in ids]
    sandbox.produce([(row["id"] % 2, b"k", json.dumps(row).encode()) for row in rows])


def remembering(sandbox: Sandbox, recovery: str = "replay", sql: str = JOIN, **keys: Any) -> None:
    """Join before windows."""
    decode = {"json": {"schema": "id BIGINT, name STRING, at TIMESTAMP"}}
    joining(sandbox, sql, recovery=recovery, decode=decode, window=WINDOW, **keys)


WINDOW = {
    "time": "at", "size": "1h", "by": ["carrier"], "aggregates": {"events": "count(*)"}, "watermark": "1h",
    "output": "update",
}  # fmt: skip
POINTS = {
    "replay": ("run-planned", "batch-started", "sink-committed", "batch-recorded", "query-ended"),
    "wal": ("sealed", "batch-started", "batch-recorded"),
    "hot": ("rows-staged",),
}


@pytest.mark.parametrize(("recovery", "point"), each(POINTS))
def test_windows_join_the_version_with_which_a_batch_was_begun(sandbox: Sandbox, recovery: str, point: str) -> None:
    remembering(sandbox, recovery)
    carriers(sandbox, "old")
    at_hour(sandbox, 0, range(6))
    sandbox.run("died", kill_at=point)
    carriers(sandbox, "new")
    at_hour(sandbox, 1, range(6))
    sandbox.run("next")
    at_hour(sandbox, 2, range(4))
    sandbox.run("last")
    begun = point not in ("run-planned", "sealed")
    first = "old" if begun else "new"
    second = "old" if begun and point != "query-ended" else "new"  # one query makes the batches of a run
    found = Counter((row["window_start"].hour, row["carrier"], row["events"]) for row in listed(sandbox))
    assert found == Counter([
        (0, f"{first} 0", 3), (0, f"{first} 1", 3), (1, f"{second} 0", 3), (1, f"{second} 1", 3),
        (2, "new 0", 2), (2, "new 1", 2),
    ])  # fmt: skip
    assert (sandbox.total("written"), sandbox.total("lost"), sandbox.total("filtered")) == (16, 0, 0)
    deep(sandbox)
    at_hour(sandbox, 5, range(1))
    sandbox.run("closes")
    commands.assert_audited(sandbox, "--windows")  # each window with the version that its batch joined
    assert deep(sandbox, "--windows")["tables"]["windows"]["windows"] == 6


def test_state_is_refused_when_the_version_of_its_account_is_gone(sandbox: Sandbox) -> None:
    remembering(sandbox)
    carriers(sandbox, "old")
    at_hour(sandbox, 0, range(6))
    sandbox.run("died", kill_at="batch-recorded")
    carriers(sandbox, "new")
    newest = vacuumed(sandbox)
    for table in (None, {"version": newest}):
        remembering(sandbox, table=table)
        assert "batch 0" in sandbox.run("refused", expect=41).message
    remembering(sandbox)
    commands.reset(sandbox, "--yes", *commands.AGAIN)
    sandbox.run("again")
    assert Counter(row["carrier"] for row in listed(sandbox)) == Counter(["new 0", "new 1"])


def test_join_that_doubles_a_record_is_refused_although_another_has_no_row(sandbox: Sandbox) -> None:
    remembering(sandbox, sql=JOIN.replace("LEFT JOIN", "JOIN"))
    write_deltalake(str(sandbox.home / "carriers"), pa.table({"id": [0, 0], "carrier": ["a", "b"]}))
    at_hour(sandbox, 0, range(6))
    outcome = sandbox.run("doubled", expect=None)
    assert outcome.code != 0
    assert "rows: one allows one row per record" in outcome.message
    assert sandbox.rows() is None
