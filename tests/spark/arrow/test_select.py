"""The subset of SQL computes on Arrow tables what Spark computes, and refuses what is outside of it."""

from __future__ import annotations

import math
import random
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from sluice_spark.arrow.columns import arrow_type
from sluice_spark.arrow.select import NotInSubsetError, parse

SOURCE = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("small", pa.int32()),
        pa.field("tiny", pa.int8()),
        pa.field("day", pa.date32()),
        pa.field("name", pa.string()),
        pa.field("flag", pa.bool_()),
        pa.field("amount", pa.float64()),
        pa.field("price", pa.decimal128(12, 2)),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("tags", pa.list_(pa.field("element", pa.string()))),
        pa.field("_offset", pa.int64()),
    ]
)

TESTS = [
    "small IS NULL", "name IS NOT NULL", "NOT (small IS NULL)", "tags IS NULL", "flag", "NOT flag", "small > 15",
    "15 < small", "small >= -3", "small <> 0", "id = 9223372036854775807", "name = 'x'", "name != ''", "name < 'y'",
    "name > name", "amount > 0", "amount <= 0.5", "amount = -0.0", "price > 0", "price = 12.3", "price <= -1.25",
    "small = 1 AND flag", "small = 1 OR flag", "flag OR NOT flag", "small BETWEEN 0 AND 20",
    "small NOT BETWEEN 0 AND 20", "small IN (1, 2, 15)", "small NOT IN (1, 2)", "name IN ('x', 'é')", "true",
    "flag = true", "flag <> false", "(small > 1)",
    "CASE WHEN small > 15 THEN flag WHEN flag THEN true ELSE false END", "COALESCE(flag, false)", "SMALL > 3",
    "price > price", "flag = (flag < flag)", "(name IS NULL) = flag", "NOT flag = flag",
    "day > DATE '2013-01-01'", "at >= TIMESTAMP '2013-01-01 00:00:01'", "day = CAST(at AS DATE)", "small - 1 > 15",
    "tiny * 2 = small", "hour(at) BETWEEN 1 AND 12", "length(name) > 1", "at > at", "day < to_date(at)",
    "amount * amount > amount", "amount = amount * 1", "amount <> amount", "amount >= 1000",
    "amount NOT BETWEEN 0 AND 1", "amount NOT IN (0.5, 1)", "amount * amount - amount * amount >= amount",
    "1 < amount", "1 >= amount", "amount != 0.25",
    "CASE WHEN amount * amount <= amount THEN flag END", "amount < amount * 2", r"name = 'it\'s'", "name = ''",
    "amount * 2 > 0.5", "NOT tiny + 1 = 2 OR flag", "small - 1 - 2 < 0", "-tiny > 1",
]  # fmt: skip
FILTERS = ["flag", "small > 15", "small IS NULL OR NOT flag", "true"]
VALUES = [
    "CASE WHEN small > 15 THEN 'late' WHEN small IS NULL THEN 'unknown' ELSE 'on time' END",
    "CASE WHEN flag THEN id END", "COALESCE(name, 'none')", "COALESCE(small, 0)", "COALESCE(name, name, 'x')",
    "CASE WHEN flag THEN 1 ELSE 0 END", "'x'", "CASE WHEN flag THEN at END", "COALESCE(price, price)",
    "CASE WHEN price > 5 THEN price END", "CASE WHEN flag THEN tags END",
    "CAST(at AS DATE)", "to_date(at)", "DATE(at)", "at::date", "to_date(day)", "date_trunc('HOUR', at)",
    "date_trunc('month', at)", "date_trunc('day', at)", "date_trunc('Year', at)", "date_trunc('minute', at)",
    "date_trunc('second', at)", "hour(at)", "minute(at)", "second(at)", "year(at)", "month(at)", "day(at)",
    "dayofmonth(at)", "year(day)", "month(day)", "day(day)", "year(to_date(at))", "CAST(small AS BIGINT)",
    "CAST(tiny AS SMALLINT)", "CAST(tiny AS DOUBLE)", "CAST(id AS DOUBLE)", "CAST(small AS STRING)",
    "CAST(id AS STRING)", "CAST(flag AS STRING)", "CAST(day AS STRING)", "CAST(name AS STRING)",
    "TRY_CAST(tiny AS INT)", "CAST(name AS VARCHAR(2))", "CAST(name AS CHAR(9))",
    "tiny + tiny", "tiny + _offset", "tiny + 1", "_offset - tiny * 3", "amount * small * 0.5",
    "amount + 1", "amount - amount", "amount * 1.5", "amount + small", "amount * id", "1 - tiny", "-tiny", "-amount",
    "-small + 1", "_offset + 3000000000", "tiny - -3", "length(name)", "trim(name)", "concat(name, '-', name)",
    "concat('a', 'b')", "concat(name)", "length(concat(name, CAST(tiny AS STRING)))", "DATE '2026-02-28'",
    "CASE WHEN at IS NULL THEN DATE '1999-12-31' ELSE to_date(at) END", "date_trunc('hour', at) = at",
]  # fmt: skip
OUTSIDE = [
    "SELECT id / 2 FROM source", "SELECT upper(name) FROM source", "SELECT price + 1 FROM source",
    "SELECT small + 1.5 FROM source",
    "SELECT small * 0.5 * amount FROM source", "SELECT 1 + 1 FROM source", "SELECT name + 1 FROM source",
    "SELECT id % 2 FROM source", "SELECT CAST(id AS INT) FROM source", "SELECT CAST(name AS INT) FROM source",
    "SELECT CAST(amount AS STRING) FROM source", "SELECT CAST(at AS STRING) FROM source",
    "SELECT CAST(name AS DATE) FROM source", "SELECT to_date(name) FROM source", "SELECT DATE '2026-2-1' FROM source",
    "SELECT CAST('x' AS DATE) FROM source", "SELECT DATE '1800-01-01' FROM source",
    "SELECT to_date(at, 'yyyy') FROM source", "SELECT name || 'x' FROM source",
    "SELECT CAST(small AS DECIMAL(10,2)) FROM source",
    "SELECT date_trunc('week', at) FROM source", "SELECT date_trunc(name, at) FROM source",
    "SELECT ltrim(name) FROM source", "SELECT trim('x' FROM name) FROM source", "SELECT concat(name, id) FROM source",
    "SELECT length(tags) FROM source", "SELECT hour(name) FROM source", "SELECT at + INTERVAL 1 DAY FROM source",
    "SELECT day + 1 FROM source", "SELECT -name FROM source", "SELECT CAST(day AS TIMESTAMP) FROM source",
    "SELECT TIMESTAMP '2026-01-01 00:00:00+01:00' FROM source", "SELECT CAST(tiny AS FLOAT) FROM source",
    "SELECT at > day AS x FROM source", "SELECT small + flag FROM source",
    "SELECT 9223372036854775808 + id FROM source",
    "SELECT count(*) FROM source",
    "SELECT DISTINCT id FROM source", "SELECT id FROM source LIMIT 5", "SELECT id FROM source ORDER BY id",
    "SELECT id FROM other", "SELECT s.id FROM source s", "SELECT * EXCEPT (id) FROM source",
    "SELECT id FROM source GROUP BY id", "SELECT id FROM source JOIN b ON true", "SELECT 1",
    "SELECT id FROM (SELECT * FROM source)", "WITH a AS (SELECT * FROM source) SELECT * FROM a", "SELECT id, FROM",
    "", "SELECT id FROM source UNION ALL SELECT id FROM source", "SELECT nothing FROM source",
    "SELECT id FROM source WHERE id", "SELECT id = name AS x FROM source", "SELECT id = small AS x FROM source",
    "SELECT small = 1.5 AS x FROM source", "SELECT small = 3000000000 AS x FROM source",
    "SELECT price = 0.125 AS x FROM source", "SELECT at > '2020-01-01' AS x FROM source",
    "SELECT COALESCE(id, 0) AS x FROM source", "SELECT small <=> 1 AS x FROM source",
    "SELECT small IN (SELECT 1) AS x FROM source", "SELECT name LIKE 'x%' AS x FROM source",
    "SELECT rand() AS x FROM source", "SELECT /*+ REPARTITION(2) */ id FROM source",
    "SELECT id FROM source TABLESAMPLE (50 PERCENT)", "SELECT id; SELECT id FROM source",
    "SELECT tags[0] AS x FROM source", "SELECT source.id FROM source",
    "SELECT id FROM source QUALIFY row_number() OVER (ORDER BY id) = 1", "SELECT 1.5 AS x FROM source",
    "SELECT CASE small WHEN 1 THEN 'a' END AS x FROM source",
    "SELECT id FROM source LATERAL VIEW explode(tags) t AS tag",
    "SELECT name = \"x\" COLLATE UNICODE AS x FROM source",
    "SELECT CASE WHEN flag THEN small ELSE id END AS x FROM source",
    "SELECT amount = 9007199254740993 AS x FROM source", "SELECT NULL AS x FROM source",
    "SELECT amount > 1e3 AS x FROM source", "SELECT ALL id FROM source HAVING id > 1",
    "SELECT id FROM source WINDOW w AS (ORDER BY id)", "SELECT flag = flag < flag AS x FROM source",
    "SELECT flag BETWEEN false AND true = flag AS x FROM source", "SELECT flag = name IS NULL AS x FROM source",
    "SELECT flag = name IN ('x') AS x FROM source", "SELECT id FROM source WHERE name = '${env:USER}'",
    "SELECT id FROM source WHERE flag -- \\\n AND false", "SELECT id FROM source WHERE name <> 'it''s'",
    'SELECT id FROM source WHERE name <> "a""b"', "SELECT 'a' 'b' AS x FROM source", "SELECT '''' AS x FROM source",
    "SELECT 'a' /* b */ \"c\" AS x FROM source", "SELECT r'a' 'b' AS x FROM source",
    "SELECT length('it''s') FROM source", "SELECT id FROM source WHERE flag {# AND false #}",
    "SELECT id FROM source WHERE flag /*+ AND false */",
]  # fmt: skip


