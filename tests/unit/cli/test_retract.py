"""``sluice retract``: what is asked for, and what is refused before anything is started."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.books import Place, lost, split
from typer.testing import CliRunner

from sluice.cli.main import app
from sluice.errors import ConfigError
from sluice.ranges import OffsetRange
from sluice.run.retraction import wanted
from sluice.sources.kafka.config import KafkaSource

SOURCE = KafkaSource(topics=["t"])


@pytest.fixture
def sluice(story: Place, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setenv("SLUICE_HOME", str(story.root))
    monkeypatch.delenv("SLUICE_LEDGER_URL", raising=False)
    return lambda *arguments: CliRunner().invoke(app, arguments)


def test_a_run_or_ranges() -> None:
    assert wanted(["cli__2026-11-24T10:00:00.000+00:00"], SOURCE) == (
        "cli__2026-11-24T10:00:00.000+00:00",
        [],
    )
    assert wanted(["t:0:1-3", "t:1:0-2"], SOURCE) == (
        None,
        [OffsetRange("t", 0, 1, 3), OffsetRange("t", 1, 0, 2)],
    )
    with pytest.raises(ConfigError, match="'t:0:3-1' is not a range"):
        wanted(["t:0:3-1"], SOURCE)
    with pytest.raises(ConfigError, match="does not read 'u'"):
        wanted(["u:0:1-3"], SOURCE)
    with pytest.raises(ConfigError, match="'run' is not a range"):
        wanted(["run", "t:0:1-3"], SOURCE)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a", "--reason", " "), "--reason is empty"),
        (("nosuch", "--reason", "x"), "the ledger has no run 'nosuch' of 'p'"),
        (("u:0:1-3", "--reason", "x"), "does not read 'u'"),
        (("t:9:1-3", "--reason", "x"), "p has read nothing of t-9 [1, 3)"),
    ],
)
def test_what_makes_no_sense_is_refused_before_spark_starts(
    story: Place, sluice: Callable[..., Any], arguments: tuple[str, ...], said: str
) -> None:
    done = sluice("retract", str(story.file), *arguments)
    assert isinstance(done.exception, ConfigError)
    assert said in str(done.exception)
    assert not [r for r in story.ledger.runs("p") if r.kind == "retract"]


def test_while_a_batch_waits_only_that_is_given_up(story: Place, sluice: Callable[..., Any]) -> None:
    """What the run published was judged, and passed; no Spark is needed, so each sink will do."""
    (run,) = [r.run for r in story.ledger.runs("p") if story.ledger.accounts("p", r.run, standing=True)][-1:]
    with story.ledger.acquire("p", run) as lease:
        waits = {"reasons": ["x"], "waits": [story.ledger.epoch("p").number, 99]}
        story.ledger.judged(lease, "p", run, verdict="failed", judgement=waits)
    stays = "; what the run published before it stays in the sink\n"
    for _ in range(2):
        done = sluice("retract", str(story.file), run, "--reason", "x", "--dry-run")
        assert (done.exit_code, done.stderr) == (0, f"batch 99 of run {run}, which waits, would be given up{stays}")
    for _ in range(2):
        done = sluice("retract", str(story.file), run, "--reason", "x", "--json")
        assert done.exit_code == 0, done.stderr
        assert "is given up: the next run counts its offsets as lost, and opens them; what the run" in done.stderr
        assert json.loads(done.stdout)["given_up"] == [story.ledger.epoch("p").number, 99]
    story.hand_over({0: 0})
    late = sluice("retract", str(story.file), run, "--reason", "x")
    assert "batch 99 of run" in str(late.exception), "the batch waits no more, and the rest is not what was meant"
    assert isinstance(late.exception, ConfigError)
    assert not [r for r in story.ledger.runs("p") if r.kind == "retract"]


def test_where_nothing_can_be_redriven_it_is_said_that_giving_up_is_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path)
    place.configure(
        decode={"json": {"schema": "name STRING", "key": "id", "tombstone": "delete"}},
        sink={"delta": {"path": "table", "mode": "upsert", "key": ["id"]}},
    )
    monkeypatch.setenv("SLUICE_HOME", str(place.root))
    place.let_wait("a", "e")
    for more, said in (
        (("--dry-run",), "for good: lost ranges of 'p'"),
        ((), "that is for good, unless sluice accept"),
    ):
        done = CliRunner().invoke(app, ["retract", str(place.file), "a", "--reason", "x", *more])
        assert (done.exit_code, said in " ".join(done.stderr.split())) == (0, True), (done.exception, done.stderr)
    place.ends["sluice:p:1"] = 0
    place.commit("b", split(5, 9, lost=4), lost=[lost(5, 9)])
    shown = CliRunner().invoke(app, ["audit", str(place.file)]).stdout
    assert "4 offsets are lost: lost ranges of 'p' cannot be redriven: its tombstones delete rows" in shown
    assert "sluice redrive" not in shown
