"""Unknown fields that ``rescue`` keeps, and the profile of the rows: counted once, whatever dies."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.chaos.cases import WAYS
from tests.chaos.commands import AS_NUMBER, listed
from tests.fixtures.runs import Sandbox

from sluice.facts.profile import NO_ROWS
from sluice.facts.rescued import Rescued

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka, pytest.mark.long]

NOON = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() * 1000)
SECRET = 777_000
SCHEMA = "id BIGINT, name STRING, amount DECIMAL(12,2), pin INT, place STRUCT<city: STRING>"


def configure(sandbox: Sandbox, *, rescue: bool = True, schema: str = SCHEMA, **keys: Any) -> None:
    sandbox.configure(
        decode={"json": {"schema": schema, "rescue": rescue}},
        sink={"delta": {"path": "table", "evolve": "add"}},
        quality={"max_quarantined": "100%", "masked": ["pin"], "profiled": ["id", "amount"]},
        **keys,
    )


def feed(sandbox: Sandbox) -> None:
    """Twelve records, of which each third has unknown fields and no amount, and each fourth is malformed."""
    for _ in range(12):
        n = len(sandbox.produced)
        more = f', "tax":{n}.50, "\\u0061b": [ {n} ]' if n % 3 == 0 else f', "amount": {n / 2}'
        value = f'{{"id": {n}, "name": "n", "pin": {SECRET + n}, "place": {{"city": "c{n}"}}{more}}}'.encode()
        sandbox.produce([(n % 2, b"k", b"{" if n % 4 == 3 else value, NOON + n)])


def kept(sandbox: Sandbox) -> Counter[tuple[int, str | None]]:
    return Counter((row["id"], row.get("_rescued")) for row in listed(sandbox))


def wanted(numbers: range, *, since: int = 0) -> Counter[tuple[int, str | None]]:
    written = (n for n in numbers if n % 4 != 3)
    return Counter((n, f'{{"tax":{n}.50,"\\u0061b":[ {n} ]}}' if n % 3 == 0 and n >= since else None) for n in written)


@pytest.mark.parametrize(("recovery", "engine"), WAYS)
@pytest.mark.parametrize("point", ["rows-staged", "sink-committed", "batch-recorded"])
def test_rescued_fields_and_the_profile_are_those_of_the_rows(
    sandbox: Sandbox, recovery: str, engine: str, point: str
) -> None:
    configure(sandbox, rescue=False, recovery=recovery, engine=engine)
    feed(sandbox)
    sandbox.run("before")
    assert "rescued" not in sandbox.ledger.runs.account(sandbox.name, "before")
    configure(sandbox, recovery=recovery, engine=engine)
    feed(sandbox)
    sandbox.run("killed", kill_at=point)
    sandbox.run("after")
    sandbox.assert_exact()
    assert kept(sandbox) == wanted(range(24), since=12)
    accounts = [sandbox.ledger.runs.account(sandbox.name, run) for run in ("killed", "after")]
    counted = [Rescued(**account.get("rescued", {})) for account in accounts]
    assert counted[0] | counted[1] == Rescued(3, {"ab": 3, "tax": 3})
    last = next(each for each in counted[::-1] if each.records)
    shown = " ".join(sandbox.cli("status", sandbox.name).stderr.split())
    assert f"{last.records} records have fields that the schema does not have" in shown

    found = sandbox.ledger.profiles.of(sandbox.name, ("killed", "after")) or NO_ROWS
    written = [n for n in range(12, 24) if n % 4 != 3]
    amounts = [n / 2 for n in written if n % 3]
    assert found.rows == len(written) == 9
    ids, amount, pin = (found.columns[name] for name in ("id", "amount", "pin"))
    assert (ids.nulls, ids.low, ids.high, ids.mean, ids.distinct) == (0, 12, 22, sum(written) / 9, 9)
    assert (amount.nulls, amount.low, amount.high) == (9 - len(amounts), f"{min(amounts):.2f}", f"{max(amounts):.2f}")
    assert amount.mean == pytest.approx(sum(amounts) / len(amounts))
    assert found.columns["_timestamp"].high == "2026-03-01T12:00:00.022000Z"
    assert found.columns["place.city"].nulls == 0
    assert pin.told() == {**dict.fromkeys(pin.told()), "rows": 9, "nulls": 0, "null_share": 0.0}
    assert str(SECRET)[:4] not in json.dumps([e["payload"] for e in sandbox.ledger.events(sandbox.name)])


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
    assert sandbox.ledger.runs.account(sandbox.name, "again")["rescued"] == {
        "records": 4,
        "fields": {"tax": 4, "ab": 3},
    }
    assert (sandbox.ledger.profiles.of(sandbox.name, ["again"]) or NO_ROWS).rows == 10
    configure(sandbox, schema=SCHEMA.replace("id BIGINT", "id STRING"), transform=AS_NUMBER["transform"])
    sandbox.run("moved", redriven="quarantined")
    assert kept(sandbox) == expected + Counter([(None, '{"z":1}')])
    assert sandbox.ledger.runs.account(sandbox.name, "moved")["rescued"] == {"records": 1, "fields": {"z": 1}}
    sandbox.assert_balanced()