def rows(count: int) -> pa.Table:
    """Return rows with many nulls and with values on both sides of the literals above."""
    chance = random.Random(7)
    pick = {
        "id": [0, 1, 2**63 - 1, -(2**63)],
        "tiny": [0, 1, 5, 8, -7],
        "day": [date(2013, 1, 1), date(1969, 12, 31), date(2012, 2, 29), date(9999, 12, 31)],
        "small": [0, 1, 2, -3, 15, 16, 2**31 - 1],
        "name": ["", "its", "it's", "x", "y", "é", "Z", "x ", " \t x", "😀 ", "\u00a0"],
        "flag": [True, False],
        "amount": [0.0, -0.0, 0.5, 0.25, -1.0, 1e300, math.nan, math.inf, -math.inf],
        "price": [Decimal("12.30"), Decimal("0.00"), Decimal("-1.25"), Decimal("9999999999.99")],
        "at": [
            datetime(2013, 1, 1, tzinfo=UTC),
            datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
            datetime(1901, 1, 1, 1, tzinfo=UTC),
            datetime(2024, 2, 29, 12, 34, 56, 789, tzinfo=UTC),
            datetime(9999, 12, 31, 23, tzinfo=UTC),
        ],
        "tags": [["a", None], []],
        "_offset": [1],
    }
    return pa.table(
        {f.name: pa.array([chance.choice([None, *pick[f.name]]) for _ in range(count)], f.type) for f in SOURCE}
    )


