"""A pipeline gets another name, and goes on."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import yaml
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]


def rename(sandbox: Sandbox, name: str) -> str:
    """The file as a user leaves it who changes its first line; return the old name."""
    old = sandbox.name
    sandbox.name = name
    sandbox.configure(**{k: v for k, v in sandbox.spec.items() if k not in ("pipeline", "source")})
    assert yaml.safe_load(sandbox.file.read_text())["pipeline"] == name
    return old


def adopt(sandbox: Sandbox, old: str, expect: int = 0, **extra: str) -> str:
    done = sandbox.cli("adopt", old, "--as", str(sandbox.file), **extra)
    assert done.returncode == expect, done.stderr
    return done.stderr


def deep(sandbox: Sandbox) -> tuple[int, list[str]]:
    done = sandbox.cli("audit", "--deep", str(sandbox.file), "--json")
    return done.returncode, json.loads(done.stdout)["problems"]


@pytest.mark.long
def test_a_renamed_pipeline_is_refused_its_old_sink_until_it_is_adopted(sandbox: Sandbox) -> None:
    sandbox.feed(12, bad_every=4)
    sandbox.run("first")
    old = rename(sandbox, "renamed")
    sandbox.feed(6)
    for arguments in ({}, {"redriven": "quarantined"}):
        refused = sandbox.run("second", expect=10, **arguments)
        assert f"belongs to pipeline '{old}'" in refused.message
        assert f"sluice adopt {old} --as renamed" in refused.message
    assert sum(sandbox.sink().values()) == 9

    assert f"{old} goes on as renamed" in adopt(sandbox, old)
    assert "nothing to do" in adopt(sandbox, old)
    sandbox.run("second")
    sandbox.assert_exact()
    assert [r.run for r in sandbox.ledger.runs("renamed")] == ["second", "first"]
    assert sandbox.ledger.runs(old) == []
    sandbox.configure(decode={"text": {}}, transform={"sql": "SELECT 0L AS id, value AS name, _topic, _partition, "
                      "_offset, _timestamp FROM source"})  # fmt: skip
    sandbox.run("moved", redriven="quarantined")
    assert sandbox.sink() == sandbox.on_broker()
    assert deep(sandbox) == (0, [])


@pytest.mark.long
def test_what_is_not_settled_or_not_the_same_is_not_adopted(sandbox: Sandbox) -> None:
    sandbox.feed(6)
    sandbox.run("first")
    sandbox.feed(6)
    sandbox.run("second", kill_at="sink-committed")
    old = rename(sandbox, "renamed")
    assert "do not end with the same batch" in adopt(sandbox, old, expect=10)
    assert "no run of pipeline 'nobody'" in adopt(sandbox, "nobody", expect=10)
    sandbox.configure(sink={"delta": {"path": "elsewhere"}})
    assert "there is no table" in adopt(sandbox, old, expect=10)
    sandbox.name = old
    sandbox.configure()
    sandbox.run("third")
    sandbox.assert_exact()
    rename(sandbox, "renamed")
    adopt(sandbox, old)
    sandbox.run("fourth")
    sandbox.assert_exact()


@pytest.mark.long
@pytest.mark.parametrize("recovery", ["replay", "wal"])
def test_an_adoption_that_is_killed_goes_on_with_the_same_command(sandbox: Sandbox, recovery: str) -> None:
    points = ("adoption-begun", "tables-adopted", "folders-adopted", "ledger-adopted")
    for number, point in enumerate(points):
        sandbox.configure(recovery=recovery)
        sandbox.feed(6, bad_every=3)
        sandbox.run(f"run {number}")
        old = rename(sandbox, f"name-{number}")
        killed = sandbox.cli("adopt", old, "--as", str(sandbox.file), SLUICE_KILL_AT=point)
        assert killed.returncode != 0, point
        for name in (old, sandbox.name):
            sandbox.name = name
            sandbox.configure(recovery=recovery)
            refused = sandbox.run("too early", expect=10)
            assert f"sluice adopt {old} --as name-{number}" in refused.message, point
        adopt(sandbox, old)
    sandbox.feed(6)
    sandbox.run("last")
    sandbox.assert_exact()
    assert set(sandbox.sink().values()) == {1}
    assert deep(sandbox) == (0, [])
    if recovery == "wal":
        log = Counter((r["topic"], r["partition"], r["offset"]) for r in _log(sandbox))
        assert log == sandbox.on_broker()


def _log(sandbox: Sandbox) -> list[dict[str, object]]:
    rows = sandbox.rows(f"logs/{sandbox.name}")
    assert rows is not None
    return list(rows.select(["topic", "partition", "offset"]).to_pylist())
