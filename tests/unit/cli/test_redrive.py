"""What ``sluice redrive`` asks and prints before it starts anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.specs import GOOD, run_cli, write

from sluice.cli import redrive as command
from sluice.connections import Connection, variable_of
from sluice.errors import SourceUnreachableError
from sluice.pipeline import Pipeline
from sluice.sources.kafka import Cluster

SPEC = Pipeline.model_validate(
    {
        "pipeline": "p",
        "source": {"kafka": {"topics": ["t"]}},
        "decode": {"text": {}},
        "sink": {"delta": {"path": "p"}},
    }
)


def test_without_a_broker_a_dry_run_shows_what_the_log_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def silent(*_: Any, **__: Any) -> None:
        raise SourceUnreachableError("no broker answers")

    monkeypatch.setattr(Cluster, "snapshot", silent)
    kafka = Connection("kafka_default", "kafka", extra={"bootstrap.servers": "127.0.0.1:1"})
    monkeypatch.setenv(variable_of("kafka_default"), kafka.to_json())
    assert command._states(SPEC) == []
    assert "no broker answers: only the write-ahead log was searched" in capsys.readouterr().err


def test_a_dry_run_is_of_lost_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    assert run_cli(monkeypatch, "redrive", str(write(tmp_path, GOOD)), "--quarantined", "--dry-run") == 10
