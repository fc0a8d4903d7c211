"""``sluice audit`` and ``acknowledge``; ``retract`` and ``reset`` before Spark starts."""

from __future__ import annotations

import pytest
from tests.fixtures.books import Place, lost, rows, span, split
from tests.fixtures.golden import Golden
from tests.fixtures.ledgers import attempt
from tests.unit.cli.conftest import Sluice

from sluice.audit import audit
from sluice.cli.reset import _show
from sluice.errors import ConfigError
from sluice.ledger import REDRIVEN, Ledger
from sluice.ledger.events import Judged, LossAcknowledged, PipelineReset, Redriven
from sluice.ledger.resets import described
from sluice.recovery import Route
from sluice.run.reset_plan import Reset
from sluice.run.retraction import wanted
from sluice.sources.kafka.config import KafkaSource


def test_audit_lists_open_losses_and_the_next_command(story: Place, sluice: Sluice) -> None:
    for argument in ("p", str(story.file)):
        done = sluice("audit", argument)
        assert (done.exit_code, "sluice redrive p" in done.stdout) == (0, True)
    sluice.recorded("audit")


def test_deep_audit_reports_a_row_that_the_sink_has_twice(story: Place, sluice: Sluice) -> None:
    story.sink += rows("a", 5)
    story.write()
    done = sluice("audit", "--deep", str(story.file), "--json")
    (problem,) = done.json["problems"]
    assert (done.exit_code, done.json["balanced"], "t-0 [5, 6)" in problem) == (1, False, True)
    assert (done.json["lost"][0]["reason"], done.json["tables"]["sink"]["rows"]) == ("poison", 24)
    assert sluice("audit", "--deep", str(story.file)).exit_code == 1
    sluice.recorded("audit")


def test_audit_of_a_run_without_a_batch_says_so(story: Place, sluice: Sluice) -> None:
    with attempt(story.ledger, "a", pipeline="q"):
        pass
    done = sluice("audit", "q")
    assert (done.exit_code, "no committed batch of q" in done.stderr) == (0, True)


def test_deep_audit_proves_no_tables_with_a_broken_ledger(story: Place, sluice: Sluice, golden: Golden) -> None:
    story.execute("UPDATE sluice_account SET written = 0 WHERE run = 'a'")
    report = sluice("audit", "--deep", str(story.file), "--json").json
    (unproved,) = report["unproved"]
    assert not report["balanced"]
    golden("audit", unproved)


def states(ledger: Ledger) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for row in ledger.offsets.lost("p", state=None):
        found.setdefault(row.state, []).append((row.range.start, row.range.end))
    return found


def test_acknowledge_closes_a_loss_that_stays_counted(story: Place, sluice: Sluice) -> None:
    ledger = story.ledger
    assert states(ledger) == {"open": [(15, 16), (19, 20)], "redriven": [(16, 19)]}
    asked = ("acknowledge", "p", "--range", "t:0:15-16", "--reason")
    assert sluice(*asked, "retention took it").exit_code == 0
    after = {"open": [(19, 20)], "acknowledged": [(15, 16)], "redriven": [(16, 19)]}
    report = audit(ledger, "p")
    assert (states(ledger), report.balanced) == (after, True)
    assert [(row["start"], row["end"]) for row in report.lost] == [(19, 20)]
    assert sum(page["lost"] for page in report.partitions) == 2, "they count as before"
    assert sum(len(row.range) for row in ledger.offsets.never_read("p")) == 2
    story.write()
    deep = sluice("audit", "--deep", str(story.file), "--json")
    assert deep.exit_code == 0, deep.stderr
    assert (ledger.rebuild() > 0, states(ledger)) == (True, after)
    (event,) = [e for e in ledger.events("p") if e["type"] == "LossAcknowledged"]
    assert event["payload"]["reason"] == "retention took it"
    assert sluice(*asked, "twice").exit_code == 0
    sluice.recorded("acknowledge")


def test_acknowledge_can_be_undone(story: Place, sluice: Sluice) -> None:
    before = states(story.ledger)
    for undo in ((), ("--undo",)):
        assert sluice("acknowledge", "p", "--reason", "x", "--json", *undo).json["offsets"] == 2
        assert bool(story.ledger.offsets.lost("p")) == bool(undo)
    assert states(story.ledger) == before
    assert audit(story.ledger, "p").balanced


