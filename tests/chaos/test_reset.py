"""A pipeline begins again: later, where it stood, or from the beginning after its rows left.

Its kills are in ``test_corrections.py``, those of pipelines with state in ``test_epochs.py``.
"""

from __future__ import annotations

import shutil
from collections import Counter
from typing import Any

import pytest
from tests.chaos import commands
from tests.chaos.commands import AGAIN, ALL_BAD, assert_conserved, deep, drain, killed, lost, redrive, reset, retract
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka, pytest.mark.long]


def test_reset_goes_on_from_a_table_whose_home_was_lost(sandbox: Sandbox) -> None:
    drain(sandbox, 6, "first")
    sandbox.ledger._engine.dispose()
    for path in sandbox.home.iterdir():
        if path.name.startswith("ledger") or path.name == "checkpoints":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert "another SLUICE_HOME" in sandbox.run("lost", expect=41).message
    reset(sandbox)
    drain(sandbox, 4, "second")
    assert sandbox.sink() == Counter(sandbox.produced)
    sandbox.assert_balanced()


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
