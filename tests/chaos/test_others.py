"""What users and their jobs do to a pipeline's tables between two runs: each line of ``docs/tables.md``."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.fixtures.deltas import aged
from tests.fixtures.runs import Sandbox, good

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

SINCE = "2026-01-01T00:00:00Z"


def now() -> str:
    return datetime.now(UTC).isoformat()


def deep(sandbox: Sandbox) -> tuple[int, list[str]]:
    done = sandbox.cli("audit", "--deep", str(sandbox.file), "--json")
    return done.returncode, json.loads(done.stdout)["problems"]


def treat(spark: SparkSession, sandbox: Sandbox, path: str, statement: str) -> None:
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    spark.sql(statement.format(f"delta.`{sandbox.home / path}`"))


def fed(sandbox: Sandbox) -> None:
    """Two runs of a pipeline with a quarantine."""
    for run in ("first", "second"):
        sandbox.feed(12, bad_every=3)
        sandbox.run(run)


@pytest.mark.long
@pytest.mark.parametrize("path", ["table", "table_quarantine"])
def test_what_moves_rows_to_other_files_is_harmless(spark: SparkSession, sandbox: Sandbox, path: str) -> None:
    fed(sandbox)
    for statement in ("OPTIMIZE {}", "OPTIMIZE {} ZORDER BY (_offset)", "VACUUM {} RETAIN 0 HOURS"):
        treat(spark, sandbox, path, statement)
    sandbox.feed(6, bad_every=3)
    outcome = sandbox.run("third")
    assert "is not a commit of this pipeline" not in outcome.stderr
    sandbox.assert_exact()
    assert deep(sandbox) == (0, [])


@pytest.mark.long
def test_rows_that_a_user_deletes_or_adds_are_told_of_and_audit_names_them(
    spark: SparkSession, sandbox: Sandbox
) -> None:
    fed(sandbox)
    gone = (sandbox.topic, 0, 1)
    treat(spark, sandbox, "table", f"DELETE FROM {{}} WHERE _topic = '{gone[0]}' AND _partition = 0 AND _offset = 1")
    sandbox.feed(6)
    sandbox.run("third")
    (note,) = sandbox.ledger.account(sandbox.name, "third")["notes"]
    assert "(DELETE)" in note
    assert "sluice audit --deep" in note
    assert sandbox.on_broker() - sandbox.sink() - sandbox.quarantine() == Counter([gone])
    code, problems = deep(sandbox)
    assert code == 1
    assert any("the sink holds" in problem for problem in problems), problems

    sandbox.run("fourth")
    assert "notes" not in sandbox.ledger.account(sandbox.name, "fourth")
    treat(spark, sandbox, "table_quarantine", "DELETE FROM {}")  # what TRUNCATE is to a table by its path
    sandbox.run("fifth")
    assert any("quarantine" in note for note in sandbox.ledger.account(sandbox.name, "fifth")["notes"])
    treat(spark, sandbox, "table", "INSERT INTO {} SELECT * FROM {} LIMIT 1".replace("{}", "{0}"))
    sandbox.run("sixth")
    assert any("(WRITE)" in note for note in sandbox.ledger.account(sandbox.name, "sixth")["notes"])
    assert deep(sandbox)[0] == 1


@pytest.mark.parametrize("path", ["table", pytest.param("table_quarantine", marks=pytest.mark.long)])
def test_a_restore_is_refused_until_it_is_undone(spark: SparkSession, sandbox: Sandbox, path: str) -> None:
    fed(sandbox)
    version = DeltaTable(str(sandbox.home / path)).version()
    before = sandbox.offsets(path)
    treat(spark, sandbox, path, f"RESTORE TABLE {{}} TO VERSION AS OF {version - 1}")
    assert len(sandbox.offsets(path)) < len(before)
    sandbox.feed(6)
    kinds = {
        "third": {},
        "interval": {"interval": ("2013-03-01", "2013-03-02")},
        "redrive": {"redriven": "quarantined"},
    }
    for run, arguments in kinds.items():
        refused = sandbox.run(run, expect=41, **arguments)
        assert "rolled back or replaced" in refused.message
        assert f"TO VERSION AS OF {version}" in refused.message
    treat(spark, sandbox, path, f"RESTORE TABLE {{}} TO VERSION AS OF {version}")
    assert sandbox.offsets(path) == before
    sandbox.run("third")
    sandbox.assert_exact()
    assert deep(sandbox) == (0, [])


@pytest.mark.long
def test_a_restore_of_what_a_user_deleted_is_welcome(spark: SparkSession, sandbox: Sandbox) -> None:
    fed(sandbox)
    version = DeltaTable(str(sandbox.home / "table")).version()
    treat(spark, sandbox, "table", "DELETE FROM {} WHERE id < 5")
    treat(spark, sandbox, "table", f"RESTORE TABLE {{}} TO VERSION AS OF {version}")
    sandbox.feed(6)
    sandbox.run("third")
    sandbox.assert_exact()
    assert deep(sandbox) == (0, [])


@pytest.mark.long
def test_a_table_that_was_overwritten_is_refused(spark: SparkSession, sandbox: Sandbox) -> None:
    fed(sandbox)
    path = str(sandbox.home / "table")
    version = DeltaTable(path).version()
    spark.read.format("delta").load(path).limit(1).write.format("delta").mode("overwrite").save(path)
    refused = sandbox.run("third", expect=41)
    assert "rolled back or replaced" in refused.message
    treat(spark, sandbox, "table", f"RESTORE TABLE {{}} TO VERSION AS OF {version}")
    sandbox.feed(2)
    sandbox.run("third")
    sandbox.assert_exact()


@pytest.mark.long
def test_another_table_in_the_same_place_is_refused(spark: SparkSession, sandbox: Sandbox) -> None:
    fed(sandbox)
    path = sandbox.home / "table"
    rows = spark.read.format("delta").load(str(path)).limit(3).toPandas()
    shutil.rmtree(path)
    spark.createDataFrame(rows).write.format("delta").save(str(path))
    assert sandbox.run("third", expect=41).message


@pytest.mark.long
def test_a_column_that_a_user_adds_is_refused_until_the_pipeline_has_it(spark: SparkSession, sandbox: Sandbox) -> None:
    fed(sandbox)
    treat(spark, sandbox, "table", "ALTER TABLE {} ADD COLUMN (note STRING)")
    sandbox.feed(6)
    refused = sandbox.run("third", expect=10)
    assert "note: only in the table" in refused.message
    sandbox.configure(transform={"sql": "SELECT *, cast(NULL AS STRING) AS note FROM source"})
    sandbox.run("third")
    sandbox.assert_exact()
    assert deep(sandbox) == (0, [])


def test_what_sluice_compacts_and_vacuums_every_run_goes_on_with(sandbox: Sandbox) -> None:
    """A live run that has staged its files meanwhile, then an interval, a redrive and another live run."""
    fed(sandbox)
    before = sandbox.sink()
    sandbox.feed(6)
    sandbox.configure(transform={"python": "gate:passing"})
    driver = sandbox.start("third", gate_at="before-sink-commit")
    driver.await_gate()
    merged = sandbox.cli("compact", str(sandbox.file), "--json")
    assert all(row["merged"] > 1 for row in json.loads(merged.stdout)["tables"]), merged.stdout
    for path in ("table", "table_quarantine"):
        aged(sandbox.home / path, timedelta(days=8))
    removed = sandbox.cli("vacuum", str(sandbox.file), "--json")
    assert all(row["files"] > 1 for row in json.loads(removed.stdout)["tables"]), removed.stdout + removed.stderr
    assert sandbox.sink() == before
    driver.open_gate()
    assert driver.wait().code == 0
    sandbox.assert_exact()
    sandbox.configure()
    assert sandbox.cli("compact", str(sandbox.file)).returncode == 0
    sandbox.run("interval", interval=(SINCE, now()))
    sandbox.assert_exact()
    assert deep(sandbox) == (0, [])
    sandbox.configure(decode={"text": {}}, transform={"sql": "SELECT 0L AS id, value AS name, _topic, _partition, "
                      "_offset, _timestamp FROM source"})  # fmt: skip
    sandbox.run("redriven", redriven="quarantined")
    assert sandbox.sink() == sandbox.on_broker()
    assert deep(sandbox) == (0, [])


@pytest.mark.long
@pytest.mark.parametrize("recovery", ["replay", "wal"])
def test_a_backup_between_two_runs_is_a_place_to_go_on_from(sandbox: Sandbox, tmp_path: Path, recovery: str) -> None:
    """What docs/operations.md says: the home as a whole, the ledger by its database's own means."""
    sandbox.configure(recovery=recovery)
    fed(sandbox)
    copy = tmp_path / "copy"
    shutil.copytree(sandbox.home, copy, symlinks=True, ignore=shutil.ignore_patterns("ledger.db*", "jars", "jvm"))
    with sqlite3.connect(sandbox.home / "ledger.db") as live, sqlite3.connect(copy / "ledger.db") as saved:
        live.backup(saved)
    sandbox.feed(6)
    sandbox.run("third")
    for path in (sandbox.home / name for name in ("table", "table_quarantine", "checkpoints", "logs")):
        shutil.rmtree(path, ignore_errors=True)
    for file in sandbox.home.glob("ledger.db*"):
        file.unlink()
    shutil.copytree(copy, sandbox.home, symlinks=True, dirs_exist_ok=True)
    assert deep(sandbox) == (0, [])
    sandbox.run("fourth")  # what the third had done is done again
    sandbox.assert_exact()
    assert deep(sandbox) == (0, [])


