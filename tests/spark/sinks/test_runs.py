"""Whole bounded runs into each sink: its rows are those that a Delta table gets, and its verdict is about them."""

from __future__ import annotations

import json
from copy import copy
from typing import Any

import pytest
from tests.chaos.boxed import BOXES, Box, made

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

LONG = pytest.mark.long
DAY = 86_400_000
FIRST = 1_772_323_200_000  # 2026-03-01
TYPES = "i INT, l BIGINT, t TINYINT, h SMALLINT, s STRING, b BOOLEAN, d DOUBLE, c DECIMAL(12,2), ts TIMESTAMP, dt DATE"
NESTED = "o STRUCT<x: INT, y: STRING, at: TIMESTAMP>, m MAP<STRING, BIGINT>"
ARROW_LACKS = "f FLOAT, w DECIMAL(38,10), ntz TIMESTAMP_NTZ"
RECORDS: list[dict[str, Any]] = [
    {
        "i": -(2**31), "l": 2**63 - 1, "t": -128, "h": 32767, "s": "é😀 \\ ' \" \t\n", "b": True, "d": 1e300,
        "c": 12.34, "ts": "2026-01-31T12:00:00.123456Z", "dt": "2026-01-31", "a": ["x", None, "", "{,}"],
        "n": [1, None], "o": {"x": 1, "y": "z", "at": "2026-01-31T12:00:00Z"}, "m": {"k": 1}, "f": 1.5,
        "w": 1234567890.0123456789, "ntz": "2026-01-31T12:00:00.5",
    },
    {"i": 2, "s": "", "a": [], "d": 0.1, "o": {}, "m": {}},
    {"i": 3},
]  # fmt: skip
COLUMNS = {
    "files": f"{TYPES}, a ARRAY<STRING>, n ARRAY<BIGINT>, {NESTED}",
    "iceberg": f"{TYPES}, a ARRAY<STRING>, {NESTED}",
    "postgres": f"{TYPES}, a ARRAY<STRING>, n ARRAY<BIGINT>",
}
SUITE = {"name": "s", "expectations": [
    {"type": "expect_column_values_to_be_between", "kwargs": {"column": "i", "max_value": 100}},
    {"type": "expect_column_values_to_be_unique", "kwargs": {"column": "i"}, "meta": {"scope": "table"}},
]}  # fmt: skip


def encoded(record: dict[str, Any]) -> bytes:
    return json.dumps(record).encode()


def verdicts(box: Box, *runs: str) -> list[Any]:
    return [run.verdict for name in runs if (run := box.ledger.runs.find(box.name, name)) is not None]


@pytest.mark.parametrize("engine", ["auto", pytest.param("spark", marks=LONG)])
@pytest.mark.parametrize("name", COLUMNS)
def test_sink_gets_the_rows_of_delta_and_is_judged(request: pytest.FixtureRequest, name: str, engine: str) -> None:
    columns = COLUMNS[name] + (f", {ARROW_LACKS}" if engine == "spark" and name == "postgres" else "")
    keys: dict[str, Any] = {
        "engine": engine, "decode": {"json": {"schema": columns}}, "quality": {"suite": "suite.json"},
    }  # fmt: skip
    box = made(BOXES[name], request)
    (box.home / "suite.json").write_text(json.dumps(SUITE))
    box.configure(kafka={"max_records_per_batch": 100}, **keys)
    box.produce([(0, b"k", encoded(record), FIRST + n * DAY) for n, record in enumerate(RECORDS)])
    log = box.run("live", validate=True).stderr
    assert ("Spark path" in log) == (engine == "spark"), log
    beside = copy(box)
    beside.name += "d"
    beside.configure(**keys, sink={"delta": {"path": "beside"}})
    beside.run("live")
    table = beside.rows("beside")
    theirs, ours = (sorted(rows, key=lambda row: row["_offset"]) for rows in (table.to_pylist(), box.rows_of_sink()))
    assert [row | {"_run": ""} for row in ours] == [row | {"_run": ""} for row in theirs]
    assert [row["s"] for row in ours] == [RECORDS[0]["s"], "", None]
    box.run("again", interval=("2026-03-02", "2026-03-03"), validate=True)
    box.produce([(0, b"k", encoded({"i": 101}))])
    box.run("bad", validate=True, expect=None)
    assert verdicts(box, "live", "again", "bad") == ["passed", "passed", "failed"]
    box.assert_balanced()


@pytest.mark.parametrize("name", ["kafka", "foreach"])
def test_sink_that_is_not_read_back_is_judged_by_its_staged_rows(request: pytest.FixtureRequest, name: str) -> None:
    box: Any = made(BOXES[name], request)
    keep = box.into(keep="0s") if name == "kafka" else {"foreach": {"python": "collector:Lines", "keep": "0s"}}
    (box.home / "suite.json").write_text(json.dumps({**SUITE, "expectations": SUITE["expectations"][:1]}))
    keys = {"decode": {"json": {"schema": "id BIGINT, name STRING, i INT"}}, "quality": {"suite": "suite.json"}}
    box.configure(**keys)
    for run, number in (("good", 1), ("bad", 101)):
        box.produce([(0, b"k", encoded({"id": number, "name": "x", "i": number}))])
        box.run(run, validate=True, expect=None)
    assert verdicts(box, "good", "bad") == ["passed", "failed"]
    staged = box.home / "staged"
    assert len(list(staged.rglob("*.parquet"))) == 2
    box.configure(**keys, sink=keep)
    box.produce([(0, b"k", encoded({"id": 3, "name": "x", "i": 3}))])
    box.run("last", validate=True)
    assert list(staged.rglob("*.parquet")) == [], "what is out of its time goes"
    said = box.run("interval", interval=("2026-03-02", "2026-03-03"), expect=10).message
    assert f"sink.{name} cannot replace rows" in said
    (box.home / "suite.json").write_text(json.dumps(SUITE))
    box.produce([(0, b"k", encoded({"id": 4, "name": "x", "i": 4}))])
    assert "meta.scope" in box.run("whole", validate=True, expect=10).message


