"""Answers that are remembered until the ledger has news of their pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fixtures.ledgers import attempt

from sluice.ledger import Ledger
from sluice.ledger.news import Remembered


def test_remembered_answers_are_found_again_after_an_event_of_their_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.ledger.news._OVERLAP", 0)
    ledger = Ledger.open(f"sqlite:///{tmp_path}/a.db")
    remembered: Remembered[int] = Remembered()
    asked: list[str] = []

    def find(names: list[str]) -> dict[str, int]:
        asked.extend(names)
        return {name: len(asked) for name in names if name != "unknown"}

    def ask(holds: bool = True) -> list[str]:
        asked.clear()
        remembered.of(ledger, ["p", "q", "unknown"], find, lambda name, _: name != "q" or holds)
        return sorted(asked)

    assert ask() == ["p", "q", "unknown"]
    assert ask() == ["unknown"]
    with attempt(ledger, "r", pipeline="p", state="done"):
        assert ask() == ["p", "unknown"], "a run was planned"
        assert ask() == ["unknown"]
    assert ask() == ["p", "unknown"], "it was closed"
    assert ask(holds=False) == ["q", "unknown"]
    ledger = Ledger.open(f"sqlite:///{tmp_path}/b.db")
    assert ask() == ["p", "q", "unknown"], "another ledger, with fewer events"


def test_remembered_answers_of_pipelines_with_the_newest_events_are_always_found_again(tmp_path: Path) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path}/a.db")
    remembered: Remembered[int] = Remembered()
    with attempt(ledger, "r", pipeline="p", state="done"):
        pass
    found: list[list[str]] = []
    for _ in range(2):
        remembered.of(ledger, ["p"], lambda names: found.append(names) or dict.fromkeys(names, 1))  # type: ignore[func-returns-value]
    assert found == [["p"], ["p"]], "PostgreSQL may show an event of a lower id later"