# --- while a driver is dead between two commits --------------------------------------------------------------------


@pytest.mark.long
def test_the_quarantine_may_be_compacted_while_a_redrive_is_half_done(spark: SparkSession, sandbox: Sandbox) -> None:
    fed(sandbox)
    sandbox.configure(decode={"text": {}}, transform={"sql": "SELECT 0L AS id, value AS name, _topic, _partition, "
                      "_offset, _timestamp FROM source"})  # fmt: skip
    killed = sandbox.cli(
        "redrive", str(sandbox.file), "--quarantined", "--no-validate", SLUICE_KILL_AT="sink-committed"
    )
    assert killed.returncode not in (0, 1)
    for statement in ("OPTIMIZE {}", "VACUUM {} RETAIN 0 HOURS"):
        treat(spark, sandbox, "table_quarantine", statement)
    sandbox.run("next")
    assert sandbox.sink() + sandbox.quarantine() == sandbox.on_broker()
    done = sandbox.cli("redrive", str(sandbox.file), "--quarantined", "--no-validate")
    assert done.returncode == 0, done.stderr
    assert sandbox.sink() == sandbox.on_broker()
    assert deep(sandbox) == (0, [])


@pytest.mark.long
@pytest.mark.parametrize("what", ["run", "interval"])
def test_staged_refused_records_that_vanished_are_not_entered_as_none(sandbox: Sandbox, what: str) -> None:
    fed(sandbox)
    sandbox.feed(6, bad_every=3)
    quarantined = sandbox.quarantine()
    part = {}
    if what == "interval":
        sandbox.run("settled")
        quarantined = sandbox.quarantine()
        part = {"interval": (SINCE, now())}
    sandbox.run("died", kill_at="sink-committed", **part)
    for folder in sandbox.never_committed("table_quarantine"):
        shutil.rmtree(sandbox.home / "table_quarantine" / "batches" / folder)
    refused = sandbox.run("next", expect=41)
    assert "refused" in refused.message
    assert "--recovery ignore_range" in refused.message
    assert sandbox.quarantine() == quarantined
    sandbox.configure(recovery="ignore_range")
    sandbox.run("next")
    assert "before they reached the quarantine" in " ".join(sandbox.ledger.account(sandbox.name, "died")["notes"])
    if what == "interval":
        assert deep(sandbox)[0] == 1
        sandbox.configure()
        sandbox.run("made good", interval=(SINCE, now()))
    else:
        assert deep(sandbox) == (0, [])
        assert sum(len(row.range) for row in sandbox.ledger.lost(sandbox.name)) == 2
        sandbox.configure()
        sandbox.run("made good", redriven="lost")
        assert deep(sandbox) == (0, [])
    assert sandbox.sink() + sandbox.quarantine() == sandbox.on_broker()


