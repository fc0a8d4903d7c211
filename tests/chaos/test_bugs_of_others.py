"""Bugs of other projects, each by the name of its thread. ``docs/chaos.md`` names the tests that are elsewhere."""

from __future__ import annotations

import pytest
from tests.chaos.commands import at, by_run, days, drain
from tests.fixtures.runs import Sandbox, good

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]


def test_spark_availablenow_that_degrades_to_one_batch(sandbox: Sandbox) -> None:
    """Spark 4 drops the rate limit of a whole query without a word when one of its sources does not know it."""
    sandbox.feed(24)
    outcome = sandbox.run("r")
    begun = [line for line in outcome.stderr.splitlines() if "offsets in" in line and "batch" in line]
    assert len(begun) >= 4, "24 records, at most 6 a batch"
    sandbox.assert_exact()


def test_spark_kafka_by_timestamp_on_a_partition_without_later_records(sandbox: Sandbox) -> None:
    """Spark's startingOffsetsByTimestamp fails there by default, Hudi reads the partition from its beginning."""
    sandbox.produce([(1, None, good(n), at(1, 60 * n)) for n in range(3)])
    sandbox.produce([(0, None, good(n), at(3, 60 * n)) for n in range(3, 7)])
    sandbox.run("live")
    before = sandbox.sink()
    sandbox.run("again", interval=days(3, 4))
    assert sandbox.account("again")["planned"] == 4
    assert sandbox.sink() == before
    assert by_run(sandbox) == {"live": 3, "again": 4}


def test_spark_55416_offsets_without_any_record_are_passed_once(sandbox: Sandbox) -> None:
    """Markers of an aborted transaction move the end of the log and bring nothing: the position goes behind them."""
    sandbox.configure(kafka={"isolation_level": "read_committed", "max_records_per_batch": 100})
    drain(sandbox, 2, "first")
    sandbox.topics.produce_transaction(sandbox.topic, [(0, None, good(9))], commit=False)
    sandbox.run("second")
    assert sandbox.account("second") == dict(planned=2, written=0, filtered=0, quarantined=0, absent=2, lost=0)
    assert "0 offsets to read" in sandbox.run("third").stderr
    sandbox.assert_exact("read_committed")


def test_hudi_out_of_range_on_one_partition_leaves_the_position_of_the_others(sandbox: Sandbox) -> None:
    """Hudi goes back to the earliest offset of every partition when the position of one is gone."""
    sandbox.configure(recovery="ignore_range")
    drain(sandbox, 8, "first")
    sandbox.feed(8)
    sandbox.topics.delete_records(sandbox.topic, {0: 6})
    sandbox.run("second")
    assert sandbox.account("second") == dict(planned=8, written=6, filtered=0, quarantined=0, absent=0, lost=2)
    assert set(sandbox.sink().values()) == {1}
    assert [
        (row.range.partition, row.range.start, row.range.end) for row in sandbox.ledger.offsets.lost(sandbox.name)
    ] == [(0, 4, 6)]
