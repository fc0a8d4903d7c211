"""Columns that evolve adds or widens with a batch: rows and columns are there together, once, and recorded."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

WIDER = {"json": {"schema": "id BIGINT, name STRING, tax BIGINT, at STRUCT<city: STRING>"}}
ADDED = [{"column": "tax", "type": "bigint"}, {"column": "at", "type": "struct<city:string>"}]
DIRECT = ("rows-staged", "before-sink-commit", "sink-committed", "quarantine-committed", "batch-recorded")


def configure(sandbox: Sandbox, *, wider: bool = True, evolve: str = "add", **keys: Any) -> None:
    more = {"decode": WIDER} if wider else {}
    sink = {"delta": {"path": "table", "evolve": evolve}}
    sandbox.configure(sink=sink, quality={"max_quarantined": "100%"}, **more, **keys)


def feed(sandbox: Sandbox, count: int, day: int = 1) -> None:
    """Records of which each fourth is malformed, and of the others each has the new fields."""
    for _ in range(count):
        n = len(sandbox.produced)
        value = {"id": n, "name": f"n{n}", "tax": n * 2, "at": {"city": "Köln"}}
        at = int(datetime(2026, 3, day, 0, n, tzinfo=UTC).timestamp() * 1000)
        sandbox.produce([(n % 2, b"k", b"{" if n % 4 == 3 else json.dumps(value).encode(), at)])


def taxed(sandbox: Sandbox) -> dict[int, tuple[int | None, str | None]]:
    rows = sandbox.rows()
    assert rows is not None
    return {r["id"]: (r.get("tax"), (r.get("at") or {}).get("city")) for r in rows.to_pylist()}


def recorded(sandbox: Sandbox) -> list[Any]:
    return [e["payload"]["added"] for e in sandbox.ledger.events(sandbox.name) if e["type"] == "SchemaEvolved"]


def columns(sandbox: Sandbox) -> set[str]:
    table = sandbox.table()
    return {f.name for f in table.schema().fields} if table else set()


@pytest.mark.parametrize(
    ("recovery", "engine", "point"),
    [
        ("replay", "auto", None),
        pytest.param("replay", "auto", "sink-committed", marks=pytest.mark.long),
        *(pytest.param("replay", "spark", point, marks=pytest.mark.long) for point in DIRECT),
        *(pytest.param("wal", "auto", point, marks=pytest.mark.long) for point in ("sealed", *DIRECT)),
        *(
            pytest.param(recovery, "auto", point, marks=pytest.mark.long)
            for recovery in ("hot", "ignore_range", "ignore_batch")
            for point in ("before-sink-commit", "sink-committed")
        ),
    ],
)
def test_evolve_adds_rows_and_columns_together_when_drivers_are_killed(
    sandbox: Sandbox, recovery: str, engine: str, point: str | None
) -> None:
    configure(sandbox, wider=False, recovery=recovery, engine=engine)
    feed(sandbox, 8)
    sandbox.run("before")
    feed(sandbox, 8)
    configure(sandbox, evolve="refuse", recovery=recovery, engine=engine)
    assert "ADD COLUMNS (tax bigint, at struct<city:string>)" in sandbox.run("refused", expect=10).message
    feed(sandbox, 8)  # with wal, the refused run has landed the others
    configure(sandbox, recovery=recovery, engine=engine)
    if point:
        sandbox.run("killed", kill_at=point)
        arrived = any(n >= 8 for n in taxed(sandbox))
        assert ({"tax", "at"} <= columns(sandbox)) == arrived, "the one without the other"
    sandbox.run("after")
    sandbox.assert_exact()
    assert taxed(sandbox) == {n: (n * 2, "Köln") if n >= 8 else (None, None) for n in range(24) if n % 4 != 3}
    assert recorded(sandbox) == [ADDED]
    assert sandbox.orphans() == set()


@pytest.mark.long
@pytest.mark.parametrize("point", ["columns-rewritten", "columns-widened", "before-sink-commit", "sink-committed"])
@pytest.mark.parametrize(
    ("recovery", "engine"),
    [("replay", "auto"), ("replay", "spark"), ("wal", "auto"), ("hot", "auto"), ("ignore_range", "auto")],
)
def test_evolve_widens_types_and_changes_no_row_when_drivers_are_killed(
    sandbox: Sandbox, recovery: str, engine: str, point: str
) -> None:
    def kinds(number: str) -> dict[str, Any]:
        return {"decode": {"json": {"schema": f"id {number}, name STRING, at STRUCT<n: {number}>"}}}

    def run(name: str, number: str, evolve: str, **more: Any) -> Any:
        sink = {"delta": {"path": "table", "evolve": evolve}}
        quality = {"max_quarantined": "100%"}
        sandbox.configure(sink=sink, quality=quality, recovery=recovery, engine=engine, **kinds(number))
        return sandbox.run(name, **more)

    def feed(count: int, plus: int) -> None:
        for _ in range(count):
            n = len(sandbox.produced)
            value = {"id": n + plus, "name": f"n{n}", "at": {"n": n + plus}}
            sandbox.produce([(n % 2, b"k", b"{" if n % 4 == 3 else json.dumps(value).encode(), 1_772_000_000_000 + n)])

    feed(8, 0)
    run("before", "INT", "refuse")
    table = sandbox.table()
    assert table is not None
    older = {uri.rpartition("/batches/")[2].split("/")[0] for uri in table.file_uris()}
    feed(8, 2**40)
    assert "sink.delta.evolve: widen" in run("refused", "BIGINT", "add", expect=10).message
    run("killed", "BIGINT", "widen", kill_at=point)
    run("after", "BIGINT", "widen")
    sandbox.assert_exact()
    rows = sandbox.rows()
    assert rows is not None
    expected = {n + (2**40 if n >= 8 else 0) for n in range(16) if n % 4 != 3}
    assert {row["id"] for row in rows.to_pylist()} == {row["at"]["n"] for row in rows.to_pylist()} == expected
    widened = [{"column": name, "type": "bigint", "was": "int"} for name in ("id", "at.n")]
    assert recorded(sandbox) == [widened]
    assert sandbox.orphans() == older, "which older versions of the table have"
    sandbox.assert_balanced()


@pytest.mark.long
def test_evolve_adds_columns_with_an_interval_and_a_redrive(sandbox: Sandbox) -> None:
    configure(sandbox, wider=False)
    for day in (1, 2):
        feed(sandbox, 8, day)
    sandbox.run("live")
    configure(sandbox)
    interval = ("2026-03-02", "2026-03-03")
    sandbox.run("again", interval=interval, kill_at="columns-added")
    assert {"tax", "at"} <= columns(sandbox)
    assert set(taxed(sandbox).values()) == {(None, None)}
    sandbox.run("again", interval=interval)
    sandbox.assert_exact()
    after = {n: (n * 2, "Köln") if n >= 8 else (None, None) for n in range(16) if n % 4 != 3}
    assert taxed(sandbox) == after

    sandbox.configure(
        sink={"delta": {"path": "table", "evolve": "add"}},
        decode={"text": {}},
        quality={"max_quarantined": "100%"},
        transform={
            "sql": "SELECT CAST(NULL AS BIGINT) AS id, CAST(NULL AS STRING) AS name, CAST(NULL AS BIGINT) AS tax, "
            "CAST(NULL AS STRUCT<city: STRING>) AS at, value AS raw, _topic, _partition, _offset, _timestamp "
            "FROM source"
        },
    )
    sandbox.run("moved", redriven="quarantined")
    rows = sandbox.rows()
    assert rows is not None
    assert [r["raw"] for r in rows.to_pylist() if r["raw"]] == ["{"] * 4
    assert not sandbox.quarantine()
    assert recorded(sandbox)[-1] == [{"column": "raw", "type": "string"}]
    assert "columns added to the sink: raw string" in sandbox.ledger.account(sandbox.name, "moved")["notes"]
    assert sandbox.sink() == Counter(sandbox.produced)
    sandbox.assert_balanced()
