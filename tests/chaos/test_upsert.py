"""A Delta table that follows a compacted topic: whatever dies, each key has its newest row, or none."""

from __future__ import annotations

import json
import os
import random
import signal
from typing import Any
from unittest import mock

import pytest
from pyspark.sql import SparkSession
from tests.fixtures.runs import Sandbox

from sluice.home import Home
from sluice.pipeline import load
from sluice_spark.runs.preview import preview

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

DIRECT = ("before-sink-commit", "sink-committed", "quarantine-committed", "batch-recorded")


def following(**more: Any) -> dict[str, Any]:
    return {
        "sink": {"delta": {"path": "table", "mode": "upsert", "key": ["id"]}},
        "decode": {"json": {"schema": "name STRING NOT NULL", "key": "id", "tombstone": "delete"}},
        "quality": {"max_quarantined": "100%"},
    } | more


def feed(sandbox: Sandbox, wanted: dict[str, str | None], count: int = 10) -> None:
    """Send records of a few keys, some of them tombstones and some malformed; note what each key must have."""
    chance = random.Random(len(sandbox.produced))
    sent: list[tuple[int, bytes, bytes | None]] = []
    for n in range(count):
        key, what = chance.choice("abcdef"), chance.choice(["gone", "bad", "row", "row"])
        name = f"{len(sandbox.produced)}-{n}"
        value = {"gone": None, "bad": b"{", "row": json.dumps({"name": name}).encode()}[what]
        sent.append((ord(key) % 2, key.encode(), value))
        if what != "bad":
            wanted[key] = name if what == "row" else None
    sandbox.produce(sent)


def held(sandbox: Sandbox) -> dict[str, str]:
    table = sandbox.rows()
    assert table is not None
    found = {row["id"]: row["name"] for row in table.to_pylist()}
    assert len(found) == table.num_rows, "a key has two rows"
    return found


def there(wanted: dict[str, str | None]) -> dict[str, str]:
    return {key: name for key, name in wanted.items() if name is not None}


@pytest.mark.parametrize(
    ("recovery", "points"),
    [
        ("replay", ("before-sink-commit", "sink-committed")),
        pytest.param("replay", ("rows-staged", *DIRECT), marks=pytest.mark.long),
        pytest.param("wal", ("before-seal", "sealed", *DIRECT), marks=pytest.mark.long),
        pytest.param("hot", ("rows-staged", *DIRECT), marks=pytest.mark.long),
        pytest.param("ignore_range", DIRECT, marks=pytest.mark.long),
    ],
)
def test_kills_leave_each_key_its_newest_row(sandbox: Sandbox, recovery: str, points: tuple[str, ...]) -> None:
    wanted: dict[str, str | None] = {}
    sandbox.configure(**following(recovery=recovery))
    for point in points:
        feed(sandbox, wanted)
        sandbox.run("killed", kill_at=point)
    sandbox.run("killed")
    assert held(sandbox) == there(wanted)
    assert sandbox.total("written") + sandbox.total("quarantined") == len(sandbox.produced)
    assert sandbox.total("quarantined") == sum(sandbox.quarantine().values()) > 0
    sandbox.assert_balanced()
    assert sandbox.never_committed() == set()


