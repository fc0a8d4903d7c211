import logging
import os
import time
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

pytest_plugins = [
    "tests.fixtures.books",
    "tests.fixtures.clusters",
    "tests.fixtures.cluster",
    "tests.fixtures.database",
    "tests.fixtures.folder",
    "tests.fixtures.kafka",
    "tests.fixtures.lake",
    "tests.fixtures.runs",
    "tests.fixtures.node",
    "tests.fixtures.objects",
    "tests.fixtures.outward",
    "tests.fixtures.postgres",
    "tests.fixtures.spark",
    "tests.fixtures.stream",
    "tests.fixtures.wal",
]

LONGEST_FIRST = ("demo", "chaos", "spark", "kafka", "airflow", "unit")
"""Folders, as workers take them up: what is short fills the end."""


MINUTES = "SLUICE_TEST_MINUTES"
"""Names the minutes after which no crash test and no demo begins any more: a slow machine still gets to all others."""
_BEGAN = "SLUICE_TESTS_BEGAN"


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


def pytest_configure() -> None:
    """Remember when the tests began, for this process and the workers that it starts."""
    os.environ.setdefault(_BEGAN, str(time.time()))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out what takes long when the time for it is up."""
    minutes = os.environ.get(MINUTES)
    if minutes and folder_of(item.path) in ("demo", "chaos"):
        passed = (time.time() - float(os.environ[_BEGAN])) / 60
        if passed > float(minutes):
            pytest.skip(f"out of time: {MINUTES}={minutes}")


def pytest_unconfigure() -> None:
    """Let the summary be the last word: a client whose broker ended before it goes on complaining to its log."""
    logging.getLogger("kafka").setLevel(logging.CRITICAL + 1)
