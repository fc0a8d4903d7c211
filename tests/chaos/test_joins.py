"""Transforms that join tables: a batch that is processed again makes the same rows, although a table moved on."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.chaos.test_interval import days, feed_days
from tests.chaos.test_redrive import assert_conserved, redrive
from tests.chaos.test_retract import retract
from tests.chaos.test_window_audit import deep
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

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


def joined(sandbox: Sandbox) -> Counter[Row]:
    rows = sandbox.rows()
    names = ("_partition", "_offset", "carrier")
    return Counter() if rows is None else Counter(zip(*(rows.column(c).to_pylist() for c in names), strict=True))


def expected(offsets: list[tuple[str, int, int]], name: str, first: int = 0) -> Counter[Row]:
    """The rows of records that were fed one after another, the first of them with the id ``first``."""
    return Counter((p, o, f"{name} {(first + n) % 2}") for n, (_, p, o) in enumerate(offsets))


def versions(sandbox: Sandbox, path: str = "table") -> list[int]:
    """The versions that the commits of the sink name, oldest first."""
    history = DeltaTable(str(sandbox.home / path)).history()
    notes = [json.loads(note) if isinstance(note := c["sluice"], str) else note for c in history if "sluice" in c]
    return [note["tables"]["carriers"]["version"] for note in notes[::-1]]


@pytest.mark.parametrize(
    ("recovery", "point"),
    [
        ("replay", "rows-staged"),
        *(
            pytest.param(recovery, point, marks=pytest.mark.long)
            for recovery, points in {
                "replay": ("batch-started", "before-sink-commit", "sink-committed", "batch-recorded", "query-ended"),
                "wal": (
                    "sealed",
                    "batch-started",
                    "rows-staged",
                    "before-sink-commit",
                    "sink-committed",
                    "batch-recorded",
                ),
                "hot": ("rows-staged",),
                "ignore_range": ("rows-staged",),
                "ignore_batch": ("rows-staged",),
            }.items()
            for point in points
        ),
    ],
)
def test_a_batch_that_is_processed_again_makes_the_same_rows(sandbox: Sandbox, recovery: str, point: str) -> None:
    joining(sandbox, recovery=recovery)
    assert carriers(sandbox, "old") == 0
    first = sandbox.feed(6)
    sandbox.run("died", kill_at=point)
    assert carriers(sandbox, "new") == 1
    second = sandbox.feed(6)
    sandbox.run("next")
    # what was never begun is not bound to any version
    begun = "new" if point == "sealed" else "old"
    assert joined(sandbox) == expected(first, begun) + expected(second, "new")
    sandbox.assert_exact()
    assert versions(sandbox) == [int(begun == "new"), 1]
    status = json.loads(sandbox.cli("status", sandbox.name, "--json").stdout)
    told = {row["run"]: row.get("tables", {}).get("carriers") for row in status}
    here = point in ("sink-committed", "batch-recorded", "query-ended") or point == "sealed"
    assert told == {"died": None if point == "sealed" else [0], "next": [1] if here else [0, 1]}
    assert "tables: carriers at version" in sandbox.cli("status", sandbox.name).stderr


def test_a_version_that_was_vacuumed_is_refused_and_the_file_may_name_another(sandbox: Sandbox) -> None:
    joining(sandbox)
    carriers(sandbox, "old")
    first = sandbox.feed(6)
    sandbox.run("died", kill_at="rows-staged")
    carriers(sandbox, "new")
    DeltaTable(str(sandbox.home / "carriers")).vacuum(0, dry_run=False, enforce_retention_duration=False)
    newest = DeltaTable(str(sandbox.home / "carriers")).version()
    said = sandbox.run("refused", expect=10).message
    assert "tables.carriers: version 0 of the Delta table" in said
    assert "1 of its files were removed" in said
    assert f"version: {newest} (the newest) below tables.carriers.delta" in said
    assert joined(sandbox) == Counter()
    joining(sandbox, table={"version": newest})
    sandbox.run("chosen")
    assert joined(sandbox) == expected(first, "new")
    joining(sandbox)
    carriers(sandbox, "newer")
    second = sandbox.feed(6)
    sandbox.run("next")
    assert joined(sandbox) == expected(first, "new") + expected(second, "newer")
    sandbox.assert_exact()


@pytest.mark.long
def test_no_record_is_blamed_for_a_table_that_cannot_be_read(sandbox: Sandbox) -> None:
    joining(sandbox, recovery="ignore_range")
    said = sandbox.run("too early", expect=10).message
    assert "tables.carriers: there is no Delta table at" in said
    path = str(sandbox.home / "carriers")
    # Delta's own reader finds out when it reads
    write_deltalake(path, pa.table({"id": [0, 1], "carrier": ["x 0", "x 1"], "part": [1, 1]}), partition_by=["part"])
    (file,) = (sandbox.home / "carriers").rglob("*.parquet")
    shutil.move(file, sandbox.home / "aside")
    fed = sandbox.feed(6)
    said = sandbox.run("blind", expect=20).message
    assert "tables.carriers: version 0 of the Delta table" in said
    assert sandbox.total("lost") == 0
    assert joined(sandbox) == Counter()
    shutil.move(sandbox.home / "aside", file)
    sandbox.run("seeing")
    assert joined(sandbox) == expected(fed, "x")
    sandbox.assert_exact()


@pytest.mark.long
@pytest.mark.parametrize("recovery", ["ignore_range", "ignore_batch"])
@pytest.mark.parametrize("join", ["LEFT JOIN", "JOIN"])
def test_no_record_is_blamed_for_a_wrong_row_of_a_table(sandbox: Sandbox, recovery: str, join: str) -> None:
    """Spark makes numbers of all codes before it looks for those of the records."""
    sql = f"SELECT s.*, c.carrier FROM source s {join} carriers c ON CAST(c.code AS INT) = s.id % 2"
    joining(sandbox, sql, recovery=recovery)
    carriers(sandbox, "wrong", code=["0", "n/a"])
    fed = sandbox.feed(6)
    said = sandbox.run("stopped", expect=10).message
    assert "the transform fails without any record, too: a row of a joined table (carriers) is the cause" in said
    assert "'n/a' of the type" in said
    assert sandbox.total("lost") == 0
    joining(sandbox, sql, {"version": carriers(sandbox, "right", code=["0", "1"])}, recovery=recovery)
    sandbox.run("corrected")
    assert joined(sandbox) == expected(fed, "right")
    sandbox.assert_exact()


@pytest.mark.long
def test_a_record_that_a_join_cannot_take_is_still_passed_over(sandbox: Sandbox) -> None:
    sql = "SELECT s.*, c.carrier FROM source s LEFT JOIN carriers c ON c.id = 10 / (s.id - 3) * 0"
    joining(sandbox, sql, recovery="ignore_range")
    carriers(sandbox, "x")
    sandbox.feed(6)
    sandbox.run("passed over")
    assert sandbox.total("lost") == 1
    assert sandbox.total("written") == 5


@pytest.mark.long
def test_a_table_that_was_made_anew_is_not_taken_for_the_one_of_the_batch(sandbox: Sandbox) -> None:
    joining(sandbox, also=[{"delta": {"path": "second"}}])
    carriers(sandbox, "old")
    first = sandbox.feed(6)
    sandbox.run("died", kill_at="rows-staged")
    shutil.rmtree(sandbox.home / "carriers")
    assert carriers(sandbox, "other") == 0, "the same number"
    said = sandbox.run("refused", expect=10).message
    assert "version 0 of the Delta table" in said
    assert "it has other files than when the batch was begun" in said
    assert joined(sandbox) == Counter()
    joining(sandbox, table={"version": 0}, also=[{"delta": {"path": "second"}}])
    sandbox.run("chosen")
    assert joined(sandbox) == expected(first, "other")
    sandbox.assert_exact()


@pytest.mark.long
def test_an_interval_reads_the_version_of_its_run(sandbox: Sandbox) -> None:
    joining(sandbox)
    carriers(sandbox, "old")
    feed_days(sandbox, 1, 5)
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
    assert sandbox.ledger.account(sandbox.name, "as it was")["tables"] == {"carriers": [0]}
    sandbox.assert_exact()


@pytest.mark.long
def test_rows_that_were_taken_back_are_made_of_the_newest_version(sandbox: Sandbox) -> None:
    joining(sandbox)
    carriers(sandbox, "wrong")
    fed = sandbox.feed(6)
    sandbox.run("first")
    carriers(sandbox, "right")
    assert retract(sandbox, "first")
    killed = sandbox.cli(
        "redrive", str(sandbox.file), "--run", "again", "--no-validate", SLUICE_KILL_AT="before-sink-commit"
    )
    assert killed.returncode != 0
    carriers(sandbox, "later")
    redrive(sandbox, "--run", "again")
    assert joined(sandbox) == expected(fed, "right")
    assert_conserved(sandbox)


@pytest.mark.long
def test_a_further_sink_has_the_same_rows(sandbox: Sandbox) -> None:
    joining(sandbox, also=[{"delta": {"path": "second"}}])
    carriers(sandbox, "old")
    fed = sandbox.feed(6)
    sandbox.run("died", kill_at="also-staged")
    carriers(sandbox, "new")
    sandbox.run("died", kill_at="sink-committed")
    carriers(sandbox, "newer")
    sandbox.run("next")
    assert joined(sandbox) == expected(fed, "old")
    second = sandbox.rows("second")
    assert sorted(map(repr, second.to_pylist())) == sorted(map(repr, sandbox.rows().to_pylist()))
    assert versions(sandbox) == versions(sandbox, "second") == [0]


@pytest.mark.long
def test_a_batch_of_an_older_version_has_the_columns_of_that_version(sandbox: Sandbox) -> None:
    sql = "SELECT s.*, c.* EXCEPT (id) FROM source s LEFT JOIN carriers c ON c.id = s.id % 2"
    joining(sandbox, sql, sink={"delta": {"path": "table", "evolve": "add"}})
    carriers(sandbox, "old")
    first = sandbox.feed(6)
    sandbox.run("died", kill_at="before-sink-commit")
    carriers(sandbox, "new", country=["US", "DE"])
    second = sandbox.feed(6)
    sandbox.run("next")
    assert joined(sandbox) == expected(first, "old") + expected(second, "new")
    begun = DeltaTable(str(sandbox.home / "table"), version=0).schema().fields
    assert "country" not in {column.name for column in begun}
    assert Counter(sandbox.rows().column("country").to_pylist()) == {None: 6, "US": 3, "DE": 3}
    sandbox.assert_exact()


@pytest.mark.long
def test_an_aggregate_of_a_batch_is_the_same_again(sandbox: Sandbox) -> None:
    """``rows: aggregate``: what a batch counts by a table's column is the same when it is counted again."""
    sql = "SELECT c.carrier, count(*) AS n FROM source s JOIN carriers c ON c.id = s.id % 2 GROUP BY c.carrier"
    joining(sandbox, sql, rows="aggregate")
    carriers(sandbox, "old")
    sandbox.feed(6)
    sandbox.run("died", kill_at="rows-staged")
    carriers(sandbox, "new")
    sandbox.run("next")
    rows = sandbox.rows()
    assert Counter(zip(rows.column("carrier").to_pylist(), rows.column("n").to_pylist(), strict=True)) == {
        ("old 0", 3): 1, ("old 1", 3): 1,
    }  # fmt: skip


