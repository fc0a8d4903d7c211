"""What users and their jobs do to a pipeline's tables between two runs: each line of ``docs/tables.md``."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.chaos.commands import AGAIN, AS_TEXT, deep, delta, drain, json_of, killed, reset, retract, said
from tests.chaos.drivers import PASSING, gated, opened
from tests.fixtures.deltas import aged
from tests.fixtures.runs import Driver, Sandbox, good

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka, pytest.mark.long]

SINCE = "2026-01-01T00:00:00Z"
BOTH = pytest.mark.parametrize("path", ["table", "table_quarantine"])


def since() -> tuple[str, str]:
    """Return the interval of all records until now."""
    return SINCE, datetime.now(UTC).isoformat()


def treat(spark: SparkSession, sandbox: Sandbox, path: str, *statements: str) -> None:
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    for statement in statements:
        spark.sql(statement.format(f"delta.`{sandbox.home / path}`"))


def fed(sandbox: Sandbox) -> None:
    """Two runs of a pipeline with a quarantine."""
    for run in ("first", "second"):
        drain(sandbox, 12, run, bad_every=3)


def go_on(sandbox: Sandbox) -> None:
    """Let a third run follow; everything is exact."""
    drain(sandbox, 6, "third", bad_every=3)
    sandbox.assert_exact()
    deep(sandbox)


@BOTH
def test_table_may_be_optimized_and_vacuumed(spark: SparkSession, sandbox: Sandbox, path: str) -> None:
    fed(sandbox)
    treat(spark, sandbox, path, "OPTIMIZE {}", "OPTIMIZE {} ZORDER BY (_offset)", "VACUUM {} RETAIN 0 HOURS")
    go_on(sandbox)
    assert "notes" not in sandbox.ledger.runs.account(sandbox.name, "third")


def test_table_that_was_restored_or_overwritten_is_refused_until_that_is_undone(
    spark: SparkSession, sandbox: Sandbox
) -> None:
    """A compaction, a vacuum and a restore of rows that a user deleted are no reason."""
    fed(sandbox)
    kinds: dict[str, dict[str, Any]] = {
        "third": {}, "interval": {"interval": ("2013-03-01", "2013-03-02")}, "redrive": {"redriven": "quarantined"},
    }  # fmt: skip
    for path in ("table_quarantine", "table"):
        version, before = delta(sandbox, path).version(), sandbox.offsets(path)
        treat(spark, sandbox, path, f"RESTORE TABLE {{}} TO VERSION AS OF {version - 1}")
        assert len(sandbox.offsets(path)) < len(before)
        for run, arguments in kinds.items():
            assert f"TO VERSION AS OF {version}" in sandbox.run(run, expect=41, **arguments).message
        treat(spark, sandbox, path, f"RESTORE TABLE {{}} TO VERSION AS OF {version}")
        assert sandbox.offsets(path) == before
    path = str(sandbox.home / "table")
    version = delta(sandbox).version()
    spark.read.format("delta").load(path).limit(1).write.format("delta").mode("overwrite").save(path)
    sandbox.run("third", expect=41)
    restore = f"RESTORE TABLE {{}} TO VERSION AS OF {version}"
    treat(spark, sandbox, "table", restore, "DELETE FROM {} WHERE id < 5", restore)
    treat(spark, sandbox, "table", "OPTIMIZE {}", "VACUUM {} RETAIN 0 HOURS")
    go_on(sandbox)


def test_runs_go_on_with_tables_that_sluice_compacted_and_vacuumed(sandbox: Sandbox) -> None:
    """A live run that has staged its files meanwhile, then an interval, a redrive and another live run."""
    fed(sandbox)
    before = sandbox.sink()
    sandbox.feed(6)
    sandbox.configure(**PASSING)
    driver = gated(sandbox, "before-sink-commit", "third")
    assert all(row["merged"] > 1 for row in json_of(sandbox, "compact")["tables"])
    for path in ("table", "table_quarantine"):
        aged(sandbox.home / path, timedelta(days=8))
    assert all(row["files"] > 1 for row in json_of(sandbox, "vacuum")["tables"])
    assert sandbox.sink() == before
    opened(driver)
    sandbox.assert_exact()
    sandbox.configure()
    said(sandbox, "compact")
    sandbox.run("interval", interval=since())
    sandbox.assert_exact()
    deep(sandbox)
    sandbox.configure(**AS_TEXT)
    sandbox.run("redriven", redriven="quarantined")
    assert sandbox.sink() == sandbox.on_broker()
    deep(sandbox)


@pytest.mark.parametrize("recovery", ["replay", "wal"])
def test_pipeline_goes_on_from_a_backup_between_two_runs(sandbox: Sandbox, tmp_path: Path, recovery: str) -> None:
    """What docs/operations.md says: the home as a whole, the ledger by its database's own means."""
    sandbox.configure(recovery=recovery)
    fed(sandbox)
    copy = tmp_path / "copy"
    shutil.copytree(sandbox.home, copy, symlinks=True, ignore=shutil.ignore_patterns("ledger.db*", "jars", "jvm"))
    with sqlite3.connect(sandbox.home / "ledger.db") as live, sqlite3.connect(copy / "ledger.db") as saved:
        live.backup(saved)
    drain(sandbox, 6, "third")
    for path in (sandbox.home / name for name in ("table", "table_quarantine", "checkpoints", "logs")):
        shutil.rmtree(path, ignore_errors=True)
    for file in sandbox.home.glob("ledger.db*"):
        file.unlink()
    shutil.copytree(copy, sandbox.home, symlinks=True, dirs_exist_ok=True)
    deep(sandbox)
    sandbox.run("fourth")  # does again what the third had done
    sandbox.assert_exact()
    deep(sandbox)


