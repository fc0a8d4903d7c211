"""Tables that a transform joins: found by their names in the session of a batch, at one version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession
from tests.fixtures.pipelines import KAFKA
from tests.fixtures.specs import write

from sluice.errors import ConfigError
from sluice.home import Home
from sluice.pipeline import Pipeline, load
from sluice.recovery import Recovery
from sluice_spark.arrow.plan import NotArrowError, sketch
from sluice_spark.runs import checks
from sluice_spark.transforms import transform as transforms
from sluice_spark.transforms.lookups import Lookups

pytestmark = pytest.mark.spark

SQL = "SELECT s.*, c.name FROM source s LEFT JOIN carriers c USING (id)"
Make = Callable[..., Pipeline]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.syspath_prepend(str(tmp_path))

    def pipeline(transform: dict[str, str] | None = None, **delta: Any) -> Pipeline:
        tables = {"carriers": {"delta": {"path": "carriers", **delta}}}
        keys = {"decode": {"text": {}}, "transform": transform or {"sql": SQL}, "tables": tables}
        return load(write(tmp_path, yaml.safe_dump(KAFKA | keys)))

    return pipeline


def table(home: Path, *names: str, **how: Any) -> None:
    rows = {"id": pa.array(range(len(names)), pa.int64()), "name": pa.array(names, pa.string())}
    write_deltalake(str(home / "carriers"), pa.table(rows), mode="overwrite", schema_mode="overwrite", **how)


@pytest.fixture
def batch(spark: SparkSession) -> DataFrame:
    return spark.sql("SELECT id, 't' AS _topic, 0 AS _partition, id AS _offset, now() AS _timestamp FROM range(2)")


def names(spec: Pipeline, home: Path, batch: DataFrame, **how: Any) -> list[str | None]:
    transform = transforms.transformer(spec, Lookups.of(spec, Home(str(home)), **how))
    return [row["name"] for row in transforms.apply(transform, batch).orderBy("id").collect()]


@pytest.mark.parametrize("how", [{}, {"partition_by": ["name"]}])  # which is read by Delta's own reader
def test_lookup_is_joined_at_one_version(make: Make, tmp_path: Path, batch: DataFrame, how: dict[str, Any]) -> None:
    table(tmp_path, "a", "b", **how)
    spec = make()
    began = Lookups.of(spec, Home(str(tmp_path)))
    table(tmp_path, "c d/e", "f", **how)
    assert names(spec, tmp_path, batch) == ["c d/e", "f"]
    assert names(spec, tmp_path, batch, recorded=began.as_dict()) == ["a", "b"]
    assert names(make(version=0), tmp_path, batch) == ["a", "b"]
    table(tmp_path, **how)
    assert names(spec, tmp_path, batch) == [None, None]


def test_lookup_is_found_by_a_function_in_its_batchs_session(make: Make, tmp_path: Path, batch: DataFrame) -> None:
    table(tmp_path, "a", "b")
    (tmp_path / "joins_carriers.py").write_text(
        "def named(source):\n    return source.join(source.sparkSession.table('carriers'), 'id', 'left')\n"
    )
    assert names(make({"python": "joins_carriers:named"}), tmp_path, batch) == ["a", "b"]


def test_lookup_columns_that_came_later_are_null_in_older_files(make: Make, tmp_path: Path, batch: DataFrame) -> None:
    write_deltalake(str(tmp_path / "carriers"), pa.table({"id": [0]}))
    rows = pa.table({"id": [1], "name": ["b"]})
    write_deltalake(str(tmp_path / "carriers"), rows, mode="append", schema_mode="merge")
    assert names(make(), tmp_path, batch) == [None, "b"]


def test_lookup_leaves_metadata_to_the_record_and_must_have_the_columns_of_the_transform(
    make: Make, spark: SparkSession, tmp_path: Path, batch: DataFrame
) -> None:
    table(tmp_path, "a", "b")
    spec = make()
    transform = transforms.transformer(spec, Lookups.of(spec, Home(str(tmp_path))))
    assert transforms.hands_through(batch, transforms.check(spec, transform, batch))
    with pytest.raises(NotArrowError, match="tables"):
        sketch(spark, spec, Recovery.REPLAY)
    spec = make({"sql": SQL.replace("c.name", "c.country")})
    with pytest.raises(ConfigError, match="country"):
        transforms.check(spec, transforms.transformer(spec, Lookups.of(spec, Home(str(tmp_path)))), batch)


def test_lookup_that_is_missing_is_a_mistake_of_the_file(
    make: Make, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    spec = make({"sql": "SELECT s.*, c.name FROM source s LEFT JOIN carriers c ON c.id = s._offset"})
    (problem,) = checks.problems(spark, spec)
    assert "tables.carriers" in problem
    assert f"{tmp_path}/carriers" in problem
    assert checks.path(spark, spec) is None
    table(tmp_path, "a")
    assert list(checks.problems(spark, spec)) == []
    assert "tables" in (checks.path(spark, spec) or "")