def at_hour(sandbox: Sandbox, hour: int, ids: range) -> None:
    """Feed records of an hour."""
    rows = [{"id": n, "name": "x", "at": f"2026-01-01T{hour:02}:{n % 60:02}:00Z"} for n in ids]
    sandbox.produce([(row["id"] % 2, b"k", json.dumps(row).encode()) for row in rows])


def remembering(sandbox: Sandbox, recovery: str, sql: str = JOIN, **keys: Any) -> None:
    joining(
        sandbox, sql, recovery=recovery, decode={"json": {"schema": "id BIGINT, name STRING, at TIMESTAMP"}}, **keys
    )


WINDOW = {"time": "at", "size": "1h", "by": ["carrier"], "aggregates": {"events": "count(*)"}, "watermark": "1h"}
POINTS = {
    "replay": ("run-planned", "batch-started", "rows-staged", "before-sink-commit", "sink-committed", "query-ended"),
    "wal": ("sealed", "batch-started", "sink-committed", "batch-recorded"),
    "hot": ("rows-staged", "batch-recorded"),
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("recovery", "point"),
    [
        ("replay", "batch-recorded"),
        *(pytest.param(of, point, marks=pytest.mark.long) for of, points in POINTS.items() for point in points),
    ],
)
def test_windows_are_of_the_version_with_which_a_batch_was_begun(sandbox: Sandbox, recovery: str, point: str) -> None:
    remembering(sandbox, recovery, window={**WINDOW, "output": "update"})
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
    table = sandbox.rows()
    assert table is not None
    found = {(row["window_start"].hour, row["carrier"]): row["events"] for row in table.to_pylist()}
    assert found == {
        (0, f"{first} 0"): 3, (0, f"{first} 1"): 3, (1, f"{second} 0"): 3, (1, f"{second} 1"): 3,
        (2, "new 0"): 2, (2, "new 1"): 2,
    }  # fmt: skip
    assert table.num_rows == 6
    assert (sandbox.total("written"), sandbox.total("lost"), sandbox.total("filtered")) == (16, 0, 0)
    assert sandbox.cli("audit", str(sandbox.file), "--deep").returncode == 0
    at_hour(sandbox, 5, range(1))
    sandbox.run("closes")
    told = deep(sandbox)
    assert (told["problems"], told["unproved"]) == ([], [])
    assert told["tables"]["windows"]["windows"] == 6, "each with the version that its batch joined"