def test_acknowledge_gives_way_to_a_redrive_that_is_recorded_late(place: Place) -> None:
    place.commit("r", split(0, 4, lost=4), lost=[lost(0, 4)])
    with place.ledger.acquire("p", "r") as lease:
        place.ledger.record(
            lease, LossAcknowledged(ranges=[span(0, 4)], reason="too soon", was="open", now="acknowledged")
        )
    place.commit("late", split(1, 3), epoch=REDRIVEN, redriven=Redriven(of="lost"))
    assert states(place.ledger) == {"acknowledged": [(0, 1), (3, 4)], "redriven": [(1, 3)]}
    assert audit(place.ledger, "p").balanced


def test_retract_takes_a_run_or_ranges() -> None:
    source, run = KafkaSource(topics=["t"]), "cli__2026-11-24T10:00:00.000+00:00"
    assert wanted([run], source) == (run, [])
    assert wanted(["t:0:1-3", "t:1:0-2"], source) == (None, [span(1, 3), span(0, 2, 1)])
    for given, named in ((["t:0:3-1"], "'t:0:3-1'"), (["u:0:1-3"], "'u'"), (["run", "t:0:1-3"], "'run'")):
        with pytest.raises(ConfigError, match=named):
            wanted(given, source)


def test_retract_of_a_run_whose_batch_waits_gives_up_only_that_batch(story: Place, sluice: Sluice) -> None:
    """Published batches were judged, and passed; no Spark is needed, so each sink will do."""
    (run,) = [r.run for r in story.ledger.runs.newest("p") if story.ledger.offsets.accounts("p", r.run, standing=True)][
        -1:
    ]
    epoch = story.ledger.offsets.epoch("p").number
    with story.ledger.acquire("p", run) as lease:
        waits = {"reasons": ["x"], "waits": [epoch, 99]}
        story.ledger.record(lease, Judged(verdict="failed", judgement=waits), run_id=run)
    asked = ("retract", str(story.file), run, "--reason", "x")
    for _ in range(2):
        assert sluice(*asked, "--dry-run").exit_code == 0
    for _ in range(2):
        done = sluice(*asked, "--json")
        assert (done.exit_code, done.json["given_up"]) == (0, [epoch, 99])
    assert sluice(*asked).exit_code == 0
    story.hand_over({0: 0})
    assert isinstance(sluice(*asked).error, ConfigError), "it waits no more, and the other batches were not named"
    assert not [r for r in story.ledger.runs.newest("p") if r.kind == "retract"]
    sluice.recorded("retract")


def test_retract_and_audit_say_where_a_redrive_is_impossible(place: Place, sluice: Sluice) -> None:
    place.configure(
        decode={"json": {"schema": "name STRING", "key": "id", "tombstone": "delete"}},
        sink={"delta": {"path": "table", "mode": "upsert", "key": ["id"]}},
    )
    place.let_wait("a", "e")
    for more in (("--dry-run",), ()):
        done = sluice("retract", str(place.file), "a", "--reason", "x", *more)
        assert (done.exit_code, "for good" in " ".join(done.stderr.split())) == (0, True)
    place.ends["sluice:p:1"] = 0
    place.commit("b", split(5, 9, lost=4), lost=[lost(5, 9)])
    assert "sluice redrive" not in sluice("audit", str(place.file)).stdout
    sluice.recorded("retract")


def test_reset_dry_run_shows_positions_and_records_that_do_not_come_back(
    capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    given_up, note = "the source no longer has t-0 [0, 3)", "the keys are forgotten"
    found = {
        "epoch": 2, "positions": {"t": {"10": 7, "9": 3}}, "skipped": [["t", 9, 0, 2], ["t", 9, 2, 3]],
        "truncated": True, "given_up": [given_up], "notes": [given_up, note],
    }  # fmt: skip
    _show(found, as_json=False)
    printed = capsys.readouterr()
    rows = [line.split() for line in printed.out.splitlines() if line.startswith("t ")]
    assert rows == [["t", "9", "3", "3"], ["t", "10", "7", "0"]]
    golden("reset", printed.out + printed.err)
    resets = [Reset(2, Route.DIRECT, {"t": {0: 5}}, (), True, (), {}, "x", removed=removed) for removed in (0, 7)]
    golden("reset", "\n".join(described(PipelineReset(**reset.as_dict())) for reset in resets))
