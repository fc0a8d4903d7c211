"""Kinds of another package: what a source, sink or decoder declares that it cannot do is refused by name.

Their runs are killed in test_kills.py; an operator with state has its own here.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.boxed import TOY
from tests.fixtures.place import KeptPlace, error
from tests.fixtures.runs import Sandbox

from sluice.errors import ConfigError
from sluice.pipeline import load

pytestmark = pytest.mark.chaos


class Toys(KeptPlace):
    """A pipeline of toys, with nothing to read."""

    def spec(self) -> dict[str, Any]:
        folder = self.root / "lines"
        folder.mkdir(exist_ok=True)
        return {
            "source": {"lines": {"path": str(folder)}}, "decode": {"pairs": {"fields": ["id", "name"]}},
            "sink": {"jsonl": {"path": "out"}},
        }  # fmt: skip

    def env(self) -> dict[str, str]:
        return {"PYTHONPATH": str(TOY)}


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Toys:
    monkeypatch.syspath_prepend(str(TOY))
    return Toys(tmp_path, "toy")


@pytest.mark.parametrize(
    ("keys", "token"),
    [
        ({"sink": {"print": {"path": "x"}}}, "atomically"),
        ({"source": {"drops": {"path": "x"}}}, "recovery: wal"),
        ({"schedule": "on_lag"}, "source.lines"),
        ({"airflow": {"freshness": {"cron": "@daily", "max_age": "2h"}}}, "source.lines"),
        ({"lag": {"mirror_group": "g"}}, "consumer group"),
        ({"source": {"lines": {"path": "x", "pat": "y"}}}, "'path'"),
        ({"source": {"line": {"path": "x"}}}, "source.line"),
        ({"source": {"lines": {"path": "x"}, "kafka": {"topics": ["t"]}}}, "exactly one of"),
        ({"source": 5}, "kafka"),
        ({"source": ["lines"]}, "a mapping, not a list"),
        ({"sink": {"broken": {"path": "x"}}}, "RuntimeError: «not today»"),
        ({"decode": {"nothing": {}}}, "kind of decoders"),
        ({"quarantine": {"delta": {"path": "out"}}}, "quarantine.delta.path"),
        ({"quarantine": {"delta": {"path": "out/refused"}}}, "quarantine.delta.path"),
    ],
)
def test_toy_pipeline_file_refuses(toys: Toys, keys: dict[str, Any], token: str, monkeypatch: Any) -> None:
    toys.configure(**keys)
    monkeypatch.setenv("SLUICE_HOME", str(toys.home))
    with pytest.raises(ConfigError) as refused:
        load(toys.file)
    assert token in " ".join(str(refused.value).split())


@pytest.mark.parametrize(
    ("command", "token"),
    [
        (("run", "--start", "2020-01-01", "--end", "2020-01-02"), "intervals"),
        (("audit", "--deep"), "Delta"),
        (("lag",), "source.kafka"),
    ],
    ids=["run", "audit", "lag"],
)
def test_toy_pipeline_refuses_the_command(toys: Toys, command: tuple[str, ...], token: str) -> None:
    assert token in error(toys.sluice(command[0], str(toys.file), *command[1:]), 10)


def test_toy_pipeline_has_no_part_in_the_lag_of_all(toys: Toys) -> None:
    done = toys.sluice("lag", "--json", SLUICE_PIPELINES=str(toys.root))
    assert (done.returncode, json.loads(done.stdout)) == (0, []), done.stderr


@pytest.mark.spark
@pytest.mark.kafka
def test_toy_operator_counts_each_record_once_over_a_kill(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOY))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TOY), *filter(None, [os.environ.get("PYTHONPATH")])]))
    tally = {"time": "at", "size": "1h", "watermark": "0s"}
    sandbox.configure(decode={"json": {"schema": "at TIMESTAMP"}}, tally=tally)

    def put(*minutes: int | None) -> None:
        times = [None if m is None else f"2026-03-01T{12 + m // 60}:{m % 60:02}:00Z" for m in minutes]
        sandbox.produce([(0, None, json.dumps({"at": time}).encode()) for time in times])

    put(0, 5, None, 70)
    sandbox.run("dies", kill_at="sink-committed")
    sandbox.run("dies")
    put(130, 10, 131)  # the second is late
    sandbox.run("late")
    put(190)
    sandbox.run("last")
    found = sandbox.rows().sort_by("since").to_pylist()
    assert [(row["since"].hour, row["n"]) for row in found] == [(12, 2), (13, 1), (14, 2)]
    assert (sandbox.total("written"), sandbox.total("filtered"), sandbox.total("quarantined")) == (6, 1, 1)
    accounts = [sandbox.ledger.runs.account(sandbox.name, run)["tally"] for run in ("dies", "late", "last")]
    assert [(account["rows"], account["late"]) for account in accounts] == [(1, 0), (1, 1), (1, 0)]
    sandbox.assert_balanced()
    sandbox.configure(decode={"json": {"schema": "at TIMESTAMP"}}, tally=tally | {"size": "2h"})
    put(200)
    assert "size was 3600.0 and is 7200.0" in sandbox.run("changed", expect=41).message
    refused = {"window": {"time": "at", "size": "1h", "watermark": "0s", "aggregates": {"n": "count(*)"}}}
    sandbox.configure(decode={"json": {"schema": "at TIMESTAMP"}}, tally=tally, **refused)
    with pytest.raises(ConfigError, match="window beside tally"):
        load(sandbox.file)