def test_iceberg_needs_no_offsets_in_a_run_of_an_aggregate(request: pytest.FixtureRequest) -> None:
    box: Any = made(BOXES["iceberg"], request)
    sql = "SELECT count(*) AS n, sum(id) AS total FROM source"
    box.configure(rows="aggregate", transform={"sql": sql}, kafka={"max_records_per_batch": 100})
    box.feed(5)
    box.run("r")
    assert [(row["n"], row["total"]) for row in box.orders.scan().to_arrow().to_pylist()] == [(5, 10)]


@LONG
def test_postgres_suite_and_rules_judge_rows_and_no_tombstones(request: pytest.FixtureRequest) -> None:
    box: Any = made(BOXES["postgres"], request)
    named = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "name"}}
    (box.home / "suite.json").write_text(json.dumps({"name": "s", "expectations": [named]}))
    box.configure(
        sink={"postgres": {"table": "orders", "mode": "upsert", "key": ["id"], "sequence": "_offset"}},
        decode={"json": {"schema": "name STRING, n INT", "key": "id", "tombstone": "delete"}},
        rules=[{"name": "numbered", "not_null": {"columns": ["n"]}}],
        quality={"suite": "suite.json", "split": "critical", "when": "before_commit", "max_quarantined": "100%"},
    )
    full = b'{"name": "x", "n": 1}'
    one = [(b"a", full), (b"a", None), (b"b", full), (b"c", b'{"n": 1}')]
    for run, sent in (("one", one), ("two", [(b"b", None)])):
        box.produce([(0, key, value) for key, value in sent])
        box.run(run)
    assert box.orders_of("id") == []
    assert [box.account(run)["quarantined"] for run in ("one", "two")] == [1, 0]
    box.assert_balanced()


@LONG
def test_postgres_columns_of_a_user_are_read_back_whatever_their_type(request: pytest.FixtureRequest) -> None:
    box: Any = made(BOXES["postgres"], request)
    box.change(
        "CREATE TABLE public.orders (id numeric, name text, price numeric(40,5), a inet DEFAULT '1.2.3.4', b uuid[], "
        "c numeric(2,4), d interval DEFAULT '1 day', e numeric[] DEFAULT '{NaN}', f int4range[], _topic text, "
        "_partition int, _offset bigint, _timestamp timestamptz, _run text)"
    )
    suite = [{"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "price"}},
             {"type": "expect_column_values_to_be_between", "kwargs": {"column": "price", "max_value": 1}},
             {"type": "expect_column_values_to_be_unique", "kwargs": {"column": "id"}}]  # fmt: skip
    (box.home / "suite.json").write_text(json.dumps({"name": "s", "expectations": suite}))
    decode = {"json": {"schema": "id DECIMAL(38,0), name STRING, price DECIMAL(5,5)"}}
    box.configure(decode=decode, quality={"suite": "suite.json"})
    box.produce([(0, b"k", b'{"id": %d, "price": 0.12345}' % (10**37 + n)) for n in range(3)])
    box.run("r", validate=True)
    assert verdicts(box, "r") == ["passed"]
    box.configure(decode=decode, recovery="wal", quality={"suite": "suite.json"})  # a commit without rows between
    box.feed(2)
    box.run("w")
    box.assert_exact()


@LONG
def test_postgres_run_notices_a_redrive_or_an_interval_that_was_restored_away(request: pytest.FixtureRequest) -> None:
    box: Any = made(BOXES["postgres"], request)
    box.configure(quality={"max_quarantined": "100%"}, rules=[{"name": "small", "sql": {"passes": "id < 100"}}])
    box.produce([(0, b"k", encoded({"id": n, "name": "x"}), FIRST + n * 1000) for n in (1, 2000, 3)])
    box.run("live")
    box.configure(quality={"max_quarantined": "100%"})
    for number, (run, options) in enumerate(
        [("moved", {"redriven": "quarantined"}), ("day", {"interval": ("2026-03-01", "2026-03-02")})]
    ):
        box.change("CREATE TABLE public.kept AS TABLE public.orders", "CREATE TABLE log AS TABLE sluice_commits")
        box.run(run, **options)
        box.change("CREATE TABLE public.after AS TABLE orders", "CREATE TABLE later AS TABLE sluice_commits")
        for there in ("kept", "log"), ("after", "later"):
            box.change(
                "TRUNCATE public.orders, public.sluice_commits", f"INSERT INTO public.orders TABLE public.{there[0]}",
                f"INSERT INTO public.sluice_commits TABLE public.{there[1]}",
            )  # fmt: skip
            if there[0] == "kept":
                box.run(f"next {number}", expect=41)
                box.run(f"once more {number}", expect=41, **options)
        box.change("DROP TABLE public.kept, public.log, public.after, public.later")
    box.run("last")
    box.assert_balanced()
