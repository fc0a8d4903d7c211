"""What ``sluice run`` and ``sluice redrive`` print around the application that they start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sluice.cli import redrive as command
from sluice.cli import run as drive
from sluice.connections import Connection, variable_of
from sluice.errors import SourceUnreachableError
from sluice.ledger import Ledger
from sluice.pipeline import Pipeline
from sluice.ranges import Counts, OffsetRange, RangeAccount
from sluice.sources.kafka import Cluster

SPEC = Pipeline.model_validate(
    {
        "pipeline": "p",
        "source": {"kafka": {"topics": ["t"]}},
        "decode": {"text": {}},
        "sink": {"delta": {"path": "p"}},
    }
)


def test_a_run_that_failed_has_an_account_as_far_as_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.delenv("SLUICE_LEDGER_URL", raising=False)
    assert drive.ended(SPEC, "never planned", 30, as_json=True) == 30
    assert capsys.readouterr().out == ""
    ledger, span = Ledger.open(), OffsetRange("t", 0, 0, 4)
    with ledger.acquire("p", "r") as lease:
        ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[span], topic_ids={})
        ledger.batch_committed(lease, epoch=1, batch=0, accounts=[RangeAccount(span, Counts(written=4))])
        ledger.run_closed(lease, state="failed", error={"what": "full"})
    assert drive.ended(SPEC, "r", 30, as_json=True) == 30
    account = json.loads(capsys.readouterr().out)
    assert (account["run"], account["planned"], account["written"]) == ("r", 4, 4)


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
