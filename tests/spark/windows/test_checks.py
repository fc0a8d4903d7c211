"""Joins with tables in a transform before state: each record stays by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.fixtures.specs import GOOD, write

from sluice.errors import ConfigError
from sluice.pipeline import load
from sluice_spark.decoders.base import decode, source_columns
from sluice_spark.transforms import sample
from sluice_spark.windows.checks import refuse_across

pytestmark = pytest.mark.spark
TABLES = "tables: {carriers: {delta: {path: carriers}}, empty: {delta: {path: empty}}}\n"


@pytest.fixture(scope="module", autouse=True)
def views(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    path = str(tmp_path_factory.mktemp("tables") / "carriers")
    spark.createDataFrame([(1, "a")], "id LONG, carrier STRING").write.parquet(path)
    spark.read.parquet(path).createOrReplaceTempView("carriers")
    spark.createDataFrame([], "id LONG, x STRING").createOrReplaceTempView("empty")
    yield
    for name in ("carriers", "empty", "source"):
        spark.catalog.dropTempView(name)


def refused(spark: SparkSession, tmp_path: Path, sql: str, tables: str = TABLES) -> None:
    pipeline = load(write(tmp_path, GOOD + tables + f'transform: {{sql: "{sql}"}}\n'))
    rows = source_columns(decode(spark.createDataFrame([], sample._RECORDS), pipeline.decode))
    rows.createOrReplaceTempView("source")
    refuse_across(pipeline, spark.sql(sql), "a window")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT s.*, c.carrier FROM source s LEFT JOIN carriers c ON c.id = s.id",
        "SELECT s.*, c.carrier FROM source s JOIN carriers c ON c.id = s.id JOIN empty e ON e.id = c.id",
        "SELECT s.* FROM carriers c RIGHT JOIN source s ON c.id = s.id",
        "SELECT s.* FROM source s LEFT ANTI JOIN empty e ON e.id = s.id",
        "SELECT s.*, v FROM source s JOIN (VALUES (1, 'a')) AS t(id, v) ON t.id = s.id JOIN carriers c ON c.id = s.id",
        "SELECT s.* FROM source s WHERE EXISTS (SELECT 1 FROM carriers c WHERE c.id = s.id)",
    ],
)
def test_join_before_state_may_leave_each_record_by_itself(spark: SparkSession, tmp_path: Path, sql: str) -> None:
    refused(spark, tmp_path, sql)


@pytest.mark.parametrize(
    ("sql", "node"),
    [
        ("SELECT s.* FROM source s JOIN source o ON o.id = s.id JOIN carriers c ON c.id = s.id", "Join"),
        (
            "SELECT s.* FROM source s JOIN carriers c ON c.id = s.id WHERE s.id IN (SELECT id FROM source)",
            "source a second time",
        ),
        ("SELECT s.* FROM carriers c LEFT JOIN source s ON c.id = s.id", "Join LeftOuter"),
        ("SELECT s.* FROM source s RIGHT JOIN carriers c ON c.id = s.id", "Join RightOuter"),
        ("SELECT s.* FROM source s FULL JOIN carriers c ON c.id = s.id", "Join FullOuter"),
        ("SELECT s.* FROM source s JOIN (SELECT * FROM carriers LIMIT 1) c ON c.id = s.id", "GlobalLimit"),
        ("SELECT s.* FROM source s JOIN carriers TABLESAMPLE (50 PERCENT) c ON c.id = s.id", "Sample"),
        ("SELECT s.*, m FROM source s, LATERAL (SELECT max(carrier) m FROM carriers c WHERE c.id = s.id)", "Lateral"),
        ("SELECT DISTINCT s.*, c.carrier FROM source s JOIN carriers c ON c.id = s.id", "Distinct"),
        ("SELECT s.*, count(*) OVER (PARTITION BY c.carrier) FROM source s JOIN carriers c ON c.id = s.id", "Window"),
        ("SELECT s.*, c.carrier FROM source s JOIN carriers c ON c.id = s.id LIMIT 5", "GlobalLimit"),
    ],
)
def test_join_before_state_may_not_look_at_several_records(
    spark: SparkSession, tmp_path: Path, sql: str, node: str
) -> None:
    with pytest.raises(ConfigError, match=node):
        refused(spark, tmp_path, sql)


def test_join_before_state_refuses_with_and_relations_that_the_file_does_not_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    sql = "WITH s AS (SELECT * FROM source) SELECT a.* FROM s a JOIN s b ON a.id = b.id, carriers"
    with pytest.raises(ConfigError, match="WITH"):
        refused(spark, tmp_path, sql)
    spark.createDataFrame([(1, "a")], "id LONG, x STRING").write.parquet(str(tmp_path / "other"))
    sql = f"SELECT s.* FROM source s JOIN carriers c USING (id) JOIN parquet.`{tmp_path / 'other'}` o USING (id)"
    with pytest.raises(ConfigError, match="Relation"):
        refused(spark, tmp_path, sql)


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("SELECT * FROM source WHERE id IN (SELECT id FROM source)", "'source a second time'"),
        (
            "WITH s AS (SELECT * FROM source) SELECT * FROM s WHERE EXISTS (SELECT 1 FROM s o WHERE o.id = s.id)",
            "'source a second time'",
        ),
        ("SELECT * FROM source WHERE id IN (SELECT id FROM carriers)", "Relation"),
        ("SELECT s.* FROM source s JOIN carriers c ON c.id = s.id", "'Join'"),
        ("SELECT * FROM source", None),
        ("SELECT * FROM source WHERE id IN (1, 2) AND id IN (SELECT * FROM VALUES (1))", None),
        ("WITH s AS (SELECT * FROM source) SELECT *, id + 1 AS more FROM s", None),
        ("SELECT s.*, x FROM source s, LATERAL (SELECT s.id + 1 AS x)", None),
        ("SELECT *, explode(array(1)) FROM source", None),
    ],
)
def test_transform_before_state_has_only_the_records_without_tables(
    spark: SparkSession, tmp_path: Path, sql: str, named: str | None
) -> None:
    if named is None:
        refused(spark, tmp_path, sql, tables="")
        return
    with pytest.raises(ConfigError, match=named):
        refused(spark, tmp_path, sql, tables="")
