from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from tests.fixtures.wal import Made

pytest_plugins = [
    "tests.fixtures.books",
    "tests.fixtures.clusters",
    "tests.fixtures.cluster",
    "tests.fixtures.database",
    "tests.fixtures.folder",
    "tests.fixtures.golden",
    "tests.fixtures.kafka",
    "tests.fixtures.lake",
    "tests.fixtures.runs",
    "tests.fixtures.node",
    "tests.fixtures.objects",
    "tests.fixtures.outward",
    "tests.fixtures.postgres",
    "tests.fixtures.spark",
    "tests.fixtures.stream",
]

LONGEST_FIRST = ("demo", "chaos", "contract", "spark", "kafka", "airflow", "unit")
"""Folders, as workers take them up: what is short fills the end."""


def folder_of(path: Path) -> str:
    """Return the folder below ``tests``."""
    return path.relative_to(Path(__file__).parent).parts[0]


class ByFile(LoadScopeScheduling):
    """A file's tests run in one worker, for they share fixtures; so do all of the demo, whose Airflows share ports."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "tests/demo" if file.startswith("tests/demo/") else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    """Schedule by files, in the order of the collection, for ``pytest -n``."""
    config.option.loadscopereorder = False
    return ByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest first where workers share the tests."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: LONGEST_FIRST.index(folder_of(item.path)))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the switch that records texts."""
    parser.addoption("--update-golden", action="store_true", help="write tests/golden from what commands say now")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to let several workers write one file."""
    if config.getoption("--update-golden") and getattr(config.option, "numprocesses", None):
        raise pytest.UsageError("--update-golden writes files that workers would share: leave out -n")


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """A write-ahead log on disk, which tests fill."""
    from tests.fixtures.wal import Made  # imports PySpark

    return Made(tmp_path / "log")


def pytest_unconfigure() -> None:
    """Let the summary be the last word: a client whose broker ended before it goes on complaining to its log."""
    logging.getLogger("kafka").setLevel(logging.CRITICAL + 1)
