"""``sluice retract``: rows leave the table in one commit, are open as lost, and come back exactly once.

Its kills are in ``test_corrections.py``.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest
from tests.chaos.commands import assert_conserved, deep, killed, lost, redrive, retract, versions
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka, pytest.mark.long]


@pytest.mark.parametrize(
    ("point", "command"),
    [
        ("sink-committed", ("retract", "bad")),
        ("epoch-closed", ("reset", "--from", "latest", "--truncate", "--yes")),
    ],
    ids=["retract", "reset"],
)
def test_pipeline_is_held_no_more_when_a_dead_command_took_the_rows_back(
    sandbox: Sandbox, point: str, command: tuple[str, ...]
) -> None:
    below = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "id", "max_value": 2}}
    (sandbox.home / "suite.json").write_text(json.dumps({"name": "s", "expectations": [below]}))
    sandbox.configure(quality={"suite": "suite.json", "on_failed": "hold"})
    sandbox.feed(6)
    sandbox.run("bad", validate=True)
    sandbox.run("held", validate=True, expect=51)
    killed(sandbox, point, *command, "--reason", "x")
    assert sandbox.sink() == Counter()
    done = sandbox.cli("run", str(sandbox.file), "--run", "next")
    assert done.returncode == 0, done.stderr
    sandbox.assert_balanced()


def test_retraction_of_a_range_is_one_commit_of_one_table(sandbox: Sandbox) -> None:
    sandbox.feed(12, bad_every=5)
    sandbox.run("first")
    dry = json.loads(sandbox.cli("retract", str(sandbox.file), "first", "--reason", "x", "--dry-run", "--json").stdout)
    assert sum(row["offsets"] for row in dry) == 9
    before = versions(sandbox)
    retract(sandbox, f"{sandbox.topic}:1:3-5")
    assert lost(sandbox) == Counter({(sandbox.topic, 1, 3): 1, (sandbox.topic, 1, 4): 1})
    assert [b - a for a, b in zip(before, versions(sandbox), strict=True)] == [1, 0]
    assert_conserved(sandbox)
    for name in ("one", "two"):
        redrive(sandbox, "--run", name)
        assert_conserved(sandbox)
        retract(sandbox, name)
        assert sum(lost(sandbox).values()) == 2
        assert_conserved(sandbox)
    redrive(sandbox)
    assert_conserved(sandbox)
    retract(sandbox, "frist", expect=10)


def test_retraction_opens_filtered_and_deleted_records_of_a_run(sandbox: Sandbox) -> None:
    sandbox.produce([(0, b"k", b'{"id": "7"}'), (0, b"k", b'{"id": "8"}'), (1, None, b"broken")])
    sandbox.run("first")
    columns = "cast(id AS BIGINT) AS id, name, _topic, _partition, _offset, _timestamp"
    sandbox.configure(
        decode={"json": {"schema": "id STRING, name STRING"}},
        transform={"sql": f"SELECT {columns} FROM source WHERE id <> '8'"},
        rows="filter",
    )
    sandbox.run("fixed", redriven="quarantined")
    assert sandbox.account("fixed") == dict(planned=2, written=1, filtered=1, quarantined=0, absent=0, lost=0)
    retract(sandbox, "fixed")
    assert sum(lost(sandbox).values()) == 2, "the filtered record is decided again, too"
    deep(sandbox)
    redrive(sandbox, "--run", "last")
    retract(sandbox, "last")
    redrive(sandbox)
    assert not lost(sandbox)
    deep(sandbox)

    # something was filtered, nothing was, nothing is left
    for number, (first, deleted) in enumerate([("8", 1), ("9", 1), ("92", 2)]):
        sandbox.produce([(0, b"k", json.dumps({"id": text}).encode()) for text in (first, f"9{number}")])
        sandbox.run(f"filtering-{number}")
        table = sandbox.table()
        assert table is not None
        table.delete(f"id = 9{number}")
        retract(sandbox, f"filtering-{number}")
        (run,) = [run for run in sandbox.ledger.runs(sandbox.name) if run.kind == "retract"][:1]
        assert f"{deleted} offsets" in " ".join(run.notes)
        assert sum(lost(sandbox).values()) == 2
        redrive(sandbox)
        assert not lost(sandbox)
    assert sandbox.ledger.rebuild()
    deep(sandbox)
