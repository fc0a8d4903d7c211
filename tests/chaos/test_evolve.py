"""Columns that evolve adds or widens with a batch: rows and columns are there together, once, and recorded."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.chaos.cases import WAYS
from tests.chaos.commands import ALL_BAD, delta, listed
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka, pytest.mark.long]

WIDER = {"json": {"schema": "id BIGINT, name STRING, tax BIGINT, at STRUCT<city: STRING>"}}


def configure(sandbox: Sandbox, *, wider: bool = True, evolve: str = "add", **keys: Any) -> None:
    more = {"decode": WIDER} if wider else {}
    sandbox.configure(**{"sink": {"delta": {"path": "table", "evolve": evolve}}, **ALL_BAD, **more, **keys})


def feed(sandbox: Sandbox, count: int, day: int = 1, *, plus: int | None = None) -> None:
    """Records of which each fourth is malformed; the others have new fields, or with ``plus`` greater numbers."""
    for _ in range(count):
        n = len(sandbox.produced)
        place = {"city": "Köln"} if plus is None else {"n": n + plus}
        value = {"id": n + (plus or 0), "name": f"n{n}", "tax": n * 2, "at": place}
        at = int(datetime(2026, 3, day, 0, n, tzinfo=UTC).timestamp() * 1000)
        sandbox.produce([(n % 2, b"k", b"{" if n % 4 == 3 else json.dumps(value).encode(), at)])


def taxed(sandbox: Sandbox) -> dict[int, tuple[int | None, str | None]]:
    return {r["id"]: (r.get("tax"), (r.get("at") or {}).get("city")) for r in listed(sandbox)}


def recorded(sandbox: Sandbox) -> list[Any]:
    return [e["payload"]["added"] for e in sandbox.ledger.events(sandbox.name) if e["type"] == "SchemaEvolved"]


def columns(sandbox: Sandbox) -> set[str]:
    return {field.name for field in delta(sandbox).schema().fields}


@pytest.mark.parametrize("point", ["columns-rewritten", "columns-widened", "before-sink-commit", "sink-committed"])
@pytest.mark.parametrize(("recovery", "engine"), [*WAYS, ("ignore_range", "auto")])
def test_evolve_widens_types_and_changes_no_row_when_drivers_are_killed(
    sandbox: Sandbox, recovery: str, engine: str, point: str
) -> None:
    def run(name: str, number: str, evolve: str, **more: Any) -> Any:
        decode = {"json": {"schema": f"id {number}, name STRING, at STRUCT<n: {number}>"}}
        configure(sandbox, decode=decode, evolve=evolve, recovery=recovery, engine=engine)
        return sandbox.run(name, **more)

    feed(sandbox, 8, plus=0)
    run("before", "INT", "refuse")
    older = {uri.rpartition("/batches/")[2].split("/")[0] for uri in delta(sandbox).file_uris()}
    feed(sandbox, 8, plus=2**40)
    assert "sink.delta.evolve: widen" in run("refused", "BIGINT", "add", expect=10).message
    run("killed", "BIGINT", "widen", kill_at=point)
    run("after", "BIGINT", "widen")
    sandbox.assert_exact()
    rows, expected = listed(sandbox), {n + (2**40 if n >= 8 else 0) for n in range(16) if n % 4 != 3}
    assert {row["id"] for row in rows} == {row["at"]["n"] for row in rows} == expected
    widened = [{"column": name, "type": "bigint", "was": "int"} for name in ("id", "at.n")]
    assert recorded(sandbox) == [widened]
    assert sandbox.orphans() == older, "which older versions of the table have"
    sandbox.assert_balanced()


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

    nulls = "CAST(NULL AS BIGINT) AS id, CAST(NULL AS STRING) AS name, CAST(NULL AS BIGINT) AS tax"
    place = "CAST(NULL AS STRUCT<city: STRING>) AS at"
    sql = f"SELECT {nulls}, {place}, value AS raw, _topic, _partition, _offset, _timestamp FROM source"
    configure(sandbox, decode={"text": {}}, transform={"sql": sql})
    sandbox.run("moved", redriven="quarantined")
    assert [row["raw"] for row in listed(sandbox) if row["raw"]] == ["{"] * 4
    assert not sandbox.quarantine()
    assert recorded(sandbox)[-1] == [{"column": "raw", "type": "string"}]
    assert "columns added to the sink: raw string" in sandbox.ledger.runs.account(sandbox.name, "moved")["notes"]
    assert sandbox.sink() == Counter(sandbox.produced)
    sandbox.assert_balanced()
