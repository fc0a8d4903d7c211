"""``sluice retract``: what is asked for, and what is refused before anything is started."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.fixtures.books import Place
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
    ],
)
def test_what_makes_no_sense_is_refused_before_spark_starts(
    story: Place, sluice: Callable[..., Any], arguments: tuple[str, ...], said: str
) -> None:
    done = sluice("retract", str(story.file), *arguments)
    assert isinstance(done.exception, ConfigError)
    assert said in str(done.exception)
    assert not [r for r in story.ledger.runs("p") if r.kind == "retract"]


def test_a_dry_run_says_that_a_batch_that_waits_would_be_given_up(story: Place, sluice: Callable[..., Any]) -> None:
    with story.ledger.acquire("p", "held") as lease:
        story.ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={})
        waits = {"reasons": ["x"], "waits": [story.ledger.epoch("p").number, 99]}
        story.ledger.judged(lease, "p", "held", verdict="failed", judgement=waits)
        story.ledger.run_closed(lease, state="failed")
    for _ in range(2):
        done = sluice("retract", str(story.file), "held", "--reason", "x", "--dry-run")
        assert (done.exit_code, done.stderr) == (0, "batch 99 of run held, which waits, would be given up\n")
    assert "is given up" in sluice("retract", str(story.file), "held", "--reason", "x").stderr
