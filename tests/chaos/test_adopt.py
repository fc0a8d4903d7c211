"""``sluice adopt``: a pipeline gets another name, and goes on."""

from __future__ import annotations

from collections import Counter

import pytest
import yaml
from tests.chaos.commands import AS_TEXT, deep, drain, listed
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka, pytest.mark.long]

POINTS = ("tables-adopted", "adoption-begun", "folders-adopted", "ledger-adopted")


def rename(sandbox: Sandbox, name: str) -> str:
    """The file as a user leaves it who changes its first line; return the old name."""
    old = sandbox.name
    sandbox.name = name
    sandbox.configure(**{k: v for k, v in sandbox.spec.items() if k not in ("pipeline", "source")})
    assert yaml.safe_load(sandbox.file.read_text())["pipeline"] == name
    return old


def adopt(sandbox: Sandbox, old: str, expect: int = 0) -> str:
    done = sandbox.cli("adopt", old, "--as", str(sandbox.file))
    assert done.returncode == expect, done.stderr
    return done.stderr


@pytest.mark.parametrize("recovery", ["replay", "wal"])
def test_adoption_that_is_killed_goes_on_with_the_same_command(sandbox: Sandbox, recovery: str) -> None:
    for number, point in enumerate(POINTS):
        sandbox.configure(recovery=recovery)
        drain(sandbox, 6, f"run {number}", bad_every=3)
        old = rename(sandbox, f"name-{number}")
        killed = sandbox.cli("adopt", old, "--as", str(sandbox.file), SLUICE_KILL_AT=point)
        assert killed.returncode not in (0, 1, 10), point
        Sandbox.killed_at.add(point)
        for name in (old, sandbox.name):
            sandbox.name = name
            sandbox.configure(recovery=recovery)
            refused = sandbox.run("too early", expect=10)
            assert f"sluice adopt {old} --as name-{number}" in refused.message, point
        adopt(sandbox, old)
    drain(sandbox, 6, "last")
    sandbox.assert_exact()
    assert set(sandbox.sink().values()) == {1}
    deep(sandbox)
    if recovery == "wal":
        log = listed(sandbox, f"logs/{sandbox.name}")
        assert Counter((r["topic"], r["partition"], r["offset"]) for r in log) == sandbox.on_broker()


def test_renamed_pipeline_is_refused_its_old_sink_until_it_is_adopted(sandbox: Sandbox) -> None:
    drain(sandbox, 12, "first", bad_every=4)
    old = rename(sandbox, "renamed")
    sandbox.feed(6)
    for arguments in ({}, {"redriven": "quarantined"}):
        assert f"sluice adopt {old} --as renamed" in sandbox.run("second", expect=10, **arguments).message
    assert sum(sandbox.sink().values()) == 9
    adopt(sandbox, old)
    assert "nothing to do" in adopt(sandbox, old)
    sandbox.run("second")
    sandbox.assert_exact()
    assert [r.run for r in sandbox.ledger.runs("renamed")] == ["second", "first"]
    assert sandbox.ledger.runs(old) == []
    sandbox.configure(**AS_TEXT)
    sandbox.run("moved", redriven="quarantined")
    assert sandbox.sink() == sandbox.on_broker()
    deep(sandbox)
