"""What spans all chaos tests: which points were killed at, and what random kills and recorded states came to."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from tests.chaos.passed import Passed

EVERY_POINT = "test_every_point_is_killed_at"
SUMMARY = "summary"
"""The property of a test's report under which it says lines for the end."""
PASSED = pytest.StashKey[Passed]()
ALL_OF_IT = pytest.StashKey[set[str]]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the test that looks back behind all others, and remember what there is before anything is deselected."""
    items.sort(key=lambda item: item.name == EVERY_POINT)
    here = Path(__file__).parent
    collected = {item.nodeid for item in items if item.path.parent == here}
    files = {item.path for item in items}
    config.stash[ALL_OF_IT] = collected if files >= set(here.glob("test_*.py")) else set()
    before = config.stash[PASSED].names()
    done = [item for item in items if item.nodeid in before]
    if done:
        items[:] = [item for item in items if item.nodeid not in before]
        config.hook.pytest_deselected(items=done)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[PASSED] = Passed.from_env()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Having nothing left to do is no failure."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and session.config.stash[PASSED].names():
        session.exitstatus = pytest.ExitCode.OK


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember what passed: where ``make chaos`` is stopped it goes on behind that."""
    report = yield
    if report.when == "call" and report.passed:
        item.config.stash[PASSED].add(item.nodeid)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what random kills and recorded states came to, in whatever process they were."""
    reports = [report for word in ("passed", "failed") for report in terminalreporter.stats.get(word, ())]
    lines = [line for report in reports for name, line in getattr(report, "user_properties", ()) if name == SUMMARY]
    if lines:
        terminalreporter.section("random kills and recorded states")
        for line in lines:
            terminalreporter.line(str(line))


@pytest.fixture
def summary(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Say a line for the end of the report."""
    return lambda line: record_property(SUMMARY, line)


@pytest.fixture
def all_of_it(request: pytest.FixtureRequest) -> bool:
    """Whether this process runs every chaos test, the long ones too."""
    if hasattr(request.config, "workerinput"):
        return False
    chosen = {item.nodeid for item in request.session.items}
    everything = request.config.stash[ALL_OF_IT]
    return bool(everything) and everything <= chosen
