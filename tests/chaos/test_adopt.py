"""``sluice adopt``: a pipeline gets another name, and goes on."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.chaos.commands import deep, drain, listed
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka, pytest.mark.long]

POINTS = ("tables-adopted", "adoption-begun", "folders-adopted", "ledger-adopted")


@pytest.mark.parametrize("recovery", ["replay", "wal"])
def test_adoption_that_is_killed_goes_on_with_the_same_command(sandbox: Sandbox, recovery: str) -> None:
    """Until then runs of either name are refused; those of the new one already before it began."""
    for number, point in enumerate(POINTS):
        sandbox.configure(recovery=recovery)
        drain(sandbox, 6, f"run {number}", bad_every=3)
        old, new = sandbox.name, f"name-{number}"
        sandbox.name = new  # as a user leaves the file who changes its first line
        sandbox.configure(recovery=recovery)
        command = ("adopt", old, "--as", str(sandbox.file))
        for options in ({}, {"redriven": "quarantined"}):
            assert f"sluice adopt {old} --as {new}" in sandbox.run("too early", expect=10, **options).message
        assert sandbox.cli(*command, SLUICE_KILL_AT=point).returncode not in (0, 1, 10), point
        Sandbox.killed_at.add(point)
        for name in (old, new):
            sandbox.name = name
            sandbox.configure(recovery=recovery)
            assert f"sluice adopt {old} --as {new}" in sandbox.run("too early", expect=10).message, point
        done = sandbox.cli(*command)
        assert done.returncode == 0, done.stderr
    drain(sandbox, 6, "last")
    sandbox.assert_exact()
    assert set(sandbox.sink().values()) == {1}
    deep(sandbox)
    if recovery == "wal":
        log = listed(sandbox, f"logs/{sandbox.name}")
        assert Counter((r["topic"], r["partition"], r["offset"]) for r in log) == sandbox.on_broker()
