"""Runs that are unlike the runs before them, through to the verdict, the circuit breaker and a new normal."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.fixtures.runs import Sandbox

from sluice.errors import ExitCode
from sluice.run.verdict import faults

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]


def configure(sandbox: Sandbox, **quality: Any) -> None:
    history = {"at_least": 3, "severity": "critical", "volume": True, "columns": {"name": ["nulls"], "id": ["mean"]}}
    sandbox.configure(
        kafka={"max_records_per_batch": 1000}, quality={"history": history, "on_failed": "hold", **quality}
    )


def feed(sandbox: Sandbox, count: int, *, named: bool = True) -> None:
    name = "n" if named else None
    sandbox.produce([(n % 2, b"k", json.dumps({"id": n % 10, "name": name}).encode()) for n in range(count)])


def verdict(sandbox: Sandbox, run: str) -> tuple[str | None, list[str]]:
    row = sandbox.ledger.known_run(sandbox.name, run)
    wrong = {**(row.judgement or {}), "made_by": None}
    return row.verdict, sorted(fault.partition(":")[0] for fault in faults(wrong))


def test_a_run_unlike_those_before_fails_and_holds_until_it_is_the_new_normal(sandbox: Sandbox) -> None:
    configure(sandbox)
    for number in range(3):
        feed(sandbox, 40)
        sandbox.run(f"r{number}", validate=True)
        assert verdict(sandbox, f"r{number}") == ("passed", [])
    feed(sandbox, 90, named=False)
    sandbox.run("odd", validate=True, kill_at="judged")
    sandbox.run("odd", validate=True)
    assert verdict(sandbox, "odd") == ("failed", ["history.nulls(name)", "history.volume"])
    shown = sandbox.cli("verdict", sandbox.name, "odd")
    assert "failed: history.nulls(name): 100 %; in the last 3 accepted runs 0 %" in shown.stderr
    assert "mean(id)" in shown.stdout
    feed(sandbox, 90, named=False)
    held = sandbox.run("held", validate=True, expect=ExitCode.HELD)
    assert "history.volume: 90; in the last 3 accepted runs 40" in held.stderr
    done = sandbox.cli("accept", sandbox.name, "odd", "--reason", "a new shop", "--new-normal")
    assert done.returncode == 0, done.stderr
    sandbox.run("next", validate=True)
    assert verdict(sandbox, "next") == ("passed", []), "too few runs are compared with: nothing fails"
    sandbox.assert_exact()


@pytest.mark.long
def test_before_the_commit_nothing_of_such_a_batch_is_published(sandbox: Sandbox) -> None:
    configure(sandbox, when="before_commit")
    for number in range(3):
        feed(sandbox, 40)
        sandbox.run(f"r{number}", validate=True)
        assert verdict(sandbox, f"r{number}") == ("passed", [])
    before = sandbox.sink()
    feed(sandbox, 40, named=False)
    sandbox.run("odd", validate=True, expect=ExitCode.QUALITY_FAILED)
    assert verdict(sandbox, "odd") == ("failed", ["history.nulls(name)"])
    assert sandbox.sink() == before
    assert sandbox.cli("accept", sandbox.name, "odd", "--reason", "known gap").returncode == 0
    sandbox.run("next", validate=True)
    assert verdict(sandbox, "next") == ("warned", [])
    sandbox.assert_exact()


def test_a_table_that_gets_nothing_is_not_fresh(sandbox: Sandbox) -> None:
    sandbox.configure(quality={"history": {"freshness": "1h", "severity": "critical"}, "on_failed": "hold"})
    sandbox.produce([(0, b"k", b'{"id": 1}', 1_356_998_400_000)])
    for run in ("old", "idle"):
        sandbox.run(run, validate=True)
        assert verdict(sandbox, run) == ("failed", ["history.freshness"])
    feed(sandbox, 3)
    sandbox.run("new", validate=True)
    assert verdict(sandbox, "new") == ("passed", []), "an old row holds nothing back"
