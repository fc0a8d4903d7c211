"""``sluice reset``: what is refused before anything is started."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.fixtures.books import Place
from typer.testing import CliRunner

from sluice.cli.main import app
from sluice.cli.reset import _show
from sluice.errors import ConfigError


@pytest.fixture
def sluice(story: Place, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setenv("SLUICE_HOME", str(story.root))
    monkeypatch.delenv("SLUICE_LEDGER_URL", raising=False)
    return lambda *arguments: CliRunner().invoke(app, arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--reason", " "), "--reason is empty"),
        (("--reason", "x", "--from", "yesterday"), "'yesterday' is not a time"),
        (("--reason", "x", "--truncate"), "nobody said from where"),
        (("--reason", "x", "--rebuild-state"), "there is no state to rebuild"),
    ],
)
def test_what_makes_no_sense_is_refused_before_spark_starts(
    story: Place, sluice: Callable[..., Any], arguments: tuple[str, ...], said: str
) -> None:
    done = sluice("reset", str(story.file), *arguments)
    assert isinstance(done.exception, ConfigError)
    assert said in str(done.exception)
    assert not [r for r in story.ledger.runs("p") if r.kind == "reset"]


def test_a_dry_run_says_where_it_would_begin_and_what_does_not_come_back(capsys: pytest.CaptureFixture[str]) -> None:
    given_up, note = "the source no longer has t-0 [0, 3)", "the keys are forgotten"
    found = {
        "epoch": 2, "positions": {"t": {"10": 7, "9": 3}}, "skipped": [["t", 9, 0, 2], ["t", 9, 2, 3]],
        "truncated": True, "given_up": [given_up], "notes": [given_up, note],
    }  # fmt: skip
    _show(found, as_json=False)
    printed = capsys.readouterr()
    rows = [line.split() for line in printed.out.splitlines() if line.startswith("t ")]
    assert rows == [["t", "9", "3", "3"], ["t", "10", "7", "0"]]
    assert "needs --yes: the source no longer has" in " ".join(printed.err.split())
    assert f"note: {note}" in printed.err
    assert "epoch 2 would be opened; nothing was changed" in " ".join(printed.err.split())
