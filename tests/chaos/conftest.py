"""What spans all chaos tests: which points were killed at, and what random kills and recorded states came to."""

from __future__ import annotations

from pathlib import Path

import pytest

EVERY_POINT = "test_every_point_is_killed_at"
SUMMARY = pytest.StashKey[list[str]]()
ALL_OF_IT = pytest.StashKey[set[str]]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the test that looks back behind all others, and remember what there is before anything is deselected."""
    items.sort(key=lambda item: item.name == EVERY_POINT)
    here = Path(__file__).parent
    collected = {item.nodeid for item in items if item.path.parent == here}
    files = {item.path for item in items}
    config.stash[ALL_OF_IT] = collected if files >= set(here.glob("test_*.py")) else set()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[SUMMARY] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what random kills and recorded states came to."""
    lines = config.stash.get(SUMMARY, [])
    if lines:
        terminalreporter.section("random kills and recorded states")
        for line in lines:
            terminalreporter.line(line)


@pytest.fixture
def summary(request: pytest.FixtureRequest) -> list[str]:
    """Lines for the end of the report."""
    return request.config.stash[SUMMARY]


@pytest.fixture
def all_of_it(request: pytest.FixtureRequest) -> bool:
    """Whether this session runs every chaos test, the long ones too."""
    chosen = {item.nodeid for item in request.session.items}
    everything = request.config.stash[ALL_OF_IT]
    return bool(everything) and everything <= chosen
