"""Ledger and tables of different moments: what a driver at work explains, and what is a contradiction."""

from __future__ import annotations

import json

import pytest
from tests.fixtures.books import Place, rows, split

from sluice.audit import snapshot


def test_a_table_that_is_not_there_is_one_problem(story: Place) -> None:
    assert sorted(story.deep().problems) == [
        *(f"the ledger has batch {batch} of {what}, but there is no table at {story.path}: it was removed or rolled "
          "back" for batch, what in ((0, "epoch 2"), (1, "epoch 1"), (1, "what was redriven"))),
        f"there is no quarantine at {story.path}_quarantine, where records of t-0 [0, 10) were put",
    ]  # fmt: skip


def test_a_table_that_was_taken_back_is_named(story: Place) -> None:
    story.write()
    story.commit("e", split(20, 22), epoch=2)
    assert story.deep().problems == [
        f"the ledger has batch 1 of epoch 2, but the table ends with batch 0 at {story.path}: "
        "it was removed or rolled back",
        "t-0 [20, 22) is missing: it was written or quarantined, and is in neither table",
        "of t-0 [20, 22) the ledger counts 2 offsets as written, the sink holds 0",
    ]


def test_a_batch_that_the_ledger_does_not_know_yet_is_one_problem(story: Place) -> None:
    story.write()
    for path, app_id in ((story.path, "sluice:p:2"), (f"{story.path}_quarantine", "sluice:p:2:quarantine")):
        note = json.dumps({"app_id": app_id, "version": 1, "run": "e"})
        story.append(rows("e", 20, 21) if path == story.path else rows("e", 22), {app_id: 1}, path, sluice=note)
    (problem,) = story.deep().problems
    assert problem.startswith(f"the sink {story.path} holds batch 1 of epoch 2, the ledger ends with batch 0")


def test_a_first_batch_that_the_ledger_does_not_know_yet_is_one_problem(place: Place) -> None:
    note = json.dumps({"app_id": "sluice:p:1", "version": 0, "run": "a"})
    place.append(rows("a", 0, 1), {"sluice:p:1": 0}, sluice=note)
    (problem,) = place.deep().problems
    assert "holds batch 0 of epoch 1, the ledger ends with batch -1" in problem


def test_a_driver_that_commits_meanwhile_is_waited_for(story: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    story.write()
    story.append(rows("e", 20, 21), {"sluice:p:2": 1})
    monkeypatch.setattr(snapshot, "sleep", lambda _: story.commit("e", split(20, 22), epoch=2))
    report = story.deep()
    assert report.problems == []
    assert report.partitions[0]["end"] == 22