@pytest.mark.long
def test_what_others_do_to_the_table_between_runs_is_no_harm(sandbox: Sandbox, spark: SparkSession) -> None:
    wanted: dict[str, str | None] = {}
    sandbox.configure(**following(kafka={"max_records_per_batch": 5}))
    table = f"delta.`{sandbox.home / 'table'}`"
    feed(sandbox, wanted, 30)
    sandbox.run("first")
    for statement in ("OPTIMIZE {}", "UPDATE {} SET name = 'theirs' WHERE id = 'a'", "DELETE FROM {} WHERE id = 'b'"):
        spark.sql(statement.format(table))
        feed(sandbox, wanted, 10)
        sandbox.run(statement.split()[0])
    for key in "abcdef":  # each key has a record of its own
        wanted[key] = f"last {key}"
        sandbox.produce([(ord(key) % 2, key.encode(), json.dumps({"name": wanted[key]}).encode())])
    sandbox.run("last")
    assert held(sandbox) == there(wanted)
    sandbox.assert_balanced()
    sandbox.produce([(0, b"b", None)])
    with mock.patch.dict(os.environ, sandbox.env(), clear=True):
        seen = preview(spark, load(sandbox.file), Home.from_env(), 1)
    assert json.loads(seen["shown"][0])["_deleted"]
    assert seen["table"] == {"differences": [], "ways_out": []}
    refused = {
        ("audit", "--deep"): "has the newest row of each key",
        ("retract", "last", "--reason", "x"): "keeps only the newest row of a key",
        ("redrive",): "remembers no deleted keys",
        ("redrive", "--quarantined"): "mode: upsert",
        ("run", "--start", "2026-01-01", "--end", "2026-01-02"): "sink.delta with mode: upsert cannot replace rows",
        ("reset", "--from", "earliest", "--truncate", "--reason", "x"): "does not take such rows back",
    }
    for (command, *arguments), told in refused.items():
        done = sandbox.cli(command, str(sandbox.file), *arguments)
        assert (done.returncode, told in " ".join(done.stderr.split())) == (10, True), done.stderr
    assert held(sandbox) == there(wanted)


def test_a_row_judged_and_one_that_lost_is_no_fault(sandbox: Sandbox) -> None:
    """Rows without tombstones: an older record, which was lost and comes later, changes nothing, and is written."""
    suite = {"name": "s", "expectations": [
        {"type": "expect_column_values_to_be_unique", "kwargs": {"column": "id"}, "meta": {"scope": "table"}},
    ]}  # fmt: skip
    (sandbox.file.parent / "suite.json").write_text(json.dumps(suite))
    sql = "SELECT {} AS ok, * FROM source"
    shape = {
        "recovery": "ignore_batch", "kafka": {"max_records_per_batch": 1}, "quality": {"suite": "suite.json"},
        "sink": {"delta": {"path": "table", "mode": "upsert", "key": ["id"]}},
    }  # fmt: skip
    sandbox.configure(transform={"sql": sql.format("assert_true(name <> 'bad') IS NULL")}, **shape)
    for name in ("bad", "new", "newer"):
        sandbox.produce([(0, b"k", b'{"id": 1, "name": "%s"}' % name.encode())])
    sandbox.run("live", expect=None)
    assert [row["name"] for row in sandbox.rows().to_pylist()] == ["newer"]  # type: ignore[union-attr]
    sandbox.configure(transform={"sql": sql.format("true")}, **shape)
    sandbox.run("back", redriven="lost", validate=True)
    assert [row["name"] for row in sandbox.rows().to_pylist()] == ["newer"]  # type: ignore[union-attr]
    assert (sandbox.account("back")["written"], sandbox.ledger.account(sandbox.name, "back")["verdict"]) == (
        1,
        "passed",
    )
    sandbox.assert_balanced()


@pytest.mark.long
def test_a_driver_that_wakes_up_late_changes_nothing(sandbox: Sandbox) -> None:
    wanted: dict[str, str | None] = {}
    sandbox.configure(**following(transform={"python": "gate:passing"}))
    feed(sandbox, wanted)
    frozen = sandbox.start("frozen", gate_at="before-sink-commit")
    frozen.await_gate()
    frozen.signal(signal.SIGSTOP)
    sandbox.execute("UPDATE sluice_lease SET expires = 0")
    feed(sandbox, wanted)
    sandbox.run("second")
    assert held(sandbox) == there(wanted)
    frozen.open_gate()
    frozen.signal(signal.SIGCONT)
    assert frozen.wait().code == 40
    assert held(sandbox) == there(wanted)
    sandbox.assert_balanced()
