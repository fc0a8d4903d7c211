"""Chaos tests: which of them run, the record of those that passed, and lines for the end of the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from tests.chaos import results
from tests.chaos.passed import Passed, Shard, code

EVERY_POINT = "test_every_point_is_killed_at"
SUMMARY = "summary"
"""The property of a test's report under which it says lines for the end."""
ALL_OF_IT = pytest.StashKey[set[str]]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the test that looks back behind all others, and remember what there is before anything is deselected."""
    items.sort(key=lambda item: item.name == EVERY_POINT)
    here = Path(__file__).parent
    collected = {item.nodeid for item in items if item.path.parent == here}
    files = {item.path for item in items}
    config.stash[ALL_OF_IT] = collected if files >= set(here.glob("test_*.py")) else set()


class Choice:
    """Leaves out what passed before and what is in other shards; puts on record what was run.

    A plugin of its own: hooks of a ``conftest.py`` see no tests of other folders, whose long ones are run, too.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config, self._passed, self._shard = config, Passed.from_env(), Shard.from_env()
        self._tests: Counter[str] = Counter()
        self._failed: set[str] = set()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Deselect, after ``-m`` and ``-k`` did."""
        self._tests.update(file_of(item.nodeid) for item in items)
        before = self._passed.names()
        left = [i for i in items if i.nodeid not in before and (self._shard is None or i.nodeid in self._shard)]
        self._config.hook.pytest_deselected(items=list(set(items) - set(left)))
        items[:] = left

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Remember what passed: where ``make chaos`` is stopped it goes on behind that."""
        report = yield
        if report.when == "call" and report.passed:
            self._passed.add(report.nodeid)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what failed, in whatever process."""
        if report.failed:
            self._failed.add(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the table. Having nothing left to do is no failure."""
        if self._passed.file is None or hasattr(self._config, "workerinput") or self._config.option.collectonly:
            return
        passed = self._passed.names()
        results.update(files=list(self._records(passed - self._failed)))
        if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and (passed or self._shard):
            session.exitstatus = pytest.ExitCode.OK

    def _records(self, passed: set[str]) -> Generator[results.Record, None, None]:
        same = code("include", "spark_jobs", "plugins", "tests")
        when, revision = results.now(), results.revision()
        for file in sorted({*map(file_of, passed | self._failed)}):
            good, bad = (
                sorted(n.partition("::")[2] for n in names if file_of(n) == file) for names in (passed, self._failed)
            )
            yield {"file": file, "tests": max(self._tests[file], len(good) + len(bad)), "passed": good, "failed": bad,
                   "date": when, "commit": revision, "code": same}  # fmt: skip


def file_of(name: str) -> str:
    return name.partition("::")[0]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Choice(config))


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