@pytest.mark.long
def test_files_of_a_batch_that_a_vacuum_took_are_written_again(sandbox: Sandbox) -> None:
    sandbox.configure(transform={"python": "gate:passing"})
    sandbox.feed(6)
    driver = sandbox.start("first", gate_at="before-sink-commit")
    driver.await_gate()
    for file in Path(sandbox.home / "table" / "batches").rglob("*.parquet"):
        file.unlink()
    driver.open_gate()
    ended = driver.wait()
    assert ended.code == 30, ended.stderr[-3000:]
    assert "is gone" in ended.message
    sandbox.run("again")
    sandbox.assert_exact()


# --- while a driver is frozen --------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_redrive_that_was_frozen_beside_an_interval_gives_way(sandbox: Sandbox) -> None:
    """Frozen behind its last look at leases: only the table itself can tell it."""
    fed(sandbox)
    sandbox.configure(decode={"text": {}}, transform={"python": "gate:as_text"})
    emptying = sandbox.start("redriven", redriven="quarantined", gate_at="before-sink-commit")
    emptying.await_gate()
    sandbox.execute("UPDATE sluice_lease SET holder = NULL, expires = 0")
    sandbox.run("past", interval=(SINCE, now()))
    emptying.open_gate()
    ended = emptying.wait()
    assert ended.code == 40, ended.stderr[-3000:]
    assert "run 'past' committed" in ended.message
    assert sandbox.sink() == sandbox.on_broker()
    sandbox.run("again", redriven="quarantined")
    assert sandbox.sink() == sandbox.on_broker()
    assert deep(sandbox) == (0, [])


