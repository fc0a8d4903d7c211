"""Hostile records, and transforms that break their promises: whole runs and their accounts."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.chaos.commands import listed
from tests.fixtures.runs import Sandbox, consume, good

from sluice.local.kafka import Record

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

HEADERS = [("trace", b"\xff\x00"), ("trace", b"again"), ("empty", b"")]
ALL = {"max_records_per_batch": 1000}

HOSTILE: dict[str, tuple[bytes | None, bytes | None, str]] = {
    "malformed": (b"k", b'{"id": 1, "name": ', "json"),
    "no object": (b"k", b"[1, 2]", "json"),
    "wrong type": (b"k", b'{"id": "one"}', "type"),
    "beyond its type": (b"k", b'{"id": 9223372036854775808}', "type"),
    "null value": (b"k", None, "null_value"),
    "empty value": (b"k", b"", "json"),
    "blank value": (None, b"  ", "json"),
    "invalid UTF-8": (b"k", b'{"id": 1, "name": "\xff\xfe"}', "utf8"),
    "a key that is no UTF-8": (b"\xc3\x28\x00", b"not json", "json"),
    "5 MB": (b"k", b'{"id": "' + b"x" * 5_000_000 + b'"}', "type"),
}


def split(sandbox: Sandbox, run: str) -> tuple[int, ...]:
    """Return how many records of a run were written, filtered and quarantined."""
    account = sandbox.account(run)
    parts = tuple(account[part] for part in ("written", "filtered", "quarantined"))
    assert account["planned"] == sum(parts)
    return parts


def test_hostile_records_are_quarantined_verbatim_and_the_rest_is_written(sandbox: Sandbox) -> None:
    sandbox.configure(kafka=ALL)
    bad = [Record(n % 2, key, value, 1_700_000_000_000 + n, HEADERS if n % 2 else ())
           for n, (key, value, _) in enumerate(HOSTILE.values())]  # fmt: skip
    fine = [Record(0, b"\xff", good(1), None, HEADERS), Record(1, None, b'{"name": "' + b"y" * 5_000_000 + b'"}')]
    placed = sandbox.produce([*bad, *fine])
    sandbox.run("r")
    sandbox.assert_exact()
    assert split(sandbox, "r") == (2, 0, len(HOSTILE))
    assert sandbox.sink() == Counter(placed[len(bad) :])
    on_broker = {(r.topic, r.partition, r.offset): r for r in consume(sandbox.broker, sandbox.topic)}
    rules = dict(zip(placed, (rule for *_, rule in HOSTILE.values()), strict=False))
    for row in listed(sandbox, "table_quarantine"):
        place = row["_topic"], row["_partition"], row["_offset"]
        record = on_broker[place]
        assert (row["key"], row["value"], row["_run"]) == (record.key, record.value, "r")
        headers = [(h["key"], h["value"]) for h in row["headers"] or []]
        assert headers == [(k, bytes(v)) for k, v in record.headers]
        assert int(row["_timestamp"].timestamp() * 1000) == record.timestamp
        assert [{k: v for k, v in error.items() if k != "detail"} for error in row["_errors"]] == [
            {"rule": rules[place], "severity": "critical", "column": "id" if rules[place] == "type" else None}
        ]


@pytest.mark.long
@pytest.mark.parametrize("recovery", ["replay", "wal"])
def test_tombstones_are_refused_or_rows_and_can_be_redriven(sandbox: Sandbox, recovery: str) -> None:
    def decoding(**keys: str) -> None:
        sandbox.configure(recovery=recovery, decode={"json": {"schema": "id BIGINT, name STRING", "key": "of", **keys}})

    def table() -> Counter[tuple[str, int | None]]:
        return Counter((row["of"], row["id"]) for row in listed(sandbox))

    decoding()
    sandbox.produce([Record(0, b"a", good(1)), Record(0, b"a", None), Record(1, b"b", good(2))])
    sandbox.run("refused")
    assert split(sandbox, "refused") == (2, 0, 1)
    decoding(tombstone="row")
    sandbox.produce([Record(1, b"b", None), Record(1, b"b", good(3)), Record(0, b"c", b"")])
    sandbox.run("rows")
    assert split(sandbox, "rows") == (2, 0, 1)
    assert table() == Counter([("a", 1), ("b", 2), ("b", None), ("b", 3)])
    sandbox.run("driven", redriven="quarantined")
    assert table() == Counter([("a", 1), ("a", None), ("b", 2), ("b", None), ("b", 3)])
    sandbox.assert_balanced()


@pytest.mark.long
def test_transform_that_breaks_its_promise_about_rows_commits_nothing(sandbox: Sandbox) -> None:
    sandbox.feed(9, bad_every=3)
    for sql in (
        "SELECT * FROM source WHERE id % 4 <> 1",
        "SELECT * FROM source UNION ALL SELECT * FROM source",
        "SELECT s.* FROM source s JOIN (VALUES (1), (1)) AS twice(one) ON one < 2",
    ):
        sandbox.configure(transform={"sql": sql})
        assert "the promise about rows is broken" in sandbox.run("r", expect=10).message
        assert (sandbox.sink(), sandbox.quarantine(), split(sandbox, "r")) == ({}, {}, (0, 0, 0))
    sandbox.configure(transform={"sql": "SELECT * FROM source WHERE id % 4 <> 1"}, rows="filter")
    sandbox.run("r")
    # 0, 3 and 6 are malformed, 1 and 5 are dropped
    assert split(sandbox, "r") == (4, 2, 3)
    assert Counter(row["id"] for row in listed(sandbox)) == Counter([2, 4, 7, 8])
    sandbox.assert_balanced()