@pytest.mark.spark
def test_arrow_sql_computes_what_spark_computes(spark: SparkSession, tmp_path: Path) -> None:
    source = rows(300).append_column("n", pa.array(range(300), pa.int64()))
    pq.write_table(source, tmp_path / "source.parquet", store_schema=False)
    spark.read.parquet(str(tmp_path / "source.parquet")).createOrReplaceTempView("source")
    columns = ", ".join(f"{text} AS c{n}" for n, text in enumerate([*TESTS, *VALUES]))
    everything = f"SELECT n, {columns}, * FROM source"
    filtered = [f"SELECT n, Name, small AS other FROM source WHERE {text}" for text in FILTERS]
    for number, sql in enumerate([everything, *filtered]):
        select = parse(sql, source.schema)
        theirs = spark.sql(sql)
        assert [arrow_type(f.dataType) for f in theirs.schema.fields] == select.schema.types, sql
        file = tmp_path / f"{number}.parquet"
        made = select.apply(source)
        pq.write_table(made.rename_columns([f"a{n}" for n in range(made.num_columns)]), file, store_schema=False)
        ours = spark.read.parquet(str(file))
        theirs = theirs.toDF(*(f"b{n}" for n in range(made.num_columns)))
        assert ours.count() == theirs.count(), sql
        both = ours.join(theirs, F.col("a0") == F.col("b0"))
        wrong = [
            F.first(F.when(~F.col(f"a{n}").eqNullSafe(F.col(f"b{n}")), F.struct(f"a{n}", f"b{n}")), ignorenulls=True)
            for n in range(made.num_columns)
        ]
        found = zip(["n", *TESTS, *VALUES], both.agg(*wrong).first() or (), strict=False)
        assert [(text, row) for text, row in found if row is not None] == [], sql