def test_quarantine_may_be_compacted_while_a_redrive_is_half_done(spark: SparkSession, sandbox: Sandbox) -> None:
    fed(sandbox)
    sandbox.configure(**AS_TEXT)
    killed(sandbox, "sink-committed", "redrive", "--quarantined", "--no-validate")
    treat(spark, sandbox, "table_quarantine", "OPTIMIZE {}", "VACUUM {} RETAIN 0 HOURS")
    sandbox.run("next")
    assert sandbox.sink() + sandbox.quarantine() == sandbox.on_broker()
    sandbox.run("redriven", redriven="quarantined")
    assert sandbox.sink() == sandbox.on_broker()
    deep(sandbox)


# --- while a driver is held ----------------------------------------------------------------------------------------


def held(sandbox: Sandbox, **options: Any) -> Driver:
    """Hold a driver behind its last look at leases, of which it has none any more: only the table can refuse it."""
    sandbox.configure(**PASSING)
    driver = gated(sandbox, "before-sink-commit", "held", **options)
    sandbox.execute("UPDATE sluice_lease SET holder = NULL, expires = 0")
    return driver


@pytest.mark.parametrize("who", ["interval", "redrive"])
def test_driver_that_was_held_beside_a_reset_writes_nothing_twice(sandbox: Sandbox, who: str) -> None:
    drain(sandbox, 6, "first")
    if who == "redrive":
        retract(sandbox, "first")
    driver = held(sandbox, **({"redriven": "lost"} if who == "redrive" else {"interval": since()}))
    reset(sandbox, *AGAIN)
    sandbox.run("again")
    opened(driver, 40)
    assert sandbox.sink() == sandbox.on_broker()
    deep(sandbox)


def test_interval_that_was_held_beside_a_retraction_brings_nothing_back(sandbox: Sandbox) -> None:
    drain(sandbox, 6, "first")
    driver = held(sandbox, interval=since())
    retract(sandbox, "first")
    opened(driver, 40)
    assert not sandbox.sink()
    sandbox.run("back", redriven="lost")
    assert sandbox.sink() == sandbox.on_broker()
    deep(sandbox)


def test_transform_that_rewrites_metadata_columns_commits_nothing(sandbox: Sandbox) -> None:
    since = int(time.time() * 1000) - 1000
    sandbox.produce([(n % 2, None, good(n), since + n) for n in range(4)])
    for sql in (
        "SELECT id, name, _topic, _partition, _offset, _timestamp - INTERVAL 1 DAY AS _timestamp FROM source",
        "SELECT id, name, _topic, _partition, 1 - _offset AS _offset, _timestamp FROM source WHERE _offset < 2",
        "SELECT * FROM source WHERE id % 2 = 0 UNION ALL SELECT id, name, _topic, _partition, _offset, "
        "_timestamp + INTERVAL 1 HOUR FROM source WHERE id % 2 = 1",
    ):
        sandbox.configure(transform={"sql": sql}, rows="filter")
        assert "changes metadata columns" in sandbox.run("first", expect=10).message
        assert sandbox.table() is None or sandbox.sink() == Counter()
    sandbox.configure(transform={"python": "opaque:same"})  # of which Spark sees nothing: it is compared, and taken
    sandbox.run("first")
    sandbox.assert_exact()
