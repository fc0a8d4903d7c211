"""A deep audit recomputes closed windows from the records, and names each change of the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.chaos.commands import deep, delta
from tests.chaos.models.planned import minute
from tests.chaos.models.windows import HOURLY, PANES, SESSIONS, SLIDING, UPDATED
from tests.chaos.test_window_intervals import fed
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka, pytest.mark.long]


def audited(sandbox: Sandbox) -> dict[str, Any]:
    """The report of an audit that proves all windows."""
    report = deep(sandbox, "--windows")
    assert report["problems"] == report["unproved"] == []
    return report


def problems_of(sandbox: Sandbox, change: Callable[[DeltaTable], Any]) -> list[str]:
    """The problems that a change of the table makes; the table is as it was afterwards."""
    table = delta(sandbox)
    version = table.version()
    change(table)
    problems: list[str] = deep(sandbox, "--windows", balanced=False)["problems"]
    delta(sandbox).restore(version)
    return problems


def appended(table: DeltaTable, *, number: int = 0, **values: Any) -> None:
    """Append a row of the table, with other values."""
    rows = table.to_pyarrow_table()
    row = {**rows.sort_by([("window_start", "ascending"), ("k", "ascending")]).to_pylist()[number], **values}
    write_deltalake(table, pa.Table.from_pylist([row], schema=rows.schema), mode="append")


def where(key: str, start: Any) -> str:
    return f"k = '{key}' AND window_start = '{start.isoformat()}'"


def test_audit_names_each_wrong_window_of_a_table(sandbox: Sandbox) -> None:
    stream = fed(sandbox, HOURLY)
    held = stream.held()
    assert audited(sandbox)["tables"]["windows"]["windows"] == held.total(), "late records are not held against it"
    first, second, third, *_ = sorted(held)
    begun = minute(600)  # where no window is closed

    def tampered(table: DeltaTable) -> None:
        appended(table, number=2)
        appended(table, k="zz")
        appended(table, window_start=begun, window_end=minute(660))
        table.update({"n": "n + 1"}, predicate=where(first[2], first[0]))
        table.delete(where(second[2], second[0]))

    problems = problems_of(sandbox, tampered)
    assert len(problems) == 5
    for row, key, token in (
        (first, first[2], f"n is {first[3] + 1} in the sink, and {first[3]} by the records"),
        (second, second[2], f"no such row, and by the records it has n {second[3]}, total {second[4]}"),
        (third, third[2], f"n {third[3]}, "),
        (first, "zz", ""),
        ((begun, minute(660)), "", ""),
    ):
        window = f"window {row[0].isoformat()} to {row[1].isoformat()}, k {key}"
        (problem,) = [p for p in problems if p.startswith(f"{window}: " if key else window)]
        assert token in problem
        assert f"sluice run {sandbox.name} --start {row[0].isoformat()} --end " in problem


@pytest.mark.parametrize(
    ("window", "recovery"),
    [(PANES, "wal"), (SLIDING, "replay"), (UPDATED, "replay"), (SESSIONS, "wal")],
    ids=["panes-by-the-log", "sliding", "update", "sessions-by-the-log"],
)
def test_audit_proves_windows_of_each_kind(sandbox: Sandbox, window: dict[str, Any], recovery: str) -> None:
    stream = fed(sandbox, window, recovery=recovery)
    if recovery == "wal":  # Kafka has forgotten them, and the log has not
        sandbox.topics.delete_records(sandbox.topic, sandbox.topics.ends(sandbox.topic))
    assert audited(sandbox)["tables"]["windows"]["windows"] > 0
    start, _, key, n, _ = min(stream.held())
    (problem,) = problems_of(sandbox, lambda table: table.update({"n": f"{n + 1}"}, predicate=where(key, start)))
    assert f"n is {n + 1} in the sink, and {n} by the records" in problem
    assert f"sluice run {sandbox.name} --start {start.isoformat()} --end " in problem


def test_audit_lets_doubles_differ_in_their_last_bits(sandbox: Sandbox) -> None:
    fed(sandbox, {**HOURLY, "aggregates": {"n": "count(*)", "total": "avg(v / 7D)", "any": "first(v)"}})
    report = deep(sandbox, "--windows")
    assert report["problems"] == []
    (unproved,) = report["unproved"]
    assert "first(v)" in unproved
    table = delta(sandbox)
    table.update({"total": "total * 1.0000000001D"})
    assert deep(sandbox, "--windows")["problems"] == []
    table.update({"total": "total * 1.00001D"})
    assert deep(sandbox, "--windows", balanced=False)["problems"]