@pytest.mark.long
@pytest.mark.parametrize("who", ["interval", "redrive"])
def test_who_was_frozen_beside_a_reset_writes_nothing_twice(sandbox: Sandbox, who: str) -> None:
    sandbox.feed(6)
    sandbox.run("first")
    sandbox.configure(transform={"python": "gate:passing"})
    asked: dict[str, Any] = {"interval": (SINCE, now())}
    if who == "redrive":
        assert sandbox.cli("retract", str(sandbox.file), "first", "--reason", "wrong").returncode == 0
        asked = {"redriven": "lost"}
    frozen = sandbox.start("frozen", gate_at="before-sink-commit", **asked)
    frozen.await_gate()
    sandbox.execute("UPDATE sluice_lease SET holder = NULL, expires = 0")
    options = ("--reason", "x", "--from", "earliest", "--truncate")
    done = sandbox.cli("reset", str(sandbox.file), *options)
    assert done.returncode == 0, done.stderr[-3000:]
    sandbox.run("again")
    frozen.open_gate()
    ended = frozen.wait()
    assert ended.code == 40, ended.stderr[-3000:]
    assert sandbox.sink() == sandbox.on_broker()
    assert deep(sandbox) == (0, [])


@pytest.mark.long
def test_an_interval_that_was_frozen_beside_a_retraction_brings_nothing_back(sandbox: Sandbox) -> None:
    sandbox.feed(6)
    sandbox.run("first")
    sandbox.configure(transform={"python": "gate:passing"})
    frozen = sandbox.start("frozen", interval=(SINCE, now()), gate_at="before-sink-commit")
    frozen.await_gate()
    sandbox.execute("UPDATE sluice_lease SET holder = NULL, expires = 0")
    assert sandbox.cli("retract", str(sandbox.file), "first", "--reason", "wrong").returncode == 0
    frozen.open_gate()
    ended = frozen.wait()
    assert ended.code == 40, ended.stderr[-3000:]
    assert not sandbox.sink()
    sandbox.run("back", redriven="lost")
    assert sandbox.sink() == sandbox.on_broker()
    assert deep(sandbox) == (0, [])


# --- metadata columns ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, name, _topic, _partition, _offset, _timestamp - INTERVAL 1 DAY AS _timestamp FROM source",
        "SELECT id, name, _topic, _partition, 1 - _offset AS _offset, _timestamp FROM source WHERE _offset < 2",
        "SELECT * FROM source WHERE id % 2 = 0 UNION ALL SELECT id, name, _topic, _partition, _offset, "
        "_timestamp + INTERVAL 1 HOUR FROM source WHERE id % 2 = 1",
    ],
    ids=["another time", "offsets exchanged", "one branch of a union"],
)
def test_a_transform_that_rewrites_metadata_commits_nothing(sandbox: Sandbox, sql: str) -> None:
    sandbox.configure(transform={"sql": sql}, rows="filter")
    since = int(time.time() * 1000) - 1000
    sandbox.produce([(n % 2, None, good(n), since + n) for n in range(4)])
    refused = sandbox.run("first", expect=10)
    assert "changes metadata columns" in refused.message
    assert sandbox.table() is None or sandbox.sink() == Counter()


def test_a_transform_of_which_spark_sees_nothing_is_compared_and_taken(sandbox: Sandbox) -> None:
    sandbox.configure(transform={"python": "opaque:same"})
    sandbox.feed(6, bad_every=3)
    sandbox.run("first")
    sandbox.produce([(0, None, good(77))])
    sandbox.run("second")
    sandbox.assert_exact()
