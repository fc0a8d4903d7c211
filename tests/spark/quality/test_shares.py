"""Small slices are shuffled in few shares, and nothing else is."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from sluice_spark.quality.shares import few_shares

pytestmark = pytest.mark.spark

OWN = "spark.sql.adaptive.coalescePartitions.initialPartitionNum"


@pytest.mark.parametrize(
    ("rows", "most", "own", "wanted"),
    [
        (10, "200", None, "8"),
        (500_000, "200", None, "20"),
        (5_000_000, "200", None, None),
        (10, "4", None, None),
        (10, "200", "50", "8"),
        (10, "200", "4", "4"),
    ],
)
def test_judge_shuffles_in_few_shares_and_restores_the_setting(
    spark: SparkSession, rows: int, most: str, own: str | None, wanted: str | None
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", most)
    if own is not None:
        session.conf.set(OWN, own)
    with few_shares(session, rows):
        assert session.conf.get(OWN, None) == wanted
    assert session.conf.get(OWN, None) == own
