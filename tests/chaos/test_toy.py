"""A source, a sink and a decoder of another package: what they declare that they cannot do is refused by name.

Their runs are killed in test_kills.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.boxed import TOY
from tests.fixtures.place import KeptPlace, error

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
