"""Tombstones that delete rows of a PostgreSQL table: which of a key's records wins, and what older ones do later."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from tests.fixtures.database import PostgresSandbox

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

FORGOTTEN = 'public."sluice_deleted_orders"'


def deleting(key: str = "id", **more: Any) -> dict[str, Any]:
    """A pipeline that follows a compacted topic."""
    return {
        "sink": {"postgres": {"table": "orders", "mode": "upsert", "key": [key]}},
        "decode": {"json": {"schema": "name STRING NOT NULL", "key": key, "tombstone": "delete"}},
    } | more


def record(name: str | None) -> bytes | None:
    return None if name is None else json.dumps({"name": name}).encode()


def held(sandbox: PostgresSandbox) -> dict[str, str]:
    return {row["id"]: row["name"] for row in sandbox.orders()}


def test_postgres_follows_a_compacted_topic(into_postgres: PostgresSandbox) -> None:
    sandbox = into_postgres
    sandbox.configure(
        **deleting(rules=[{"name": "named", "not_null": {"columns": ["name", "id"]}}]),
        kafka={"max_records_per_batch": 4}, quality={"max_quarantined": "100%"},
    )  # fmt: skip
    wanted: dict[str, str] = {}
    chance = random.Random(13)
    for part in range(2):  # in one batch and across batches and runs
        sent = [(chance.choice("abcdef"), chance.choice([None, f"v{part}-{n}"])) for n in range(12)]
        for key, name in sent:
            wanted.pop(key, None)
            wanted |= {} if name is None else {key: name}
        sandbox.produce([(ord(key) % 2, key.encode(), record(name), 9_000 - n) for n, (key, name) in enumerate(sent)])
        sandbox.run(f"r{part}")
        assert held(sandbox) == wanted
    assert "_deleted" not in sandbox.orders()[0]
    assert sandbox.total("written") == 24
    sandbox.produce([(0, b"\xff", None), *((0, key.encode(), None) for key in "abcdef")])
    sandbox.run("all gone")  # the verdict of a run that only deletes is about no rows
    assert sandbox.orders() == []
    account = sandbox.account("all gone")
    assert (account["written"], account["quarantined"]) == (6, 1)
    sandbox.assert_balanced()


@pytest.mark.long
def test_postgres_brings_no_deleted_row_back_by_an_older_record(into_postgres: PostgresSandbox) -> None:
    sandbox = into_postgres
    shape = {"recovery": "ignore_batch", "kafka": {"max_records_per_batch": 1}}
    sql = "SELECT {} AS ok, * FROM source"
    sandbox.configure(**deleting(transform={"sql": sql.format("assert_true(NOT name <=> 'bad') IS NULL")}), **shape)
    for key, name in (("a", "bad"), ("a", None), ("b", "bad"), ("b", None), ("b", "new"), ("c", "bad")):
        sandbox.produce([(0, key.encode(), record(name))])
    sandbox.run("live", expect=None)
    assert held(sandbox) == {"b": "new"}
    assert [row["id"] for row in sandbox.query(f"SELECT id FROM {FORGOTTEN}")] == ["a"]
    sandbox.configure(**deleting(transform={"sql": sql.format("true")}), **shape)
    sandbox.run("back", redriven="lost")
    assert held(sandbox) == {"b": "new", "c": "bad"}
    sandbox.assert_balanced()


@pytest.mark.long
def test_postgres_orders_rows_and_tombstones_by_a_sequence(into_postgres: PostgresSandbox) -> None:
    sandbox = into_postgres
    keys = deleting(
        sink={"postgres": {"table": "orders", "mode": "upsert", "key": ["id"], "sequence": "at"}},
        decode={"json": {
            "schema": "name STRING, op STRING", "key": "id", "headers": {"h": "at"}, "tombstone": "delete",
        }},
        transform={"sql": "SELECT id, name, CAST(h AS INT) AS at, _deleted OR op <=> 'd' AS _deleted, _topic, "
                   "_partition, _offset, _timestamp FROM source"},
    )  # fmt: skip
    sandbox.configure(**keys)

    def send(*sent: tuple[str, int | None, bytes | None]) -> None:
        sandbox.produce(
            [
                (0, key.encode(), value, None, [] if at is None else [("at", str(at).encode())])
                for key, at, value in sent
            ]
        )

    send(("a", 5, record("a5")), ("a", 3, None), ("b", 7, None), ("b", 6, record("late")), ("c", 1, record("c1")))
    sandbox.run("one")
    assert held(sandbox) == {"a": "a5", "c": "c1"}
    send(("b", 6, record("late again")), ("a", 9, b'{"op": "d"}'), ("c", 2, None), ("c", 3, record("c3")))
    sandbox.run("two")
    assert held(sandbox) == {"c": "c3"}
    send(("a", 8, record("late")), ("b", 8, record("b8")))
    sandbox.run("three")
    assert held(sandbox) == {"c": "c3", "b": "b8"}
    send(("c", None, None))
    assert "has no value in the sequence column at" in sandbox.run("four", expect=30).message


@pytest.mark.long
def test_postgres_suite_judges_rows_and_no_tombstones(into_postgres: PostgresSandbox) -> None:
    sandbox = into_postgres
    suite = {"name": "s", "expectations": [
        {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "name"}, "severity": "critical"},
    ]}  # fmt: skip
    (sandbox.file.parent / "suite.json").write_text(json.dumps(suite))
    schema = {"json": {"schema": "name STRING", "key": "id", "tombstone": "delete"}}
    sandbox.configure(
        **deleting(decode=schema),
        quality={"suite": "suite.json", "split": "critical", "when": "before_commit", "max_quarantined": "100%"},
    )
    sandbox.produce([(0, b"a", record("x")), (0, b"a", None), (0, b"b", record("y")), (0, b"c", b"{}")])
    sandbox.run("one")
    sandbox.produce([(0, b"b", None)])
    sandbox.run("two")
    assert held(sandbox) == {}
    assert [sandbox.account(run)["quarantined"] for run in ("one", "two")] == [1, 0]


@pytest.mark.long
def test_postgres_trigger_that_keeps_a_row_is_no_silent_deletion(into_postgres: PostgresSandbox) -> None:
    sandbox = into_postgres
    sandbox.configure(**deleting())
    sandbox.produce([(0, b"a", record("x"))])
    sandbox.run("one")
    sandbox.change(
        "CREATE FUNCTION stay() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
        "CREATE TRIGGER stays BEFORE DELETE ON public.orders FOR EACH ROW EXECUTE FUNCTION stay()",
    )
    sandbox.produce([(0, b"a", None)])
    assert "did not take the newest rows of 1 keys" in sandbox.run("two", expect=30).message
    sandbox.change("DROP TRIGGER stays ON public.orders", f"ALTER TABLE {FORGOTTEN} RENAME COLUMN id TO x")
    assert "remembers deleted keys by (x, _timestamp, " in sandbox.run("two", expect=10).message
    sandbox.change(f"DROP TABLE {FORGOTTEN}")
    sandbox.run("two")
    assert held(sandbox) == {}
