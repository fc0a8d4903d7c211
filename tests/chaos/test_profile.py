"""What a run wrote is profiled once, whatever dies, and values of masked columns stay out of the ledger."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.chaos.cases import WAYS
from tests.chaos.commands import ALL_BAD
from tests.fixtures.runs import Sandbox

from sluice.facts.profile import NO_ROWS, Profile

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

NOON = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() * 1000)
SECRET = 777_000


def configure(sandbox: Sandbox, **keys: Any) -> None:
    sandbox.configure(
        decode={"json": {"schema": "id BIGINT, amount DECIMAL(12,2), pin INT, place STRUCT<city: STRING>"}},
        quality={"max_quarantined": "100%", "masked": ["pin"], "profiled": ["id", "amount"]},
        **keys,
    )


def feed(sandbox: Sandbox, count: int = 12) -> None:
    """Records of which each third has no amount, and each fourth is malformed."""
    for _ in range(count):
        n = len(sandbox.produced)
        row = {"id": n, "amount": None if n % 3 == 0 else n / 2, "pin": SECRET + n, "place": {"city": f"c{n}"}}
        sandbox.produce([(n % 2, b"k", b"{" if n % 4 == 3 else json.dumps(row).encode(), NOON + n)])


def whole(sandbox: Sandbox, *runs: str) -> Profile:
    return sandbox.ledger.profile(sandbox.name, runs) or NO_ROWS


@pytest.mark.long
@pytest.mark.parametrize(("recovery", "engine"), WAYS)
@pytest.mark.parametrize("point", ["rows-staged", "sink-committed", "batch-recorded"])
def test_profile_is_that_of_the_rows(sandbox: Sandbox, recovery: str, engine: str, point: str) -> None:
    configure(sandbox, recovery=recovery, engine=engine)
    feed(sandbox)
    sandbox.run("killed", kill_at=point)
    sandbox.run("after")
    sandbox.assert_exact()
    found = whole(sandbox, "killed", "after")
    written = [n for n in range(12) if n % 4 != 3]
    amounts = [n / 2 for n in written if n % 3]
    assert found.rows == len(written)
    ids, amount = found.columns["id"], found.columns["amount"]
    assert (ids.nulls, ids.low, ids.high, ids.mean, ids.distinct) == (0, 0, 10, sum(written) / 9, 9)
    assert (amount.nulls, amount.low, amount.high) == (9 - len(amounts), f"{min(amounts):.2f}", f"{max(amounts):.2f}")
    assert amount.mean == pytest.approx(sum(amounts) / len(amounts))
    assert found.columns["_timestamp"].high == "2026-03-01T12:00:00.010000Z"
    assert found.columns["place.city"].nulls == 0
    assert found.columns["pin"].told() == {**dict.fromkeys(found.columns["pin"].told()), "rows": 9, "nulls": 0,
                                           "null_share": 0.0}  # fmt: skip
    assert str(SECRET)[:3] not in json.dumps([e["payload"] for e in sandbox.ledger.events(sandbox.name)])


@pytest.mark.long
def test_intervals_and_redrives_have_profiles(sandbox: Sandbox) -> None:
    configure(sandbox)
    feed(sandbox)
    sandbox.run("live")
    sandbox.run("again", interval=("2026-03-01", "2026-03-02"), kill_at="sink-committed")
    sandbox.run("again", interval=("2026-03-01", "2026-03-02"))
    assert whole(sandbox, "again") == whole(sandbox, "live")
    transform = {"sql": "SELECT 1L AS id, * EXCEPT (value) FROM source"}
    sandbox.configure(decode={"text": {}}, transform=transform, **ALL_BAD)
    sandbox.run("moved", redriven="quarantined")
    moved = whole(sandbox, "moved")
    assert (moved.rows, moved.columns["id"].high) == (3, 1)
