"""What ``sluice run`` prints around the application that it starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluice.cli import run as drive
from sluice.ledger import Ledger
from sluice.pipeline import Pipeline
from sluice.ranges import Counts, OffsetRange, RangeAccount

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


def test_an_attempt_that_never_began_is_not_taken_for_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.delenv("SLUICE_LEDGER_URL", raising=False)
    ledger = Ledger.open()
    with ledger.acquire("p", "r") as lease:
        ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={})
        ledger.judged(lease, "p", "r", verdict="passed", judgement={})
        ledger.run_closed(lease, state="done")
        assert drive.ended(SPEC, "r", 40, as_json=True) == 40
        assert capsys.readouterr().out == ""
        ledger.run_closed(lease, state="failed", error={"exit_code": 20, "what": "no broker answers"})
    assert drive.ended(SPEC, "r", 20, as_json=True) == 20
    account = json.loads(capsys.readouterr().out)
    assert (account["verdict"], account["error"]) == ("passed", {"exit_code": 20, "what": "no broker answers"})
