"""A table in an object store that speaks Amazon S3's protocol."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyspark
import pytest
from tests.chaos.commands import drain, said, suite
from tests.chaos.drivers import asleep, gated, opened, woken
from tests.fixtures.objects import Bucket
from tests.fixtures.runs import Sandbox

from sluice.delta.table import Table
from sluice.upkeep import _Leftovers

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]


NOT_NULL = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "id"}}


@pytest.mark.long
@pytest.mark.parametrize("recovery", ["replay", "wal"])
def test_object_store_neither_loses_nor_doubles_when_drivers_are_killed(
    sandbox: Sandbox, bucket: Bucket, recovery: str
) -> None:
    sandbox.configure(
        recovery=recovery, sink={"delta": {"path": f"{bucket.url}/table", "partition_by": ["_partition"]}}
    )
    for point in ("rows-staged", "before-sink-commit", "sink-committed"):
        drain(sandbox, 8, "again", kill_at=point)
        assert set(bucket.offsets("table").values()) <= {1}, f"rows are visible twice after {point}"
    sandbox.run("again")
    assert bucket.offsets("table") == sandbox.on_broker()
    assert sandbox.total("written") == len(sandbox.produced)
    assert bucket.strays("table") == []


@pytest.mark.long
def test_object_store_lets_one_of_two_drivers_at_the_same_commit_in(sandbox: Sandbox, bucket: Bucket) -> None:
    sandbox.configure(transform={"arrow": "gate:table"}, sink={"delta": {"path": f"{bucket.url}/table"}})
    sandbox.feed(6)
    zombie = asleep(sandbox, "before-sink-commit")
    heir = gated(sandbox, "before-sink-commit", "heir")

    woken(zombie)
    opened(heir, 40)
    assert Counter(bucket.rows("table").column("_run").to_pylist()) == Counter(zombie=6)

    sandbox.run("heir")
    assert bucket.offsets("table") == sandbox.on_broker()
    assert sandbox.account("zombie")["written"] == 6
    assert bucket.strays("table") == []


def test_object_store_names_the_package_that_spark_needs(sandbox: Sandbox, bucket: Bucket) -> None:
    needed = "spark.jars.packages: org.apache.hadoop:hadoop-aws:VERSION"
    sandbox.configure(sink={"delta": {"path": f"{bucket.url}/table"}}, quality=suite(sandbox, NOT_NULL))
    sandbox.feed(6)
    assert needed in sandbox.run("good", validate=True).message
    sandbox.feed(6, bad_every=4)
    assert needed in sandbox.run("bad", expect=10).message
    assert sum(bucket.offsets("table").values()) == sandbox.total("written") == 6


@pytest.mark.long
def test_object_store_interval_is_replaced_and_vacuumed(sandbox: Sandbox, bucket: Bucket) -> None:
    sandbox.configure(sink={"delta": {"path": f"{bucket.url}/table"}})
    drain(sandbox, 12, "live")
    sandbox.run("again", interval=("2020-01-01T00:00:00Z", datetime.now(UTC).isoformat()))
    assert bucket.offsets("table") == sandbox.on_broker()
    assert set(bucket.rows("table").column("_run").to_pylist()) == {"again"}

    said(sandbox, "vacuum")
    assert len(bucket.strays("table")) > 1, "they are too young"
    left = _Leftovers.of(f"{bucket.url}/table", [sandbox.name], datetime.now(UTC) + timedelta(hours=1))
    gone = left.remove(Table.open("sink", f"{bucket.url}/table"), dry_run=False)
    assert len(gone) > 1
    assert bucket.strays("table") == []
    assert bucket.offsets("table") == sandbox.on_broker()


@pytest.mark.long
def test_object_store_with_hadoops_own_client_is_as_a_folder(sandbox: Sandbox, bucket: Bucket) -> None:
    """Spark fetches the package: about 700 MB, once on a machine."""
    jars = Path(pyspark.__file__).parent / "jars"
    (version,) = (file.stem.rpartition("-")[2] for file in jars.glob("hadoop-client-api-*.jar"))
    settings = {
        "spark.jars.packages": f"org.apache.hadoop:hadoop-aws:{version}",
        "spark.hadoop.fs.s3a.endpoint": bucket.endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }
    keys = {
        "sink": {"delta": {"path": f"{bucket.url}/table"}},
        "quality": suite(sandbox, NOT_NULL),
        "spark": {"conf": settings},
    }
    sandbox.configure(**keys)
    sandbox.feed(12, bad_every=4)
    for point in ("rows-staged", "quarantine-staged", "sink-committed"):
        sandbox.run("live", kill_at=point)
    Sandbox.run(sandbox, "live", validate=True)
    assert bucket.offsets("table") + bucket.offsets("table_quarantine") == sandbox.on_broker()
    assert sum(bucket.offsets("table_quarantine").values()) == sandbox.total("quarantined") == 3
    assert bucket.strays("table") == bucket.strays("table_quarantine") == []

    sandbox.configure(**keys, engine="spark")
    sandbox.feed(6)
    Sandbox.run(sandbox, "more", validate=True)
    assert bucket.offsets("table") + bucket.offsets("table_quarantine") == sandbox.on_broker()
    said(sandbox, "audit", "--deep")
