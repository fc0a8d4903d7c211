"""``sluice forget``: pipelines whose file is gone."""

from __future__ import annotations

import json

import pytest
from tests.fixtures.books import Place
from tests.fixtures.ledgers import attempt
from tests.unit.cli.conftest import Sluice

from sluice.ledger.events import PipelineForgotten


def listed(sluice: Sluice) -> set[str]:
    return {run["pipeline"] for run in sluice("status", "--json").json}


def test_forget_hides_a_pipeline_without_a_file_until_it_runs_again(story: Place, sluice: Sluice) -> None:
    before = story.ledger.events("p")
    assert sluice("forget", "p", "--reason", "x").exit_code == 10
    other = story.file.with_name("other.yaml")
    for text in ("pipeline: p\nsource: [\n", "pipeline: 'p'  # moved\n"):
        other.write_text(text)
        story.file.unlink(missing_ok=True)
        assert sluice("forget", "p", "--reason", "x").exit_code == 10, "a file that is not valid is one"
    other.unlink()
    for reason in ((), ("--reason", " ")):
        assert sluice("forget", "p", *reason).exit_code == (10 if reason else 0)
        assert (listed(sluice), story.ledger.events("p")) == ({"p"}, before), "a dry run changes nothing"
    done = sluice("forget", "p", "--reason", "no longer needed", "--json").json
    assert (done["forgotten"], done["runs"]) == (True, story.ledger.runs.count("p"))
    assert listed(sluice) == set()
    assert "forgotten" in sluice("status").stderr
    events = story.ledger.events("p")
    assert "forgotten before" in sluice("forget", "p", "--reason", "again").stderr
    assert story.ledger.events("p") == events
    assert story.ledger.rebuild() > 0
    assert (listed(sluice), sluice("status", "p", "--json").json != []) == (set(), True)
    with attempt(story.ledger, "again", pipeline="p", state="done"):
        pass
    assert listed(sluice) == {"p"}


@pytest.mark.parametrize("name", ["nosuch", "P"])
def test_forget_refuses_a_name_that_the_ledger_does_not_have(story: Place, sluice: Sluice, name: str) -> None:
    assert sluice("forget", name, "--reason", "x").exit_code == 10
    assert json.dumps(story.ledger.events(name)) == "[]"


def test_status_lists_as_many_runs_as_asked_beside_forgotten_pipelines(story: Place, sluice: Sluice) -> None:
    for pipeline in ("other", "p"):
        with attempt(story.ledger, "newest", pipeline=pipeline, state="done"):
            pass
    story.ledger.decide("p", "forget", PipelineForgotten(reason="x"))
    assert [run["pipeline"] for run in sluice("status", "--limit", "1", "--json").json] == ["other"]


def test_status_lists_a_forgotten_pipeline_that_was_renamed(story: Place, sluice: Sluice) -> None:
    story.ledger.decide("p", "forget", PipelineForgotten(reason="x"))
    with story.ledger.acquire("q", "adopt") as lease:
        story.ledger.adopted(lease, "p")
    assert listed(sluice) == {"q"}