@pytest.mark.long
@pytest.mark.parametrize("point", ["batch-recorded", pytest.param("sink-committed", marks=pytest.mark.long)])
@pytest.mark.parametrize("recovery", ["replay", pytest.param("wal", marks=pytest.mark.long)])
def test_keys_of_a_joined_table_are_remembered_as_they_were_accounted_for(
    sandbox: Sandbox, recovery: str, point: str
) -> None:
    remembering(sandbox, recovery, dedupe={"keys": ["carrier"], "within": "1h", "time": "at"})
    carriers(sandbox, "old")
    at_hour(sandbox, 0, range(6))
    sandbox.run("died", kill_at=point)
    carriers(sandbox, "new")
    at_hour(sandbox, 0, range(6, 12))
    sandbox.run("next")  # it makes the state of the dead run's batch, and joins what that joined
    assert Counter(carrier for _, _, carrier in joined(sandbox)) == Counter(["old 0", "old 1"])
    at_hour(sandbox, 0, range(12, 18))
    sandbox.run("last")
    assert Counter(carrier for _, _, carrier in joined(sandbox)) == Counter(["old 0", "old 1", "new 0", "new 1"])
    assert (sandbox.total("written"), sandbox.total("filtered"), sandbox.total("lost")) == (4, 14, 0)


