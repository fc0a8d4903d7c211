"""A table of PostgreSQL as a source: each row lands once, whatever is killed, in whatever order it was committed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession
from tests.fixtures.place import KeptPlace, account, error
from tests.fixtures.postgres import new_database

from sluice.connections import variable_of

pytestmark = [pytest.mark.chaos, pytest.mark.spark]

SCHEMA = "id BIGINT, good BIGINT, amount DECIMAL(20,4), at TIMESTAMP"


@dataclass
class Shop(KeptPlace):
    """A pipeline that reads the table ``orders``."""

    url: str

    def __post_init__(self) -> None:
        self.engine = sa.create_engine(self.url, isolation_level="AUTOCOMMIT")
        self.sql(
            "CREATE TABLE orders (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, good JSONB, "
            "amount NUMERIC(20,4), at TIMESTAMPTZ DEFAULT now())"
        )
        super().__post_init__()

    def spec(self) -> dict[str, Any]:
        return {
            "source": {"jdbc": {"connection": "shop_db", "table": "orders", "key": "id", "max_records_per_batch": 7}},
            "decode": {"json": {"schema": SCHEMA, "key": "row"}},
            "sink": {"delta": {"path": "out"}}, "quality": {"max_quarantined": "100%"},
        }  # fmt: skip

    def env(self) -> dict[str, str]:
        url = sa.make_url(self.url)
        parts = {"host": url.host, "port": url.port, "login": url.username, "schema": url.database}
        return {variable_of("shop_db"): json.dumps({"conn_type": "postgres", "password": "secret", **parts})}

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        with self.engine.connect() as connection:
            for statement in statements:
                found = connection.exec_driver_sql(statement)
            return [tuple(row) for row in found] if found.returns_rows else []

    @contextmanager
    def late(self) -> Iterator[None]:
        """A transaction that takes a number first, and commits at the end of the block."""
        engine = sa.create_engine(self.url)
        with engine.begin() as connection:
            connection.exec_driver_sql(INSERT.format(1, 1))
            yield
        engine.dispose()

    def feed(self, count: int) -> None:
        """Add rows; each fifth is refused by the decoder."""
        self.sql(INSERT.format(1, count))

    def assert_exact(self) -> None:
        """Check that each row is in the sink or in the quarantine, once, with its values."""
        good = Counter(self.sql("SELECT id, good::bigint, amount, at FROM orders WHERE good <> '\"no\"'"))
        rows = self.table("out", "id", "good", "amount", "at")
        assert Counter((r["id"], r["good"], r["amount"], r["at"]) for r in rows) == good
        bad = Counter(key for (key,) in self.sql("SELECT id FROM orders WHERE good = '\"no\"'"))
        assert Counter(json.loads(r["key"])["id"] for r in self.table("out_quarantine", "key")) == bad
        assert set((self.offsets("out") + self.offsets("out_quarantine")).values()) <= {1}
        self.audit()


INSERT = (
    "INSERT INTO orders (good, amount) SELECT CASE WHEN n %% 5 = 0 THEN '\"no\"'::jsonb ELSE to_jsonb(n) END, "
    "12345678901.2345 * n FROM generate_series({}, {}) AS n"
)


@pytest.fixture
def shop(postgres: str, spark: SparkSession, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path, "shop", new_database(postgres))
    shop.spark = spark
    yield shop
    shop.engine.dispose()


FAST = ("rows-landed", "position-committed")
POINTS = {
    "replay": ("rows-landed", "position-committed", "run-planned", "rows-staged", "sink-committed", "batch-recorded"),
    "wal": ("rows-landed", "position-committed", "segments-staged", "sealed", "batch-recorded"),
    "hot": ("position-committed", "rows-staged", "batch-recorded"),
    "ignore_range": ("rows-landed", "quarantine-staged", "quarantine-committed"),
}


@pytest.mark.parametrize(
    ("strategy", "engine", "points"),
    [
        pytest.param("replay", "auto", FAST, id="fast"),
        *(
            pytest.param(strategy, engine, points, marks=pytest.mark.long, id=f"{strategy}-{engine}")
            for strategy, points in POINTS.items()
            for engine in ("auto", "spark")
        ),
    ],
)
def test_each_row_lands_once_when_drivers_are_killed(
    shop: Shop, strategy: str, engine: str, points: tuple[str, ...]
) -> None:
    shop.configure(recovery=strategy, engine=engine)
    for number, point in enumerate(points):
        with shop.late():  # its number is smaller than those that the killed run sees
            shop.feed(6)
            shop.killed(f"killed {number}", point)
    done = account(shop.run("last"))
    assert done["lost"] == done["absent"] == 0
    shop.assert_exact()


@pytest.mark.long
def test_rows_that_change_or_go_after_they_were_landed_are_in_the_sink_as_they_were(shop: Shop) -> None:
    shop.feed(4)
    shop.killed("dies", "run-planned")
    shop.sql("DELETE FROM orders WHERE id = 1", "UPDATE orders SET good = '99' WHERE id = 2")
    done = account(shop.run("next"))
    assert done["written"] == 4
    assert sorted((r["id"], r["good"]) for r in shop.table("out", "id", "good")) == [(n, n) for n in (1, 2, 3, 4)]
    assert account(shop.run("nothing new"))["planned"] == 0
    shop.audit()


@pytest.mark.long
def test_an_interval_of_the_keys_time_is_read_again(shop: Shop) -> None:
    jdbc = shop.spec()["source"]["jdbc"] | {"key": "at", "lag": "0s"}
    shop.configure(source={"jdbc": jdbc})
    shop.sql(
        "INSERT INTO orders (good, amount, at) SELECT to_jsonb(n), n, "
        "timestamptz '2026-03-01Z' + n * interval '8 hours' FROM generate_series(0, 8) AS n"
    )
    assert account(shop.run("live"))["written"] == 9
    again = account(shop.run("again", "--start", "2026-03-02", "--end", datetime(2026, 3, 3, tzinfo=UTC).isoformat()))
    assert again["written"] == 3
    shop.assert_exact()


@pytest.mark.long
def test_what_was_refused_is_redriven_from_the_landed_row(shop: Shop) -> None:
    shop.feed(5)
    assert account(shop.run("live"))["quarantined"] == 1
    shop.configure(
        decode={"json": {"schema": SCHEMA.replace("good BIGINT", "good STRING"), "key": "row"}},
        transform={"sql": "SELECT * EXCEPT (good), try_cast(good AS BIGINT) AS good FROM source"},
    )
    redriven = shop.sluice("redrive", str(shop.file), "--quarantined")
    assert redriven.returncode == 0, redriven.stderr
    assert sorted(r["id"] for r in shop.table("out", "id")) == [1, 2, 3, 4, 5]
    shop.audit()


def test_a_table_that_is_not_there_is_named_without_the_password(shop: Shop) -> None:
    shop.sql("DROP TABLE orders")
    told = error(shop.run("none"), 10)
    assert 'relation "public.orders" does not exist' in told
    assert "secret" not in told
