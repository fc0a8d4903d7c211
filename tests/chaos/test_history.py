"""``quality.history``: runs unlike those before them, through to the verdict, the circuit breaker and a new normal."""

from __future__ import annotations

import json

import pytest
from tests.fixtures.runs import Sandbox

from sluice.errors import ExitCode
from sluice.run.verdict import faults

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]


def feed(sandbox: Sandbox, count: int, *, named: bool = True) -> None:
    name = "n" if named else None
    sandbox.produce([(n % 2, b"k", json.dumps({"id": n % 10, "name": name}).encode()) for n in range(count)])


def verdict(sandbox: Sandbox, run: str) -> tuple[str | None, list[str]]:
    row = sandbox.ledger.known_run(sandbox.name, run)
    wrong = {**(row.judgement or {}), "made_by": None}
    return row.verdict, sorted(fault.partition(":")[0] for fault in faults(wrong))


@pytest.mark.long
def test_run_unlike_those_before_holds_until_it_is_the_new_normal(sandbox: Sandbox) -> None:
    history = {"at_least": 3, "severity": "critical", "volume": True, "columns": {"name": ["nulls"], "id": ["mean"]}}
    sandbox.configure(kafka={"max_records_per_batch": 1000}, quality={"history": history, "on_failed": "hold"})
    for number in range(3):
        feed(sandbox, 40)
        sandbox.run(f"r{number}", validate=True)
        assert verdict(sandbox, f"r{number}") == ("passed", [])
    feed(sandbox, 90, named=False)
    sandbox.run("odd", validate=True, kill_at="judged")
    sandbox.run("odd", validate=True)
    assert verdict(sandbox, "odd") == ("failed", ["history.nulls(name)", "history.volume"])
    shown = sandbox.cli("verdict", sandbox.name, "odd")
    assert "history.nulls(name): 100 %" in shown.stderr
    assert "mean(id)" in shown.stdout
    feed(sandbox, 90, named=False)
    held = sandbox.run("held", validate=True, expect=ExitCode.HELD)
    assert "history.volume: 90" in held.stderr
    done = sandbox.cli("accept", sandbox.name, "odd", "--reason", "a new shop", "--new-normal")
    assert done.returncode == 0, done.stderr
    sandbox.run("next", validate=True)
    assert verdict(sandbox, "next") == ("passed", []), "too few runs are compared with: nothing fails"
    sandbox.assert_exact()
