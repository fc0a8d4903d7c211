"""``sluice acknowledge``: a loss that nobody brings back is closed, stays counted, and the audit balances."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.books import Place
from typer.testing import CliRunner

from sluice.audit import audit
from sluice.cli.main import app
from sluice.errors import ConfigError
from sluice.ledger import REDRIVEN, Ledger
from sluice.ranges import Counts, LostRange, OffsetRange, RangeAccount


@pytest.fixture
def sluice(story: Place, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setenv("SLUICE_HOME", str(story.root))
    monkeypatch.delenv("SLUICE_LEDGER_URL", raising=False)
    return lambda *arguments: CliRunner().invoke(app, arguments)


def states(ledger: Ledger) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for row in ledger.lost("p", state=None):
        found.setdefault(row.state, []).append((row.range.start, row.range.end))
    return found


def test_what_is_acknowledged_is_lost_and_no_longer_open(story: Place, sluice: Callable[..., Any]) -> None:
    ledger = Ledger.open()
    before, report = states(ledger), audit(ledger, "p")
    lost = sum(page["lost"] for page in report.partitions)
    assert lost == sum(end - start for start, end in before["open"]) > 1
    (first, end), *others = before["open"]
    done = sluice("acknowledge", "p", "--range", f"t:0:{first}-{first + 1}", "--reason", "retention took it")
    assert (done.exit_code, done.stderr) == (0, "1 offsets are acknowledged: they stay lost, and are no longer open\n")
    rest = [(first + 1, end)] if end > first + 1 else []
    assert states(ledger) == before | {"open": [*rest, *others], "acknowledged": [(first, first + 1)]}
    after = audit(ledger, "p")
    assert after.balanced
    assert sum(page["lost"] for page in after.partitions) == lost, "they count as before"
    assert [(row["start"], row["end"]) for row in after.lost] == [*rest, *others]
    assert sum(len(row.range) for row in ledger.never_read("p")) == lost
    story.write()
    deep = sluice("audit", "--deep", str(story.file))
    assert deep.exit_code == 0, deep.output
    assert ledger.rebuild()
    assert states(ledger)["acknowledged"] == [(first, first + 1)]
    (event,) = [e for e in ledger.events("p") if e["type"] == "LossAcknowledged"]
    assert event["payload"]["reason"] == "retention took it"
    again = sluice("acknowledge", "p", "--range", f"t:0:{first}-{first + 1}", "--reason", "twice")
    assert (again.exit_code, again.stderr) == (0, "there is no such lost range\n")


def test_a_mistake_is_undone(story: Place, sluice: Callable[..., Any]) -> None:
    ledger = Ledger.open()
    before = states(ledger)
    count = sum(len(row.range) for row in ledger.lost("p"))
    for undo in ((), ("--undo",)):
        done = sluice("acknowledge", "p", "--reason", "x", "--json", *undo)
        assert json.loads(done.stdout)["offsets"] == count
        assert bool(ledger.lost("p")) == bool(undo)
    assert states(ledger) == before
    assert audit(ledger, "p").balanced


def test_a_redrive_that_is_recorded_late_counts(tmp_path: Path) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    with ledger.acquire("p", "r") as lease:
        ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={})
        gone = LostRange(OffsetRange("t", 0, 0, 4), "poison")
        ledger.batch_committed(
            lease, epoch=1, batch=0, accounts=[RangeAccount(gone.range, Counts(lost=4))], lost=[gone]
        )
        ledger.loss_acknowledged(lease, [OffsetRange("t", 0, 0, 4)], "too soon")
        done = RangeAccount(OffsetRange("t", 0, 1, 3), Counts(written=2))
        ledger.batch_committed(lease, epoch=REDRIVEN, batch=0, accounts=[done], redriven="lost")
    assert states(ledger) == {"acknowledged": [(0, 1), (3, 4)], "redriven": [(1, 3)]}
    assert audit(ledger, "p").balanced


@pytest.mark.parametrize("options", [("--reason", " "), ("--reason", "x", "--of", "nosuch")])
def test_a_reason_and_a_run_are_asked_for(sluice: Callable[..., Any], options: tuple[str, ...]) -> None:
    done = sluice("acknowledge", "p", *options)
    assert isinstance(done.exception, ConfigError)
