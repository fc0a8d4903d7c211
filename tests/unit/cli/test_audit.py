"""``sluice audit``, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.fixtures.books import Place, rows
from typer.testing import CliRunner

from sluice.cli.main import app
from sluice.errors import ConfigError


@pytest.fixture
def command(story: Place, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setenv("SLUICE_HOME", str(story.root))
    monkeypatch.delenv("SLUICE_LEDGER_URL", raising=False)
    return lambda *arguments: CliRunner().invoke(app, ["audit", *arguments])


def test_the_command_tells_people_what_is_open(story: Place, command: Callable[..., Any]) -> None:
    for argument in ("p", str(story.file)):
        done = command(argument)
        assert done.exit_code == 0
        assert "lost: t-0 [15, 16) by run b: poison; offset 15 has key None, value 'x'" in done.output
        assert f"2 offsets are lost: sluice redrive {argument}" in done.output
        assert done.stderr == "balanced\n"


def test_the_command_tells_programs_everything(story: Place, command: Callable[..., Any]) -> None:
    story.sink += rows("a", 5)
    story.write()
    done = command("--deep", str(story.file), "--json")
    assert done.exit_code == 1
    report = json.loads(done.stdout)
    assert (report["balanced"], report["problems"]) == (False, ["t-0 [5, 6) stands more than once in the sink"])
    assert report["lost"][0]["reason"] == "poison"
    assert report["tables"]["sink"]["rows"] == 24
    told = command("--deep", str(story.file))
    assert told.exit_code == 1
    assert "problem: t-0 [5, 6) stands more than once in the sink" in told.output
    assert told.stderr.endswith("NOT balanced\n")


def test_a_run_without_a_batch_is_a_run(story: Place, command: Callable[..., Any]) -> None:
    with story.ledger.acquire("q", "a") as lease:
        story.ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={})
    assert "no committed batch of q in the ledger" in command("q").stderr


def test_with_a_broken_ledger_the_tables_are_not_proved(story: Place, command: Callable[..., Any]) -> None:
    story.execute("UPDATE sluice_account SET written = 0 WHERE run = 'a'")
    report = json.loads(command("--deep", str(story.file), "--json").stdout)
    assert not report["balanced"]
    assert report["unproved"] == ["the tables were not compared: an account of the ledger does not add up"]


def test_a_name_that_nobody_knows_is_not_found_balanced(story: Place, command: Callable[..., Any]) -> None:
    done = command("misspelt")
    assert isinstance(done.exception, ConfigError)


def test_windows_are_recomputed_of_pipelines_that_have_some(story: Place, command: Callable[..., Any]) -> None:
    for arguments, told in (
        (("--windows",), "--windows goes with --deep"),
        (("--deep", "--windows"), "has no windows"),
    ):
        done = command(str(story.file), *arguments)
        assert isinstance(done.exception, ConfigError)
        assert told in str(done.exception)
