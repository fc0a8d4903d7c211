"""Commands that each kind of pipeline refuses, and the request of a run before and behind argv."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.golden import Golden
from tests.fixtures.pipelines import loaded, modelled
from tests.fixtures.specs import run_cli

from sluice.audit import windows
from sluice.errors import ConfigError
from sluice.launch.launcher import LocalProcess
from sluice.ledger import Ledger
from sluice.pipeline import Pipeline
from sluice.ranges import OffsetRange
from sluice.recovery import Recovery
from sluice.run import failover, redrive_plan, reset_plan, retraction
from sluice.run.actions import Action, ReadState, Redrive, Reset, RunRequest, parsed
from sluice.run.interval import Interval
from sluice.run.redrive_plan import way_out

COMMANDS: dict[str, Callable[[Pipeline], Any]] = {
    "interval": lambda p: RunRequest.of(p, "r", start="2026-01-01", end="2026-01-02"),
    "ignore_range": lambda p: RunRequest.of(p, "r", recovery="ignore_range"),
    "retract": retraction.possible,
    "redrive": lambda p: redrive_plan.possible(p, quarantined=False),
    "redrive --quarantined": lambda p: redrive_plan.possible(p, quarantined=True),
    "reset --truncate": lambda p: reset_plan.possible(p, "earliest", truncate=True),
    "reset --rebuild-state": lambda p: reset_plan.possible(p, None, truncate=False, rebuild=True),
    "failover": lambda p: failover.possible(p, "b"),
    "audit --windows": windows.possible,
}
MARCH = {"start": "2013-03-01", "end": "2013-04-01"}
AGGREGATE = "rows: aggregate, transform: {sql: SELECT count(*) AS n FROM source}"
PARTITIONED = "sink.delta.partition_by"
PIPELINES = {
    **{base: (base, "") for base in (
        "jdbc", "queue", "socket", "dedupe", "window", "session", "update", "complete", "processor", "clusters",
        "kafka-sink", "delta-upsert", "postgres-upsert", "delta-deletes", "postgres-deletes",
    )},
    "plain": ("kafka", ""),
    "file": ("files", ""),
    "aggregate": ("aggregate", ""),
    "window-of-many-rows": ("window", "rows: many"),
    "rows-aggregate": ("kafka", AGGREGATE),
    "rows-aggregate-into-postgres": ("kafka", f"{AGGREGATE}, sink: {{postgres: {{table: t}}}}"),
    "window-partitioned": ("window", f"{PARTITIONED}: [window_start]"),
    "session-partitioned": ("session", f"{PARTITIONED}: [id]"),
    "console": ("kafka", "sink: {console: {}}"),
    "also-kafka": ("also", ""),
    "window-into-postgres": ("window", "sink: {postgres: {table: t}}"),
    "window-into-kafka": ("window", "sink: {kafka: {topic: out}}"),
    "window-also": ("window", "also: [{kafka: {topic: out}}]"),
    "also-postgres": ("kafka", "also: [{postgres: {table: t}}]"),
}  # fmt: skip


@pytest.mark.parametrize(("base", "changes"), PIPELINES.values(), ids=PIPELINES)
def test_pipeline_refuses_commands_that_it_cannot_carry_out(base: str, changes: str, golden: Golden) -> None:
    pipeline = modelled(changes, base)
    errors: dict[str, ConfigError] = {}
    for name, command in COMMANDS.items():
        try:
            command(pipeline)
        except ConfigError as error:
            errors[name] = error
    golden("possible", "\n".join(f"{name}: {error}" for name, error in errors.items()))
    assert (pipeline.no_intervals is None) == ("interval" not in errors)
    assert retraction.retractable(pipeline) == ("retract" not in errors)
    way_out = redrive_plan.way_out(pipeline)
    assert (f"sluice redrive {pipeline.called} --quarantined" in way_out) == ("redrive --quarantined" not in errors)
    assert ("to the source again" in way_out) == ("redrive --quarantined" in errors and not way_out.count("--start"))


@pytest.mark.parametrize(
    ("changes", "begin", "truncate", "named"),
    [
        ("", "soon", False, "'soon'"),
        ("", None, True, "from"),
        ("window: $window", None, True, "--truncate"),
        ("window: $window", "latest", False, "--from"),
    ],
)
def test_reset_refuses_contradictory_options(changes: str, begin: str | None, truncate: bool, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        reset_plan.possible(modelled(changes), begin, truncate=truncate, rebuild="window" in changes)
    assert named in caught.value.what


@pytest.mark.parametrize(
    ("keys", "changes", "named"),
    [
        ({"start": "2013-03-01"}, "", "end"),
        ({"end": "2013-03-01"}, "", "start"),
        ({**MARCH, "recovery": "ignore_batch"}, "", "ignore_batch"),
        ({**MARCH, "recovery": "ignore_range"}, "window: $window", "ignore_range"),
        ({**MARCH, "max_records_per_batch": 7}, "", "max_records_per_batch"),
        ({"recovery": "ignore_batch"}, "rows: aggregate", "ignore_batch"),
        ({"max_records_per_batch": 0}, "", "at least 1"),
        ({"run": "a\nrun"}, "", "printable"),
    ],
)
def test_run_refuses_a_request_that_cannot_be_meant(keys: dict[str, Any], changes: str, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RunRequest.of(modelled(changes), keys.pop("run", "r"), **keys)
    assert named in caught.value.what


@pytest.mark.parametrize(
    "request_",
    [
        RunRequest("r"),
        RunRequest("manual__2013-01-01T00:00:00+00:00", Recovery.WAL, 7, None, "--because", False),
        RunRequest("a run", Recovery.HOT, interval=Interval.parse(*MARCH.values()), reason="2 = 2"),
        Redrive("r", tuple(OffsetRange("ü" * 90, 0, 2 * n, 2 * n + 1) for n in range(5000)), before=datetime.now(UTC)),
        Reset("r", "-y", "earliest", truncate=True, agreed=True, result=Path("/tmp/x")),
        ReadState(Path("r"), "/c", 7, "processor", None, (["k"], {"k": "ä"}, 5)),
    ],
)
def test_action_is_the_same_behind_argv(request_: Action) -> None:
    assert max(len(word.encode()) for word in request_.arguments()) < 1 << 17, "Linux takes no longer words"
    assert parsed(request_.arguments()) == request_


def test_request_has_an_interval_if_both_ends_are_given() -> None:
    assert RunRequest.of(modelled(), "r", start="", end="").interval is None
    assert RunRequest.of(modelled(), "r", **MARCH, recovery="wal").interval is not None


@pytest.mark.parametrize("strategy", Recovery)
def test_interval_has_the_strategy_that_was_chosen_or_that_of_live_runs_if_it_can(strategy: Recovery) -> None:
    chosen = RunRequest.of(modelled(f"recovery: {strategy}"), "r", **MARCH).recovery
    assert chosen is (Recovery.REPLAY if strategy is Recovery.IGNORE_BATCH else strategy)
    if strategy is not Recovery.IGNORE_BATCH:
        assert RunRequest.of(modelled("recovery: ignore_batch"), "r", **MARCH, recovery=strategy).recovery is strategy


def test_records_that_a_window_did_not_take_go_into_it_by_an_interval() -> None:
    assert "sluice run p --start TIME --end TIME" in way_out(modelled(base="window"))


def test_failover_takes_a_cluster_of_the_file_only() -> None:
    with pytest.raises(ConfigError, match="'c'"):
        failover.possible(modelled(base="clusters"), "c")


@pytest.mark.parametrize("options", ["", "--quarantined", "--quarantined --dry-run"])
def test_refused_redrive_starts_no_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(LocalProcess, "start", lambda *_: pytest.fail("a driver was started"))
    assert run_cli(monkeypatch, "redrive", str(loaded(tmp_path, base="dedupe").file), *options.split()) == 10
    assert not Ledger.open().runs.newest("p", limit=1), "a run that could not be was recorded"
