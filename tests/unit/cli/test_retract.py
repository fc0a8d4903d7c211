"""``sluice retract`` and ``sluice reset``: which rows are meant, and refusals before Spark starts."""

from __future__ import annotations

import pytest
from tests.fixtures.books import Place, lost, split
from tests.fixtures.golden import Golden
from tests.unit.cli.conftest import Sluice

from sluice.cli.reset import _show
from sluice.errors import ConfigError, ExitCode
from sluice.ledger.resets import told as noted
from sluice.ranges import OffsetRange
from sluice.run.retraction import wanted
from sluice.sources.kafka.config import KafkaSource


def test_retract_takes_a_run_or_ranges() -> None:
    source = KafkaSource(topics=["t"])
    run, ranges = "cli__2026-11-24T10:00:00.000+00:00", [OffsetRange("t", 0, 1, 3), OffsetRange("t", 1, 0, 2)]
    assert wanted([run], source) == (run, [])
    assert wanted(["t:0:1-3", "t:1:0-2"], source) == (None, ranges)
    for what, named in ((["t:0:3-1"], "'t:0:3-1'"), (["u:0:1-3"], "'u'"), (["run", "t:0:1-3"], "'run'")):
        with pytest.raises(ConfigError, match=named):
            wanted(what, source)


@pytest.mark.parametrize(
    "arguments",
    [
        ("retract", "a", "--reason", " "),
        ("retract", "nosuch", "--reason", "x"),
        ("retract", "u:0:1-3", "--reason", "x"),
        ("retract", "t:9:1-3", "--reason", "x"),
        ("reset", "--reason", " "),
        ("reset", "--reason", "x", "--from", "yesterday"),
        ("reset", "--reason", "x", "--truncate"),
        ("reset", "--reason", "x", "--rebuild-state"),
    ],
    ids=" ".join,
)
def test_retract_and_reset_refuse_before_spark_starts(
    story: Place, sluice: Sluice, golden: Golden, arguments: tuple[str, ...]
) -> None:
    command, *more = arguments
    assert sluice(command, str(story.file), *more).exit_code == ExitCode.CONFIG
    assert not [r for r in story.ledger.runs("p") if r.kind == command]
    golden(command, sluice.transcript)


def test_retract_of_a_run_whose_batch_waits_gives_up_only_that_batch(
    story: Place, sluice: Sluice, golden: Golden
) -> None:
    """Published batches were judged, and passed; no Spark is needed, so each sink will do."""
    (run,) = [r.run for r in story.ledger.runs("p") if story.ledger.accounts("p", r.run, standing=True)][-1:]
    epoch = story.ledger.epoch("p").number
    with story.ledger.acquire("p", run) as lease:
        waits = {"reasons": ["x"], "waits": [epoch, 99]}
        story.ledger.judged(lease, "p", run, verdict="failed", judgement=waits)
    asked = ("retract", str(story.file), run, "--reason", "x")
    for _ in range(2):
        assert sluice(*asked, "--dry-run").exit_code == 0
    for _ in range(2):
        done = sluice(*asked, "--json")
        assert (done.exit_code, done.json["given_up"]) == (0, [epoch, 99])
    assert sluice(*asked).exit_code == 0
    story.hand_over({0: 0})
    assert isinstance(sluice(*asked).error, ConfigError), "it waits no more, and the rest is not what was meant"
    assert not [r for r in story.ledger.runs("p") if r.kind == "retract"]
    golden("retract", sluice.transcript)


def test_retract_and_audit_say_where_a_redrive_is_impossible(place: Place, sluice: Sluice, golden: Golden) -> None:
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
    golden("retract", sluice.transcript)


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
    recorded = {"positions": {"t": {"0": 5}}, "truncated": True, "skipped": [], "notes": [], "epoch": 2, "reason": "x"}
    golden("reset", "\n".join(noted({**recorded, "removed": removed}) for removed in (0, 7)))
