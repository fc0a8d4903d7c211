"""A transform may do what it likes to the data, and nothing to the metadata columns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import DataFrame, SparkSession
from tests.fixtures.pipelines import KAFKA
from tests.fixtures.specs import write

from sluice.errors import ConfigError
from sluice.pipeline import Pipeline, load
from sluice_spark.transforms import transform as transforms

pytestmark = pytest.mark.spark

Make = Callable[..., Pipeline]


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(sql: str | None = None, *, python: str = "", by: tuple[str, ...] = (), **keys: Any) -> Pipeline:
        sink = {"delta": {"path": "p", "partition_by": list(by)}}
        transform = {"transform": {"python": python} if python else {"sql": sql}} if python or sql else {}
        return load(
            write(tmp_path, yaml.safe_dump({**KAFKA, "decode": {"text": {}}, "sink": sink, **transform, **keys}))
        )

    return make


@pytest.fixture
def sample(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(
        [], "id INT, name STRING, _topic STRING, _partition INT, _offset BIGINT, _timestamp TIMESTAMP"
    )


def check(pipeline: Pipeline, sample: DataFrame) -> DataFrame:
    return transforms.check(pipeline, transforms.transformer(pipeline), sample)


@pytest.mark.parametrize(
    "sql",
    [
        None, "SELECT *, id + 1 AS next FROM source", "SELECT _topic, _offset, _timestamp, _partition FROM source",
        "WITH a AS (SELECT * FROM source WHERE id > 1) SELECT * EXCEPT (name) FROM a",
    ],
)  # fmt: skip
def test_transform_may_keep_the_metadata(pipeline: Make, sample: DataFrame, sql: str | None) -> None:
    assert set(check(pipeline(sql), sample).columns) >= {"_topic", "_partition", "_offset", "_timestamp"}


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("SELECT id, name FROM source", "_topic (string)"),
        ("SELECT * EXCEPT (_offset) FROM source", "_offset (bigint)"),
        ("SELECT * EXCEPT (_offset), CAST(_offset AS INT) AS _offset FROM source", "type int"),
        ("SELECT *, 'x' AS _run FROM source", "_run"),
        ("SELECT *, 'x' AS _RUN FROM source", "_run"),
        ("SELECT *, 1 AS id FROM source", "twice"),
        ("SELECT *, 1 AS ID FROM source", "twice"),
        ("SELECT nothing FROM source", "UNRESOLVED_COLUMN"),
        ("SELECT * FROM elsewhere", "TABLE_OR_VIEW_NOT_FOUND"),
        ("SELEKT", "PARSE_SYNTAX_ERROR"),
    ],
)  # fmt: skip
def test_transform_without_metadata_is_refused_first(pipeline: Make, sample: DataFrame, sql: str, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(pipeline(sql), sample)
    assert named in caught.value.what
    assert "p.yaml" in caught.value.next_step


def test_transform_of_an_aggregate_need_not_keep_the_metadata(pipeline: Make, sample: DataFrame) -> None:
    out = check(pipeline("SELECT name, count(*) AS n FROM source GROUP BY name", rows="aggregate"), sample)
    assert out.columns == ["name", "n"]


def test_transform_must_have_the_partition_columns(pipeline: Make, sample: DataFrame) -> None:
    check(pipeline(by=("name",)), sample)
    with pytest.raises(ConfigError, match="partition_by"):
        check(pipeline(by=("day",)), sample)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("import nothing_like_this\ndef f(source):\n    return source\n", "ModuleNotFoundError"),
        ("1 / 0\ndef f(source):\n    return source\n", "ZeroDivisionError"),
        ("def f(source):\n    return 5\n", "int"),
        ("def f(source):\n    return source.select('nothing')\n", "UNRESOLVED_COLUMN"),
        ("def f(source):\n    return source.drop('_offset')\n", "_offset (bigint)"),
        ("def f(source):\n    raise RuntimeError('broken by hand')\n", "broken by hand"),
        ("import sys\ndef f(source):\n    sys.exit(0)\n", "sys.exit(0)"),
        ("import sys\nsys.exit(0)\ndef f(source):\n    return source\n", "sys.exit(0)"),
    ],
)
def test_transform_function_that_fails_is_named(
    pipeline: Make, sample: DataFrame, tmp_path: Path, body: str, named: str
) -> None:
    module = f"mine_{abs(hash(body))}"
    (tmp_path / f"{module}.py").write_text(body)
    with pytest.raises(ConfigError) as caught:
        check(pipeline(python=f"{module}:f"), sample)
    assert named in caught.value.what


@pytest.mark.parametrize(
    ("sql", "through"),
    [
        ("SELECT * FROM source", True),
        ("SELECT s.*, d.x FROM source s LEFT JOIN (SELECT 1 AS x) d ON s.id = d.x WHERE name > 'a' ORDER BY id", True),
        ("SELECT s.*, n FROM source s LATERAL VIEW explode(array(1, 2)) AS n", True),
        ("WITH a AS (SELECT * FROM source) SELECT * EXCEPT (name), row_number() OVER (ORDER BY id) AS n FROM a", True),
        ("SELECT * EXCEPT (_timestamp), _timestamp + INTERVAL 1 HOUR AS _timestamp FROM source", False),
        ("SELECT id, name, _topic, _partition, _offset, to_timestamp('2020-01-01') AS _timestamp FROM source", False),
        ("SELECT a.id, b._topic, b._partition, b._offset, b._timestamp FROM source a JOIN source b USING (id)", False),
        ("SELECT * FROM source WHERE id = 1 UNION ALL SELECT * FROM source WHERE id = 2", False),
    ],
)
def test_transform_hands_metadata_on_by_its_plan(pipeline: Make, sample: DataFrame, sql: str, through: bool) -> None:
    assert transforms.hands_through(sample, check(pipeline(sql), sample)) is through


def test_transform_in_python_hands_no_metadata_through(pipeline: Make, sample: DataFrame, tmp_path: Path) -> None:
    (tmp_path / "veiled.py").write_text(
        "def same(df):\n    def through(batches):\n        yield from batches\n"
        "    return df.mapInArrow(through, df.schema)\n"
        "def plain(df):\n    return df.withColumn('more', df.id + 1)\n"
    )
    assert transforms.hands_through(sample, check(pipeline(python="veiled:plain"), sample))
    assert not transforms.hands_through(sample, check(pipeline(python="veiled:same"), sample))
