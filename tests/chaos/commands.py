"""Commands beside runs, their deaths, and the checks behind them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from deltalake import DeltaTable
from tests.chaos.drivers import lost
from tests.fixtures.inside import without_spark
from tests.fixtures.runs import Offset, Outcome, Sandbox, good

from sluice.run.actions import Reset

__all__ = [
    "AGAIN", "ALL_BAD", "AS_NUMBER", "AS_TEXT", "assert_audited", "assert_conserved", "at", "below", "by_run", "days",
    "deep", "delta", "drain", "feed_days", "json_of", "killed", "listed", "lost", "notes", "redrive", "reset",
    "retract", "said", "suite", "versions", "without_run",
]  # fmt: skip

AGAIN = ("--from=earliest", "--truncate")
"""Options of a reset that takes all rows back."""
ALL_BAD: dict[str, Any] = {"quality": {"max_quarantined": "100%"}}
"""A pipeline that may refuse all records."""
AS_TEXT: dict[str, Any] = {
    "decode": {"text": {}},
    "transform": {"sql": "SELECT 0L AS id, value AS name, _topic, _partition, _offset, _timestamp FROM source"},
}
"""A pipeline that takes whatever it refused before."""
AS_NUMBER: dict[str, Any] = {
    "decode": {"json": {"schema": "id STRING, name STRING"}},
    "transform": {"sql": "SELECT try_cast(id AS BIGINT) AS id, * EXCEPT (id) FROM source"},
}
"""A pipeline that takes ids whose numbers are texts."""


def drain(sandbox: Sandbox, count: int, run: str, *, bad_every: int = 0, **options: Any) -> Outcome:
    """Produce ordinary records, and let a run read them."""
    sandbox.feed(count, bad_every=bad_every)
    return sandbox.run(run, **options)


def said(sandbox: Sandbox, command: str, *arguments: str, expect: int = 0, **extra: str) -> str:
    """Carry out a command about the pipeline; check its exit code, and return its output in one line."""
    done = sandbox.cli(command, str(sandbox.file), *arguments, **extra)
    assert done.returncode == expect, done.stdout[-2000:] + done.stderr[-5000:]
    return " ".join((done.stdout + done.stderr).split())


def json_of(sandbox: Sandbox, command: str, *arguments: str) -> Any:
    """Return what a command about the pipeline prints for programs."""
    done = sandbox.cli(command, str(sandbox.file), *arguments, "--json")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-5000:]
    return json.loads(done.stdout)


def killed(sandbox: Sandbox, point: str, command: str, *arguments: str) -> None:
    """Let a command about the pipeline die by SIGKILL at a point."""
    done = sandbox.cli(command, str(sandbox.file), *arguments, SLUICE_KILL_AT=point)
    assert done.returncode not in (0, 1, 10), done.stderr[-3000:]
    Sandbox.killed_at.add(point.partition(":")[0])


def redrive(sandbox: Sandbox, *arguments: str, expect: int = 0, **extra: str) -> str:
    """Redrive what was lost, or as the arguments say."""
    return said(sandbox, "redrive", "--no-validate", *arguments, expect=expect, **extra)


def retract(sandbox: Sandbox, *arguments: str, expect: int = 0) -> str:
    """Take back what a run wrote, or ranges."""
    return said(sandbox, "retract", *arguments, "--reason", "wrong currency", expect=expect)


def reset(sandbox: Sandbox, *options: str, run: str | None = None, expect: int = 0) -> str:
    """Reset in this process: a reset needs no Spark session; return the error's text."""
    run = run or f"reset {sandbox.ledger.runs.count(sandbox.name)}"
    begin = next((option.partition("=")[2] for option in options if option.startswith("--from=")), None)
    flags = {"--truncate": "truncate", "--yes": "agreed", "--rebuild-state": "rebuild"}
    asked: dict[str, Any] = {flags[option]: True for option in options if not option.startswith("--from=")}
    return without_spark(sandbox.file, Reset(run, "another transform", begin, **asked), sandbox.env(), expect)


def deep(sandbox: Sandbox, *options: str, balanced: bool = True) -> dict[str, Any]:
    """Return the report of a deep audit, which must find a problem or none."""
    done = sandbox.cli("audit", str(sandbox.file), "--deep", *options, "--json")
    assert done.returncode == (0 if balanced else 1), done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def assert_audited(sandbox: Sandbox, *options: str) -> None:
    """A deep audit finds no problem, and proves everything."""
    report = deep(sandbox, *options)
    assert (report["problems"], report["unproved"]) == ([], [])


def assert_conserved(sandbox: Sandbox, dropped: Counter[Offset] | None = None) -> None:
    """Each record is in the sink, in the quarantine, open as lost, or was dropped; once; and the account says so."""
    held = sandbox.sink() + sandbox.quarantine() + lost(sandbox)
    assert held + (dropped or Counter()) == Counter(sandbox.produced)
    deep(sandbox)


def at(day: int, second: int = 0) -> int:
    """Return milliseconds of a day of March 2013, and so many seconds on."""
    return int(datetime(2013, 3, 1, tzinfo=UTC).timestamp() * 1000) + (day - 1) * 86_400_000 + second * 1000


def days(first: int, last: int) -> tuple[str, str]:
    """Return the interval of days of March 2013, without the last one."""
    return f"2013-03-{first:02d}", f"2013-03-{last:02d}"


def feed_days(sandbox: Sandbox, first: int, last: int, each: int = 4, *, bad: bool = False) -> None:
    """Produce some records a day in both partitions, in the order of time; the first of each day may be malformed."""
    for day in range(first, last):
        number = len(sandbox.produced)
        values = [b"{" if bad and n == 0 else good(number + n) for n in range(each)]
        sandbox.produce([(n % 2, b"k", value, at(day, 60 * n)) for n, value in enumerate(values)])


def suite(sandbox: Sandbox, *expectations: Mapping[str, Any]) -> dict[str, Any]:
    """Write a suite; return the key below ``quality`` that names it."""
    (sandbox.file.parent / "suite.json").write_text(json.dumps({"name": "s", "expectations": expectations}))
    return {"suite": "suite.json"}


def below(most: int) -> dict[str, Any]:
    """Return an expectation that no greater id meets."""
    return {"type": "expect_column_values_to_be_between", "kwargs": {"column": "id", "max_value": most}}


def delta(sandbox: Sandbox, path: str = "table") -> DeltaTable:
    """Return a table of the home, which must be there."""
    return DeltaTable(str(sandbox.home / path))


def listed(sandbox: Sandbox, path: str = "table") -> list[dict[str, Any]]:
    """Return the rows of a table; none if it is not there."""
    rows = sandbox.rows(path)
    return [] if rows is None else list(rows.to_pylist())


def without_run(sandbox: Sandbox) -> Counter[str]:
    """Return the rows of the sink without the run that wrote them."""
    return Counter(repr({k: v for k, v in row.items() if k != "_run"}) for row in listed(sandbox))


def by_run(sandbox: Sandbox, path: str = "table") -> Counter[str]:
    """Return how many rows of a table each run wrote."""
    return Counter(row["_run"] for row in listed(sandbox, path))


def notes(sandbox: Sandbox, run: str) -> list[str]:
    """Return what is noted of a run."""
    return list(sandbox.ledger.runs.known(sandbox.name, run).notes)


def versions(sandbox: Sandbox) -> list[int]:
    """Return the versions of sink and quarantine."""
    return [table.version() if (table := sandbox.table(path)) else -1 for path in ("table", "table_quarantine")]
