"""``sluice redrive``: lost and refused records come from the log, Kafka or the quarantine, and are written once.

Its kills are in ``test_corrections.py``.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from tests.chaos.commands import assert_conserved, deep, drain, json_of, lost, redrive, said, versions
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka, pytest.mark.long]

DYING = {"python": "poison:dying"}


def test_redrive_writes_lost_records_that_are_poison_no_more(sandbox: Sandbox) -> None:
    sandbox.configure(transform=DYING, recovery="ignore_range", kafka={"max_records_per_batch": 10})
    drain(sandbox, 20, "lossy", bad_every=6, POISON_IDS="3,7,15")
    assert sorted(n for *_, n in lost(sandbox)) == [1, 3, 7]  # ids 3, 7, 15 lie in partition 1
    assert_conserved(sandbox)
    redrive(sandbox, "--run", "again", POISON_IDS="7")
    assert [row.range.start for row in sandbox.ledger.offsets.lost(sandbox.name)] == [3]
    assert "poison: 7" in sandbox.ledger.offsets.lost(sandbox.name)[0].reason
    assert sandbox.account("again") == dict(planned=2, written=2, filtered=0, quarantined=0, absent=0, lost=0)
    assert_conserved(sandbox)

    dry = json_of(sandbox, "redrive", "--dry-run")
    assert [(item["start"], item["end"], item["held by"]) for item in dry] == [(3, 4, "kafka")]
    redrive(sandbox, "--of", "p0", expect=10)
    redrive(sandbox, "--range", f"{sandbox.topic}:1:0-3")
    assert len(lost(sandbox)) == 1
    redrive(sandbox, "--of", "lossy", "--range", f"{sandbox.topic}:1:0-100")
    assert not lost(sandbox)
    assert_conserved(sandbox)

    before = versions(sandbox)
    assert "nothing to redrive" in redrive(sandbox)
    assert versions(sandbox) == before


def test_records_older_than_a_retention_are_dropped_from_the_quarantine(sandbox: Sandbox) -> None:
    moments = [(datetime.now(UTC) - timedelta(days=age)).replace(microsecond=0) for age in (5, 4, 3, 2)]
    sandbox.produce([(n % 2, None, b"nothing", int(at.timestamp() * 1000)) for n, at in enumerate(moments)])
    sandbox.run("live")
    assert sum(sandbox.quarantine().values()) == 4
    drop = ("quarantine", "--drop", "--reason", "old", "--before", moments[2].isoformat(), "--json")
    assert "2 records" in said(sandbox, *drop)
    assert sandbox.quarantine() == Counter({(sandbox.topic, n % 2, 1): 1 for n in (2, 3)})
    assert "nothing to drop" in said(sandbox, *drop), "a job does so each day"
    deep(sandbox)


def test_records_that_are_nowhere_stay_lost_and_are_named(sandbox: Sandbox) -> None:
    drain(sandbox, 6, "first")
    sandbox.feed(8)
    sandbox.topics.delete_records(sandbox.topic, {0: 5})
    sandbox.configure(recovery="ignore_range")
    sandbox.run("second")
    assert sorted(lost(sandbox)) == [(sandbox.topic, 0, 3), (sandbox.topic, 0, 4)]
    before = versions(sandbox)
    assert f"{sandbox.topic}-0 [3, 5)" in redrive(sandbox)
    assert versions(sandbox) == before
    assert len(lost(sandbox)) == 2
    assert_conserved(sandbox)