def test_arrow_sql_refuses_what_is_outside_of_its_subset() -> None:
    for sql in OUTSIDE:
        with pytest.raises(NotInSubsetError):
            pytest.fail(f"{sql} was taken: {parse(sql, SOURCE)}")


@pytest.mark.parametrize("text", ["small + 1", "id * 2", "-id", "tiny * tiny * tiny", "id - 1"])
def test_arrow_sql_leaves_what_overflows_to_spark(text: str) -> None:
    values = {"small": 2**31 - 1, "id": -(2**63), "tiny": 127}
    made = [pa.array([values.get(field.name)], field.type) for field in SOURCE]
    select = parse(f"SELECT {text} AS x FROM source", SOURCE)
    with pytest.raises(pa.ArrowInvalid, match="overflow"):
        select.apply(pa.Table.from_arrays(made, schema=SOURCE))


@pytest.mark.parametrize(
    "text",
    [
        "year(at)", "month(at)", "hour(at)", "date_trunc('YEAR', at)", "to_date(at)", "day(day)", "year(day)",
        "CAST(day AS STRING)", "CAST(CAST(at AS DATE) AS STRING)",
    ],
)  # fmt: skip
@pytest.mark.parametrize(("last", "beyond"), [(2_932_896, 2_932_897), (0, 20_000_000), (-719_162, -719_163)])
def test_arrow_sql_leaves_years_of_other_than_four_digits_to_spark(text: str, last: int, beyond: int) -> None:
    select = parse(f"SELECT {text} AS x FROM source", SOURCE)

    def of(day: int) -> pa.Table:
        nulls = pa.Table.from_arrays([pa.nulls(2, field.type) for field in SOURCE], schema=SOURCE)
        days, times = pa.array([None, day], pa.int32()), pa.array([day * 86_400_000_000, None], pa.int64())
        made = {"day": days.cast(pa.date32()), "at": times.cast(pa.timestamp("us", "UTC"))}
        return pa.table({name: made.get(name, nulls.column(name)) for name in SOURCE.names})

    assert select.apply(of(last)).column("x").null_count == 1
    with pytest.raises(pa.ArrowInvalid, match="four digits"):
        select.apply(of(beyond))


@pytest.mark.parametrize(
    ("sql", "whole"),
    [
        ("*", True), ("{}", True), ("ID AS other, {rest}", True), ("id + 0 AS id, {rest}", False),
        ("small AS id, {rest}", False), ("*, id", False), ("{rest}, id", False), ("* FROM source WHERE flag --", False),
    ],
)  # fmt: skip
def test_arrow_sql_compares_the_columns_of_the_whole_source_and_not_their_names(sql: str, whole: bool) -> None:
    rest = ", ".join(SOURCE.names[1:])
    asked = sql.replace("{}", ", ".join(SOURCE.names)).replace("{rest}", rest)
    assert parse(f"SELECT {asked}" + ("" if "FROM" in asked else " FROM source"), SOURCE).whole == whole
