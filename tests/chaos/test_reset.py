"""A pipeline begins again: later, where it stood, or from the beginning after its rows left.

Its kills are in ``test_corrections.py``, those of pipelines with state in ``test_epochs.py``.
"""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from tests.chaos import commands
from tests.chaos.commands import AGAIN, ALL_BAD, assert_conserved, deep, drain, killed, lost, redrive, reset, retract
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka, pytest.mark.long]


def test_reset_goes_on_after_a_lost_checkpoint_and_waits_for_a_run(sandbox: Sandbox) -> None:
    drain(sandbox, 6, "first")
    shutil.rmtree(sandbox.home / "checkpoints" / sandbox.name)
    sandbox.feed(3)
    assert f"sluice reset {sandbox.name} --reason" in sandbox.run("second", expect=41).message
    assert "6 offsets" in reset(sandbox, "--from=earliest", expect=10), "they would be written twice"
    with sandbox.ledger.acquire(sandbox.name, "at work"):
        reset(sandbox, expect=40)
    reset(sandbox)
    sandbox.run("second")
    assert sandbox.account("second")["planned"] == 3
    assert_conserved(sandbox)


def test_reset_reads_a_recreated_topic_when_the_former_rows_have_left(sandbox: Sandbox) -> None:
    drain(sandbox, 6, "first")
    sandbox.topics.recreate(sandbox.topic, 2)
    sandbox.produced.clear()
    sandbox.feed(8, bad_every=4)
    assert "sluice reset" in sandbox.run("second", expect=22).message
    reset(sandbox, expect=10)
    reset(sandbox, *AGAIN, expect=10)
    reset(sandbox, *AGAIN, "--yes")
    assert not lost(sandbox)
    deep(sandbox)
    sandbox.run("second")
    assert_conserved(sandbox)


def test_reset_fills_a_table_that_was_removed_or_rolled_back(sandbox: Sandbox) -> None:
    drain(sandbox, 6, "first", bad_every=3)
    part = f"{sandbox.topic}:1:0-1"
    retract(sandbox, part)
    redrive(sandbox)
    sandbox.feed(2)
    for run in ("second", "third"):
        if run == "second":
            shutil.rmtree(sandbox.home / "table")
        else:
            commands.delta(sandbox).restore(0)
        assert "--truncate --from earliest" in sandbox.run(run, expect=41).message
        reset(sandbox, expect=41)
        reset(sandbox, *AGAIN)
        deep(sandbox)
        sandbox.run(run)
        assert_conserved(sandbox)
        retract(sandbox, part)
        redrive(sandbox)
        assert_conserved(sandbox)


def test_records_that_the_log_alone_holds_are_redriven_after_a_reset(sandbox: Sandbox) -> None:
    keys: dict[str, Any] = {"recovery": "wal", "kafka": {"max_records_per_batch": 100}}
    sandbox.configure(**keys)
    drain(sandbox, 6, "first")
    sandbox.configure(**keys, transform={"python": "poison:dying"})
    drain(sandbox, 8, "landed", expect=None, POISON_IDS="6")
    assert len(sandbox.sink()) == 6, "landed, and not applied"
    sandbox.configure(**keys)
    sandbox.topics.delete_records(sandbox.topic, {0: 5, 1: 5})
    reset(sandbox)
    assert sum(lost(sandbox).values()) == 4
    deep(sandbox)
    drain(sandbox, 2, "second")
    assert sandbox.account("second")["planned"] == 6
    assert_conserved(sandbox)
    redrive(sandbox)
    retract(sandbox, *(f"{sandbox.topic}:{n}:0-7" for n in (0, 1)))  # landed in both epochs
    redrive(sandbox)
    assert not lost(sandbox)
    assert_conserved(sandbox)
    reset(sandbox, *AGAIN, expect=10)
    skipped = commands.json_of(sandbox, "reset", "--reason", "x", *AGAIN, "--dry-run")["skipped"]
    assert sum(end - start for *_, start, end in skipped) == 10
    reset(sandbox, *AGAIN, "--yes")
    sandbox.run("third")
    assert_conserved(sandbox)
    redrive(sandbox)
    assert not lost(sandbox)
    assert_conserved(sandbox)


@pytest.mark.parametrize("kind", ["files", "postgres", "iceberg"])
def test_other_sinks_begin_again(kind: str, request: pytest.FixtureRequest) -> None:
    sandbox: Sandbox = request.getfixturevalue(f"into_{kind}")
    sandbox.configure(**ALL_BAD)
    drain(sandbox, 8, "first", bad_every=4)
    killed(sandbox, "epoch-closed", "reset", "--reason", "x", *AGAIN)
    assert not sandbox.sink()
    drain(sandbox, 4, "second")
    assert sandbox.account("second")["planned"] == 12
    sandbox.assert_exact()
    shutil.rmtree(sandbox.home / "checkpoints" / sandbox.name)
    drain(sandbox, 2, "third", expect=41)
    reset(sandbox)
    sandbox.run("third")
    sandbox.assert_exact()


@pytest.mark.parametrize("recovery", ["replay", "wal", "ignore_range"])
def test_pipeline_into_a_topic_begins_again_later_and_where_it_stood(into_kafka: Any, recovery: str) -> None:
    sandbox: Sandbox = into_kafka
    sandbox.configure(recovery=recovery, **ALL_BAD)
    drain(sandbox, 8, "first", bad_every=4)
    sandbox.feed(4)
    killed(sandbox, "epoch-closed", "reset", "--reason", "x", "--from", "latest")
    drain(sandbox, 2, "second")
    assert sandbox.account("second")["planned"] == 2
    assert sum(lost(sandbox).values()) == 4
    reset(sandbox, *AGAIN, expect=10)
    shutil.rmtree(sandbox.home / "checkpoints" / sandbox.name)
    drain(sandbox, 2, "third", expect=41)
    reset(sandbox)
    sandbox.run("third")
    assert sandbox.account("third")["planned"] == 2
    held = sandbox.sink() + sandbox.quarantine()
    assert (sum(held.values()), set(held.values())) == (12, {1})
    redrive(sandbox)
    assert not lost(sandbox)
    assert sandbox.sink() + sandbox.quarantine() == sandbox.on_broker()  # audit --deep refuses a topic
    sandbox.assert_balanced()
