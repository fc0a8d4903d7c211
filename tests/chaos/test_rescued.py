"""``rescue``: unknown fields are kept and counted, once, whatever dies."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.chaos.cases import WAYS
from tests.chaos.commands import ALL_BAD, AS_NUMBER, listed
from tests.fixtures.runs import Sandbox

from sluice.facts.rescued import Rescued

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

NOON = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() * 1000)


def configure(sandbox: Sandbox, *, rescue: bool = True, **keys: Any) -> None:
    decode = {"json": {"schema": "id BIGINT, name STRING", "rescue": rescue}}
    sandbox.configure(**{"decode": decode, "sink": {"delta": {"path": "table", "evolve": "add"}}, **ALL_BAD, **keys})


def feed(sandbox: Sandbox, count: int = 12) -> None:
    """Records of which each third has unknown fields, and each fourth is malformed."""
    for _ in range(count):
        n = len(sandbox.produced)
        more = f', "tax":{n}.50, "\\u0061b": [ {n} ]' if n % 3 == 0 else ""
        value = f'{{"id": {n}, "name": "n"{more}}}'.encode()
        sandbox.produce([(n % 2, b"k", b"{" if n % 4 == 3 else value, NOON)])


def kept(sandbox: Sandbox) -> Counter[tuple[int, str | None]]:
    return Counter((row["id"], row.get("_rescued")) for row in listed(sandbox))


def wanted(numbers: range, *, since: int = 0) -> Counter[tuple[int, str | None]]:
    written = (n for n in numbers if n % 4 != 3)
    return Counter((n, f'{{"tax":{n}.50,"\\u0061b":[ {n} ]}}' if n % 3 == 0 and n >= since else None) for n in written)


@pytest.mark.long
@pytest.mark.parametrize(("recovery", "engine"), WAYS)
@pytest.mark.parametrize("point", ["rows-staged", "sink-committed", "batch-recorded"])
def test_rescued_fields_are_in_the_table_and_counted_by_run(
    sandbox: Sandbox, recovery: str, engine: str, point: str
) -> None:
    configure(sandbox, rescue=False, recovery=recovery, engine=engine)
    feed(sandbox)
    sandbox.run("before")
    assert "rescued" not in sandbox.ledger.account(sandbox.name, "before")
    configure(sandbox, recovery=recovery, engine=engine)
    feed(sandbox)
    sandbox.run("killed", kill_at=point)
    sandbox.run("after")
    sandbox.assert_exact()
    assert kept(sandbox) == wanted(range(24), since=12)
    accounts = [sandbox.ledger.account(sandbox.name, run) for run in ("killed", "after")]
    counted = [Rescued(**account.get("rescued", {})) for account in accounts]
    assert counted[0] | counted[1] == Rescued(3, {"ab": 3, "tax": 3})
    shown = " ".join(sandbox.cli("status", sandbox.name).stderr.split())
    last = next(each for each in counted[::-1] if each.records)
    assert f"{last.records} records have fields that the schema does not have" in shown


@pytest.mark.long
def test_interval_and_redrive_keep_and_count_rescued_fields(sandbox: Sandbox) -> None:
    configure(sandbox, rescue=False)
    feed(sandbox)
    odd = [json.dumps({"id": 100, "tax": {}}).encode(), b'{"id": "x", "z": 1}']
    sandbox.produce([(0, b"k", value, NOON) for value in odd])
    sandbox.run("live")
    configure(sandbox)
    sandbox.run("again", interval=("2026-03-01", "2026-03-02"), kill_at="sink-committed")
    sandbox.run("after")  # enters the interval: its commit says which fields it kept
    expected = wanted(range(12)) + Counter([(100, '{"tax":{}}')])
    assert kept(sandbox) == expected
    assert sandbox.ledger.account(sandbox.name, "again")["rescued"] == {"records": 4, "fields": {"tax": 4, "ab": 3}}
    configure(sandbox, **AS_NUMBER | {"decode": {"json": {"schema": "id STRING, name STRING", "rescue": True}}})
    sandbox.run("moved", redriven="quarantined")
    assert kept(sandbox) == expected + Counter([(None, '{"z":1}')])
    assert sandbox.ledger.account(sandbox.name, "moved")["rescued"] == {"records": 1, "fields": {"z": 1}}
    sandbox.assert_balanced()