@pytest.mark.long
def test_windows_of_an_interval_join_the_newest_version(sandbox: Sandbox) -> None:
    remembering(sandbox, "replay", window={**WINDOW, "output": "append"})
    carriers(sandbox, "old")
    for hour, ids in ((0, range(6)), (1, range(4)), (9, range(1))):
        at_hour(sandbox, hour, ids)
    sandbox.run("live")

    def windows() -> dict[tuple[int, str], int]:
        table = sandbox.rows()
        assert table is not None
        return {(row["window_start"].hour, row["carrier"]): row["events"] for row in table.to_pylist()}

    assert windows() == {(0, "old 0"): 3, (0, "old 1"): 3, (1, "old 0"): 2, (1, "old 1"): 2}
    carriers(sandbox, "new")
    sandbox.run("again", interval=("2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"))
    assert windows() == {(0, "new 0"): 3, (0, "new 1"): 3, (1, "old 0"): 2, (1, "old 1"): 2}
    told = deep(sandbox)
    assert (told["problems"], told["unproved"]) == ([], [])
    assert told["tables"]["windows"]["windows"] == 4


@pytest.mark.long
def test_state_is_not_made_of_another_version_than_the_account(sandbox: Sandbox) -> None:
    remembering(sandbox, "replay", window={**WINDOW, "output": "update"})
    carriers(sandbox, "old")
    at_hour(sandbox, 0, range(6))
    sandbox.run("died", kill_at="batch-recorded")
    carriers(sandbox, "new")
    DeltaTable(str(sandbox.home / "carriers")).vacuum(0, dry_run=False, enforce_retention_duration=False)
    newest = DeltaTable(str(sandbox.home / "carriers")).version()
    for table in (None, {"version": newest}):
        remembering(sandbox, "replay", window={**WINDOW, "output": "update"}, table=table)
        said = sandbox.run("refused", expect=41).message
        assert "a driver died after it committed batch 0" in said
    remembering(sandbox, "replay", window={**WINDOW, "output": "update"})
    done = sandbox.cli("reset", str(sandbox.file), "--reason", "gone", "--yes", "--truncate", "--from", "earliest")
    assert done.returncode == 0, done.stderr
    sandbox.run("again")
    table = sandbox.rows()
    assert table is not None
    assert Counter(table.column("carrier").to_pylist()) == Counter(["new 0", "new 1"])


def test_a_record_that_a_join_doubles_is_noticed_although_another_has_no_row(sandbox: Sandbox) -> None:
    remembering(sandbox, "replay", JOIN.replace("LEFT JOIN", "JOIN"), window={**WINDOW, "output": "update"})
    path = str(sandbox.home / "carriers")
    write_deltalake(path, pa.table({"id": [0, 0], "carrier": ["a", "b"]}))
    at_hour(sandbox, 0, range(6))
    said = sandbox.run("doubled", expect=None)
    assert said.code != 0
    assert "3 records came out of the transform, where rows: one allows one row per record" in said.message
    assert sandbox.rows() is None
