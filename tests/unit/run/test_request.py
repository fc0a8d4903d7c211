"""A run's request and its redrive: the same behind argv as before it, and no driver starts where it is refused."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from tests.fixtures.pipelines import loaded, modelled
from tests.fixtures.specs import run_cli

from sluice.cli import redrive as command
from sluice.errors import ConfigError
from sluice.ledger import Ledger
from sluice.recovery import Recovery
from sluice.run import failover
from sluice.run.interval import Interval
from sluice.run.redriving import way_out
from sluice.run.request import RunRequest


@pytest.mark.parametrize(
    "request_",
    [
        RunRequest("r"),
        RunRequest("manual__2013-01-01T00:00:00+00:00", Recovery.WAL, 7, None, "--because", False),
        RunRequest("a run", interval=Interval.parse("2013-03-01", "2013-04-01"), reason="2 = 2"),
    ],
)
def test_request_is_the_same_behind_argv(request_: RunRequest) -> None:
    parser = argparse.ArgumentParser()
    RunRequest.add_to(parser)
    assert RunRequest.parse(parser.parse_args(request_.arguments()), modelled()) == request_


def test_request_has_an_interval_if_both_ends_are_given() -> None:
    assert RunRequest.of(modelled(), "r", start="", end="").interval is None
    assert RunRequest.of(modelled(), "r", start="2013-03-01", end="2013-04-01", recovery="wal").interval is not None


def test_records_that_a_window_did_not_take_go_into_it_by_an_interval() -> None:
    assert "sluice run p --start TIME --end TIME" in way_out(modelled(base="window"), "p")


def test_failover_takes_a_cluster_of_the_file_only() -> None:
    failover.possible(modelled(base="clusters"), "b")
    with pytest.raises(ConfigError, match="'c'"):
        failover.possible(modelled(base="clusters"), "c")


@pytest.mark.parametrize("options", [(), ("--quarantined",), ("--quarantined", "--dry-run")], ids=str)
def test_refused_redrive_starts_no_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(command.LocalProcess, "start", lambda *_: pytest.fail("a driver was started"))
    assert run_cli(monkeypatch, "redrive", str(loaded(tmp_path, base="dedupe").file), *options) == 10
    assert not Ledger.open().runs("p", limit=1), "a run that could not be was recorded"
