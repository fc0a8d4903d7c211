"""Rows that break a critical expectation are split off in the run itself; recorded states kill it at each point."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.chaos.commands import listed, said, suite
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka, pytest.mark.long]

Placed = list[tuple[str, int, int]]


def expect(kind: str, severity: str = "critical", **kwargs: Any) -> dict[str, Any]:
    return {"type": f"expect_column_values_to_{kind}", "kwargs": kwargs, "severity": severity}


def configure(sandbox: Sandbox, least: int, **keys: Any) -> None:
    """A suite by which ids from ``least`` are sound, and a transform that makes its columns."""
    expectations = [
        expect("be_between", column="number", min_value=least),
        expect("not_be_null", column="name", row_condition="number >= 0", condition_parser="spark"),
        expect("be_in_set", column="name", value_set=["a"], severity="warning"),
        expect("be_unique", column="number"),
    ]
    sandbox.configure(
        transform={"sql": "SELECT id AS number, name, _topic, _partition, _offset, _timestamp FROM source"},
        quality={**suite(sandbox, *expectations), "split": "critical", "max_quarantined": "100%"},
        **keys,
    )


def produce(sandbox: Sandbox, first: int) -> tuple[Placed, Placed, Placed]:
    """Produce sound records, those that break an expectation, and one that does not decode."""
    sound = [{"id": first + n, "name": "ab"[n % 2]} for n in range(6)]
    broken = [{"id": -5 - first, "name": None}, {"id": first + 6, "name": None}, {"id": -6 - first, "name": "a"}]
    values = [json.dumps(value).encode() for value in (*sound, *broken)]
    placed = sandbox.produce([(n % 2, None, value) for n, value in enumerate((*values, b"{"))])
    return placed[:6], placed[6:9], placed[9:]


def refused(sandbox: Sandbox) -> dict[tuple[str, int, int], tuple[str, str | None]]:
    rows = listed(sandbox, "table_quarantine")
    found = {(r["_topic"], r["_partition"], r["_offset"]): r["_errors"] for r in rows}
    assert len(found) == len(rows)
    assert all(len(errors) == 1 for errors in found.values())
    return {key: (errors[0]["rule"], errors[0]["column"]) for key, errors in found.items()}


BETWEEN = ("expect_column_values_to_be_between", "number")
NULL = ("expect_column_values_to_not_be_null", "name")


@pytest.mark.parametrize("recovery", ["wal", "hot", "ignore_batch", "ignore_range"])
def test_every_strategy_splits_and_a_redrive_goes_by_the_suite_of_now(sandbox: Sandbox, recovery: str) -> None:
    configure(sandbox, 0, recovery=recovery)
    good, bad, unreadable = produce(sandbox, 0)
    sandbox.run("r", validate=True)
    sandbox.assert_exact()
    broken = {**dict(zip(bad, (BETWEEN, NULL, BETWEEN), strict=True)), unreadable[0]: ("json", None)}
    assert (sandbox.sink(), refused(sandbox)) == (Counter(good), broken)
    row = sandbox.ledger.runs.known(sandbox.name, "r")
    assert row.verdict == "warned"
    by_type = {result["expectation"]: result for result in (row.judgement or {})["results"]}
    assert by_type["expect_column_values_to_be_in_set"]["unexpected_count"] == 3

    configure(sandbox, -5, recovery=recovery)  # lets one pass
    sandbox.run("again", redriven="quarantined")
    assert sandbox.sink() == Counter([*good, bad[0]])
    assert refused(sandbox) == {key: rule for key, rule in broken.items() if key != bad[0]}


def test_interval_replaces_rows_that_were_split(sandbox: Sandbox) -> None:
    configure(sandbox, 0)
    good, bad, unreadable = produce(sandbox, 0)
    sandbox.run("r")
    configure(sandbox, 3)
    sandbox.run("i", interval=("1970-01-01T00:00:00Z", datetime.now(UTC).isoformat()))
    assert sandbox.sink() == Counter(good[3:])
    assert refused(sandbox).keys() == {*bad, *unreadable, *good[:3]}


def test_split_takes_a_bound_without_a_zone_as_utc_on_any_machine(sandbox: Sandbox) -> None:
    since = {"column": "at", "min_value": "2013-01-01T00:00:00"}
    quality = {**suite(sandbox, expect("be_between", **since)), "split": "critical"}
    sandbox.configure(decode={"json": {"schema": "at TIMESTAMP"}}, quality=quality)
    sandbox.produce([(0, b"k", b'{"at": "2013-01-01T0%d:00:00Z"}' % hour) for hour in range(8)])
    sandbox.produce([(0, b"k", b'{"at": "2012-12-31T23:00:00Z"}')])
    done = sandbox.cli("run", str(sandbox.file), "--run", "there", TZ="America/New_York", LC_ALL="C")
    assert done.returncode in (0, 50), done.stderr
    assert sandbox.quarantine() == Counter({(sandbox.topic, 0, 8): 1})
    said(sandbox, "retract", "there", "--reason", "größe ✓", LC_ALL="C")
    reasons = [e["payload"]["reason"] for e in sandbox.ledger.events(sandbox.name) if e["type"] == "RangeRetracted"]
    assert reasons == ["größe ✓"]
