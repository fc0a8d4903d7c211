"""What is retracted leaves the table in one commit, is open, and comes back exactly once; killed anywhere."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from tests.chaos.test_redrive import assert_conserved, lost, redrive, versions
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]


def retract(sandbox: Sandbox, *what: str, expect: int = 0, **extra: str) -> str:
    done = sandbox.cli("retract", str(sandbox.file), *what, "--reason", "wrong currency", **extra)
    assert done.returncode == expect, done.stderr[-5000:]
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    "point",
    [
        "sink-committed",
        *(pytest.param(p, marks=pytest.mark.long) for p in ("batch-started", "before-sink-commit", "batch-recorded")),
    ],
)
def test_a_killed_retraction_is_finished_by_any_run_and_redriven_once(sandbox: Sandbox, point: str) -> None:
    sandbox.feed(12, bad_every=4)
    sandbox.run("first")
    sandbox.feed(6)
    sandbox.run("second")
    assert_conserved(sandbox)
    wrong = sandbox.account("first")["written"]
    refused = sandbox.quarantine()
    killed = sandbox.cli("retract", str(sandbox.file), "first", "--reason", "wrong currency", SLUICE_KILL_AT=point)
    assert killed.returncode not in (0, 1, 10), killed.stderr[-3000:]
    sandbox.feed(4)
    sandbox.run("live")  # any run enters what the killed one committed
    done = point in ("sink-committed", "batch-recorded")
    assert sum(lost(sandbox).values()) == (wrong if done else 0)
    assert_conserved(sandbox)
    told = retract(sandbox, "first")
    assert ("nothing was retracted" in told) == done
    assert sum(lost(sandbox).values()) == wrong
    assert sandbox.quarantine() == refused
    assert sandbox.account("first") == dict(planned=12, written=0, filtered=0, quarantined=3, absent=0, lost=wrong)
    assert_conserved(sandbox)
    redrive(sandbox, "--run", "back")
    assert not lost(sandbox)
    assert sandbox.account("back")["written"] == wrong
    assert_conserved(sandbox)
    assert not [folder for folder in sandbox.orphans() if "-e0-" in folder], "files that readers may use stay"


@pytest.mark.long
@pytest.mark.parametrize("how", ["retract", pytest.param("reset", marks=pytest.mark.long)])
def test_a_pipeline_is_held_no_more_when_a_dead_command_had_taken_the_rows_back(sandbox: Sandbox, how: str) -> None:
    below = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "id", "max_value": 2}}
    (sandbox.home / "suite.json").write_text(json.dumps({"name": "s", "expectations": [below]}))
    sandbox.configure(quality={"suite": "suite.json", "on_failed": "hold"})
    sandbox.feed(6)
    sandbox.run("bad", validate=True)
    sandbox.run("held", validate=True, expect=51)
    ways = {
        "retract": (["bad"], "sink-committed"),
        "reset": (["--from", "latest", "--truncate", "--yes"], "epoch-closed"),
    }
    more, point = ways[how]
    killed = sandbox.cli(how, str(sandbox.file), *more, "--reason", "x", SLUICE_KILL_AT=point)
    assert killed.returncode not in (0, 1, 10), killed.stderr[-3000:]
    assert sandbox.sink() == Counter()
    done = sandbox.cli("run", str(sandbox.file), "--run", "next")
    assert done.returncode == 0, done.stderr
    sandbox.assert_balanced()


@pytest.mark.long
def test_a_redrive_is_retracted_too_and_again_and_a_part_of_a_run(sandbox: Sandbox) -> None:
    sandbox.configure(kafka={"max_records_per_batch": 100})
    sandbox.produce([(0, b"k", b'{"id": "7"}'), (0, b"k", b'{"id": "8"}'), (1, None, b"broken")])
    sandbox.feed(12)
    sandbox.run("first")
    dry = json.loads(sandbox.cli("retract", str(sandbox.file), "first", "--reason", "x", "--dry-run", "--json").stdout)
    assert sum(row["offsets"] for row in dry) == 12
    before = versions(sandbox)
    part = f"{sandbox.topic}:0:3-5"
    retract(sandbox, part)
    assert Counter(lost(sandbox)) == Counter({(sandbox.topic, 0, 3): 1, (sandbox.topic, 0, 4): 1})
    assert [b - a for a, b in zip(before, versions(sandbox), strict=True)] == [1, 0], "one commit, and one table"
    assert_conserved(sandbox)
    for name in ("one", "two"):
        redrive(sandbox, "--run", name)
        assert_conserved(sandbox)
        retract(sandbox, name)
        assert sum(lost(sandbox).values()) == 2
        assert_conserved(sandbox)
    redrive(sandbox)
    assert_conserved(sandbox)

    columns = "cast(id AS BIGINT) AS id, name, _topic, _partition, _offset, _timestamp"
    sandbox.configure(
        kafka={"max_records_per_batch": 100},
        decode={"json": {"schema": "id STRING, name STRING"}},
        transform={"sql": f"SELECT {columns} FROM source WHERE id <> '8'"},
        rows="filter",
    )
    sandbox.run("fixed", redriven="quarantined")
    assert sandbox.account("fixed") == dict(planned=2, written=1, filtered=1, quarantined=0, absent=0, lost=0)
    retract(sandbox, "fixed")
    assert sum(lost(sandbox).values()) == 2, "what it filtered is decided again, too"
    deep = sandbox.cli("audit", "--deep", str(sandbox.file), "--json")
    assert deep.returncode == 0, deep.stdout + deep.stderr
    redrive(sandbox, "--run", "last")
    retract(sandbox, "last")
    redrive(sandbox)
    assert not lost(sandbox)
    deep = sandbox.cli("audit", "--deep", str(sandbox.file), "--json")
    assert deep.returncode == 0, deep.stdout + deep.stderr

    # something was filtered, nothing was, nothing is left
    for number, (first, deleted) in enumerate([("8", 1), ("9", 1), ("92", 2)]):
        sandbox.produce([(0, b"k", json.dumps({"id": text}).encode()) for text in (first, f"9{number}")])
        sandbox.run(f"filtering-{number}")
        table = sandbox.table()
        assert table is not None
        table.delete(f"id = 9{number}")
        retract(sandbox, f"filtering-{number}")
        (run,) = [run for run in sandbox.ledger.runs(sandbox.name) if run.kind == "retract"][:1]
        assert f"{deleted} offsets that count as written have no row in the table any more" in " ".join(run.notes)
        assert sum(lost(sandbox).values()) == 2
        redrive(sandbox)
        assert not lost(sandbox)
    assert sandbox.ledger.rebuild()
    deep = sandbox.cli("audit", "--deep", str(sandbox.file), "--json")
    assert deep.returncode == 0, deep.stdout + deep.stderr
    assert sandbox.cli("retract", str(sandbox.file), "frist", "--reason", "x").returncode == 10
