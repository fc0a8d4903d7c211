"""Records that nobody would want, and transforms that do not keep their word."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from tests.fixtures.runs import Sandbox, consume, good

from sluice.local.kafka import Record

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

HEADERS = [("trace", b"\xff\x00"), ("trace", b"again"), ("empty", b"")]

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


def test_what_cannot_be_decoded_is_quarantined_verbatim_and_the_rest_is_written(sandbox: Sandbox) -> None:
    sandbox.configure(kafka={"max_records_per_batch": 1000})
    bad = [Record(n % 2, key, value, 1_700_000_000_000 + n, HEADERS if n % 2 else ())
           for n, (key, value, _) in enumerate(HOSTILE.values())]  # fmt: skip
    fine = [Record(0, b"\xff", good(1), None, HEADERS), Record(1, None, b'{"name": "' + b"y" * 5_000_000 + b'"}')]
    placed = sandbox.produce([*bad, *fine])
    sandbox.run("r")

    sandbox.assert_exact()
    assert sandbox.account("r") == dict(planned=12, written=2, filtered=0, quarantined=len(HOSTILE), absent=0, lost=0)
    assert sandbox.sink() == Counter(placed[len(bad) :])
    on_broker = {(r.topic, r.partition, r.offset): r for r in consume(sandbox.broker, sandbox.topic)}
    rules = dict(zip(placed, (rule for *_, rule in HOSTILE.values()), strict=False))
    for row in sandbox.rows("table_quarantine").to_pylist():
        at = row["_topic"], row["_partition"], row["_offset"]
        record = on_broker[at]
        assert (row["key"], row["value"]) == (record.key, record.value)
        headers = [(h["key"], h["value"]) for h in row["headers"] or []]
        assert headers == [(k, bytes(v)) for k, v in record.headers]
        assert int(row["_timestamp"].timestamp() * 1000) == record.timestamp
        assert row["_run"] == "r"
        assert [{k: v for k, v in error.items() if k != "detail"} for error in row["_errors"]] == [
            {"rule": rules[at], "severity": "critical", "column": "id" if rules[at] == "type" else None}
        ]


@pytest.mark.long
@pytest.mark.parametrize("recovery", ["replay", pytest.param("wal", marks=pytest.mark.long)])
def test_tombstones_are_refused_or_rows_and_a_redrive_writes_those_that_were_refused(
    sandbox: Sandbox, recovery: str
) -> None:
    def decoding(**keys: str) -> None:
        sandbox.configure(recovery=recovery, decode={"json": {"schema": "id BIGINT, name STRING", "key": "of", **keys}})

    def table() -> Counter[tuple[str, int | None]]:
        rows = sandbox.rows().to_pylist()
        return Counter((row["of"], row["id"]) for row in rows)

    decoding()
    sandbox.produce([Record(0, b"a", good(1)), Record(0, b"a", None), Record(1, b"b", good(2))])
    sandbox.run("refused")
    assert sandbox.account("refused") == dict(planned=3, written=2, filtered=0, quarantined=1, absent=0, lost=0)

    decoding(tombstone="row")
    sandbox.produce([Record(1, b"b", None), Record(1, b"b", good(3)), Record(0, b"c", b"")])
    sandbox.run("rows")
    assert sandbox.account("rows") == dict(planned=3, written=2, filtered=0, quarantined=1, absent=0, lost=0)
    assert table() == Counter([("a", 1), ("b", 2), ("b", None), ("b", 3)])

    driven = sandbox.cli("redrive", str(sandbox.file), "--quarantined")
    assert driven.returncode == 0, driven.stdout + driven.stderr
    assert table() == Counter([("a", 1), ("a", None), ("b", 2), ("b", None), ("b", 3)])
    sandbox.assert_balanced()


def test_a_broken_promise_stops_the_batch_before_anything_is_visible(sandbox: Sandbox) -> None:
    sandbox.feed(9, bad_every=3)
    for sql, told in (
        ("SELECT * FROM source WHERE id % 4 <> 1", "promises one row per record"),
        ("SELECT * FROM source UNION ALL SELECT * FROM source", "rows of"),
        ("SELECT s.* FROM source s JOIN (VALUES (1), (1)) AS twice(one) ON one < 2", "rows of"),
    ):
        sandbox.configure(transform={"sql": sql})
        refused = sandbox.run("r", expect=10)
        assert "the promise about rows is broken" in refused.message
        assert told in refused.message
        assert not sandbox.sink()
        assert not sandbox.quarantine()
        assert sandbox.account("r")["planned"] == 0

    sandbox.configure(transform={"sql": "SELECT * FROM source WHERE id % 4 <> 1"}, rows="filter")
    sandbox.run("r")
    # of 0..8 are bad: 0, 3, 6; dropped: 1, 5
    assert sandbox.account("r") == dict(planned=9, written=4, filtered=2, quarantined=3, absent=0, lost=0)
    assert Counter(sandbox.rows().column("id").to_pylist()) == Counter([2, 4, 7, 8])
    sandbox.assert_balanced()
    assert sandbox.cli("status", sandbox.name).returncode == 0


def test_many_rows_of_a_record_count_as_one_record_written(sandbox: Sandbox) -> None:
    sandbox.configure(
        decode={"json": {"schema": "id BIGINT, parts ARRAY<STRING>"}},
        transform={"sql": "SELECT * EXCEPT (parts), explode(parts) AS part FROM source"},
        rows="many",
    )
    parts = [["a", "b"], [], ["c"], ["d", "d", "d"], None]
    placed = sandbox.produce(
        [(n % 2, None, json.dumps({"id": n, "parts": p}).encode()) for n, p in enumerate(parts)] + [(0, None, b"?")]
    )
    sandbox.run("r")
    assert sandbox.account("r") == dict(planned=6, written=3, filtered=2, quarantined=1, absent=0, lost=0)
    assert sandbox.sink() == Counter({placed[0]: 2, placed[2]: 1, placed[3]: 3})
    assert sandbox.quarantine() == Counter(placed[5:])
    sandbox.assert_balanced()


def test_a_transform_that_sorts_or_stops_early_is_accounted_for_like_any_other(sandbox: Sandbox) -> None:
    """Spark reads a batch twice to sort it, and not to its end for a limit."""
    sandbox.configure(kafka={"max_records_per_batch": 100}, transform={"sql": "SELECT * FROM source ORDER BY name"})
    sandbox.feed(12, bad_every=4)
    sandbox.run("sorted")
    assert sandbox.account("sorted") == dict(planned=12, written=9, filtered=0, quarantined=3, absent=0, lost=0)

    sandbox.configure(
        kafka={"max_records_per_batch": 100}, transform={"sql": "SELECT * FROM source LIMIT 2"}, rows="filter"
    )
    sandbox.feed(12, bad_every=4)
    sandbox.run("cut")
    assert sandbox.account("cut") == dict(planned=12, written=2, filtered=7, quarantined=3, absent=0, lost=0)
    sandbox.assert_balanced()


@pytest.mark.long
def test_an_aggregate_accounts_for_the_records_that_went_in(sandbox: Sandbox) -> None:
    sandbox.configure(
        kafka={"max_records_per_batch": 100},
        transform={"sql": "SELECT id % 2 AS parity, count(*) AS n FROM source GROUP BY 1"},
        rows="aggregate",
        spark={"conf": {"spark.ui.enabled": True}},
    )
    sandbox.feed(9, bad_every=3)
    done = sandbox.cli("run", str(sandbox.file), "--json", "--no-validate", "--run", "r")
    assert done.returncode == 0, done.stderr[-4000:]
    assert "sluice: Spark's web UI: http://" in done.stderr
    account = json.loads(done.stdout.splitlines()[-1])
    assert account.keys() >= {"run", "recovery", "planned", "written", "verdict", "seconds"}
    assert (account["planned"], account["written"], account["quarantined"]) == (9, 6, 3)
    rows = sandbox.rows().to_pylist()
    assert Counter({(r["parity"], r["n"], r["_run"]) for r in rows}) == Counter([(0, 3, "r"), (1, 3, "r")])
    sandbox.assert_balanced()
