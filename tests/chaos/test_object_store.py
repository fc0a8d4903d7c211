"""A table in an object store that speaks Amazon S3's protocol, without any jar for it."""

from __future__ import annotations

import pytest
from tests.fixtures.objects import Bucket
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]


@pytest.mark.parametrize("recovery", ["replay", pytest.param("wal", marks=pytest.mark.long)])
def test_kills_neither_lose_nor_double(sandbox: Sandbox, bucket: Bucket, recovery: str) -> None:
    sandbox.configure(
        recovery=recovery, sink={"delta": {"path": f"{bucket.url}/table", "partition_by": ["_partition"]}}
    )
    for point in ("rows-staged", "before-sink-commit", "sink-committed"):
        sandbox.feed(8)
        sandbox.run("again", kill_at=point)
        seen = bucket.offsets("table")
        assert set(seen.values()) <= {1}, f"rows are visible twice after {point}"
    sandbox.run("again")
    assert bucket.offsets("table") == sandbox.on_broker()
    assert sandbox.total("written") == len(sandbox.produced)
    assert bucket.strays("table") == []
