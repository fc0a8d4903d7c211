"""Joins with tables in a transform before state: each record stays by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
TABLES = "carriers", "empty"


@pytest.fixture(scope="module", autouse=True)
def views(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    path = str(tmp_path_factory.mktemp("tables") / "carriers")
    spark.createDataFrame([(1, "a")], "id LONG, carrier STRING").write.parquet(path)
    spark.read.parquet(path).createOrReplaceTempView("carriers")
    spark.createDataFrame([], "id LONG, x STRING").createOrReplaceTempView("empty")
    yield
    for name in ("carriers", "empty", "source"):
        spark.catalog.dropTempView(name)


WITH = "WITH s AS (SELECT * FROM source) "
JOINED = "SELECT s.* FROM source s JOIN carriers c ON c.id = s.id"
CASES: list[tuple[Sequence[str], str, str | None]] = [
    (TABLES, "SELECT s.*, c.carrier FROM source s LEFT JOIN carriers c ON c.id = s.id", None),
    (TABLES, f"{JOINED} JOIN empty e ON e.id = c.id", None),
    (TABLES, "SELECT s.* FROM carriers c RIGHT JOIN source s ON c.id = s.id", None),
    (TABLES, "SELECT s.* FROM source s LEFT ANTI JOIN empty e ON e.id = s.id", None),
    (TABLES, JOINED.replace("JOIN", "JOIN (VALUES (1, 'a')) AS t(id, v) ON t.id = s.id JOIN"), None),
    (TABLES, "SELECT s.* FROM source s WHERE EXISTS (SELECT 1 FROM carriers c WHERE c.id = s.id)", None),
    (TABLES, f"{JOINED} JOIN source o ON o.id = s.id", "Join"),
    (TABLES, f"{JOINED} WHERE s.id IN (SELECT id FROM source)", "source a second time"),
    (TABLES, "SELECT s.* FROM carriers c LEFT JOIN source s ON c.id = s.id", "Join LeftOuter"),
    (TABLES, "SELECT s.* FROM source s RIGHT JOIN carriers c ON c.id = s.id", "Join RightOuter"),
    (TABLES, "SELECT s.* FROM source s FULL JOIN carriers c ON c.id = s.id", "Join FullOuter"),
    (TABLES, "SELECT s.* FROM source s JOIN (SELECT * FROM carriers LIMIT 1) c ON c.id = s.id", "GlobalLimit"),
    (TABLES, "SELECT s.* FROM source s JOIN carriers TABLESAMPLE (50 PERCENT) c ON c.id = s.id", "Sample"),
    (
        TABLES,
        "SELECT s.*, m FROM source s, LATERAL (SELECT max(carrier) m FROM carriers c WHERE c.id = s.id)",
        "Lateral",
    ),
    (TABLES, JOINED.replace("SELECT", "SELECT DISTINCT"), "Distinct"),
    (TABLES, JOINED.replace("s.*", "s.*, count(*) OVER (PARTITION BY c.carrier)"), "Window"),
    (TABLES, f"{JOINED} LIMIT 5", "GlobalLimit"),
    (TABLES, f"{WITH} SELECT a.* FROM s a JOIN s b ON a.id = b.id, carriers", "WITH"),
    (TABLES, f"{JOINED} JOIN parquet.`{{other}}` o ON o.id = s.id", "Relation"),  # of no name in the file
    ((), "SELECT * FROM source WHERE id IN (SELECT id FROM source)", "'source a second time'"),
    ((), f"{WITH} SELECT * FROM s WHERE EXISTS (SELECT 1 FROM s o WHERE o.id = s.id)", "'source a second time'"),
    ((), "SELECT * FROM source WHERE id IN (SELECT id FROM carriers)", "Relation"),
    ((), JOINED, "'Join'"),
    ((), "SELECT * FROM source", None),
    ((), "SELECT * FROM source WHERE id IN (1, 2) AND id IN (SELECT * FROM VALUES (1))", None),
    ((), f"{WITH} SELECT *, id + 1 AS more FROM s", None),
    ((), "SELECT s.*, x FROM source s, LATERAL (SELECT s.id + 1 AS x)", None),
    ((), "SELECT *, explode(array(1)) FROM source", None),
]


@pytest.mark.parametrize(("tables", "sql", "named"), CASES)
def test_transform_before_state_leaves_each_record_by_itself_or_is_refused(
    spark: SparkSession, tmp_path: Path, tables: Sequence[str], sql: str, named: str | None
) -> None:
    sql = sql.format(other=tmp_path / "other")
    read = {name: {"delta": {"path": name}} for name in tables if name in sql}
    if "parquet." in sql:
        spark.createDataFrame([(1, "a")], "id LONG, x STRING").write.parquet(str(tmp_path / "other"))
    pipeline = load(write(tmp_path, GOOD + f'tables: {read}\ntransform: {{sql: "{sql}"}}\n'))
    rows = source_columns(decode(spark.createDataFrame([], sample._RECORDS), pipeline.decode))
    rows.createOrReplaceTempView("source")
    if named is None:
        refuse_across(pipeline, spark.sql(sql), "a window")
        return
    with pytest.raises(ConfigError, match=named):
        refuse_across(pipeline, spark.sql(sql), "a window")
