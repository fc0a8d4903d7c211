"""``sluice audit`` and ``sluice acknowledge``."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fixtures.books import Place, rows
from tests.fixtures.golden import Golden
from tests.unit.cli.conftest import Sluice

from sluice.audit import audit
from sluice.errors import ExitCode
from sluice.ledger import REDRIVEN, Ledger
from sluice.ranges import Counts, LostRange, OffsetRange, RangeAccount


def test_audit_lists_open_losses_and_the_next_command(story: Place, sluice: Sluice, golden: Golden) -> None:
    for argument in ("p", str(story.file)):
        done = sluice("audit", argument)
        assert (done.exit_code, f"sluice redrive {argument}" in done.stdout) == (0, True)
    golden("audit", sluice.transcript)


def test_deep_audit_reports_a_row_that_the_sink_has_twice(story: Place, sluice: Sluice, golden: Golden) -> None:
    story.sink += rows("a", 5)
    story.write()
    done = sluice("audit", "--deep", str(story.file), "--json")
    report = done.json
    assert (done.exit_code, report["balanced"], len(report["problems"])) == (1, False, 1)
    assert "t-0 [5, 6)" in report["problems"][0]
    assert (report["lost"][0]["reason"], report["tables"]["sink"]["rows"]) == ("poison", 24)
    assert sluice("audit", "--deep", str(story.file)).exit_code == 1
    golden("audit", sluice.transcript)


def test_audit_of_a_run_without_a_batch_says_so(story: Place, sluice: Sluice) -> None:
    with story.ledger.acquire("q", "a") as lease:
        story.ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={})
    done = sluice("audit", "q")
    assert (done.exit_code, "no committed batch of q" in done.stderr) == (0, True)


def test_deep_audit_proves_no_tables_with_a_broken_ledger(story: Place, sluice: Sluice, golden: Golden) -> None:
    story.execute("UPDATE sluice_account SET written = 0 WHERE run = 'a'")
    report = sluice("audit", "--deep", str(story.file), "--json").json
    assert (report["balanced"], len(report["unproved"])) == (False, 1)
    golden("audit", report["unproved"][0])


@pytest.mark.parametrize("options", [("misspelt",), ("--windows", "p"), ("--deep", "--windows", "p")], ids=" ".join)
def test_audit_refuses(story: Place, sluice: Sluice, golden: Golden, options: tuple[str, ...]) -> None:
    """An unknown name must not be found balanced; windows are recomputed of pipelines that have some."""
    assert sluice("audit", *options).exit_code == ExitCode.CONFIG
    golden("audit", sluice.transcript)


def states(ledger: Ledger) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for row in ledger.lost("p", state=None):
        found.setdefault(row.state, []).append((row.range.start, row.range.end))
    return found


def test_acknowledge_closes_a_loss_that_stays_counted(story: Place, sluice: Sluice, golden: Golden) -> None:
    ledger = story.ledger
    before, report = states(ledger), audit(ledger, "p")
    lost = sum(page["lost"] for page in report.partitions)
    assert lost == sum(end - start for start, end in before["open"]) > 1
    (first, end), *others = before["open"]
    asked = ("acknowledge", "p", "--range", f"t:0:{first}-{first + 1}", "--reason")
    assert sluice(*asked, "retention took it").exit_code == 0
    rest = [(first + 1, end)] if end > first + 1 else []
    assert states(ledger) == before | {"open": [*rest, *others], "acknowledged": [(first, first + 1)]}
    after = audit(ledger, "p")
    assert after.balanced
    assert sum(page["lost"] for page in after.partitions) == lost, "they count as before"
    assert [(row["start"], row["end"]) for row in after.lost] == [*rest, *others]
    assert sum(len(row.range) for row in ledger.never_read("p")) == lost
    story.write()
    deep = sluice("audit", "--deep", str(story.file), "--json")
    assert deep.exit_code == 0, deep.stderr
    assert ledger.rebuild()
    assert states(ledger)["acknowledged"] == [(first, first + 1)]
    (event,) = [e for e in ledger.events("p") if e["type"] == "LossAcknowledged"]
    assert event["payload"]["reason"] == "retention took it"
    assert sluice(*asked, "twice").exit_code == 0
    golden("acknowledge", sluice.transcript)


def test_acknowledge_can_be_undone(story: Place, sluice: Sluice) -> None:
    ledger = story.ledger
    before = states(ledger)
    count = sum(len(row.range) for row in ledger.lost("p"))
    for undo in ((), ("--undo",)):
        assert sluice("acknowledge", "p", "--reason", "x", "--json", *undo).json["offsets"] == count
        assert bool(ledger.lost("p")) == bool(undo)
    assert states(ledger) == before
    assert audit(ledger, "p").balanced


def test_redrive_that_is_recorded_late_takes_from_what_is_acknowledged(tmp_path: Path) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    with ledger.acquire("p", "r") as lease:
        ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={})
        gone = LostRange(OffsetRange("t", 0, 0, 4), "poison")
        account = RangeAccount(gone.range, Counts(lost=4))
        ledger.batch_committed(lease, epoch=1, batch=0, accounts=[account], lost=[gone])
        ledger.loss_acknowledged(lease, [OffsetRange("t", 0, 0, 4)], "too soon")
        done = RangeAccount(OffsetRange("t", 0, 1, 3), Counts(written=2))
        ledger.batch_committed(lease, epoch=REDRIVEN, batch=0, accounts=[done], redriven="lost")
    assert states(ledger) == {"acknowledged": [(0, 1), (3, 4)], "redriven": [(1, 3)]}
    assert audit(ledger, "p").balanced


@pytest.mark.parametrize("options", [("--reason", " "), ("--reason", "x", "--of", "nosuch")], ids=["reason", "run"])
def test_acknowledge_refuses(story: Place, sluice: Sluice, golden: Golden, options: tuple[str, ...]) -> None:
    assert sluice("acknowledge", "p", *options).exit_code == ExitCode.CONFIG
    golden("acknowledge", sluice.transcript)
