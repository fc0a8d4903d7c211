"""Records that break a row rule: quarantined in the run's own pass, and written once the rule lets them pass."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.fixtures.runs import Sandbox

from sluice.local.kafka import Record

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]


def test_a_rule_splits_a_batch_and_what_it_refused_is_redriven_when_it_changes(sandbox: Sandbox) -> None:
    rule = {"name": "small", "sql": {"passes": "id < 6", "column": "id"}}
    sandbox.configure(rules=[rule], quality={"max_quarantined": "100%"})
    placed = sandbox.produce([Record(n % 2, None, b'{"id": %d, "name": "n"}' % n) for n in range(10)])
    sandbox.run("r")
    sandbox.assert_exact()
    assert sandbox.sink() == Counter(placed[:6])
    refused = sandbox.rows("table_quarantine").to_pylist()
    assert Counter((r["_topic"], r["_partition"], r["_offset"]) for r in refused) == Counter(placed[6:])
    assert [r["_errors"] for r in sorted(refused, key=lambda r: r["value"])] == [
        [{"rule": "small", "severity": "critical", "column": "id", "detail": str(n)}] for n in range(6, 10)
    ]

    sandbox.configure(rules=[rule | {"sql": {"passes": "id < 8"}}], quality={"max_quarantined": "100%"})
    done = sandbox.cli("redrive", str(sandbox.file), "--run", "again", "--quarantined")
    assert done.returncode == 0, done.stderr
    assert sandbox.sink() == Counter(placed[:8])
    still = sandbox.rows("table_quarantine").to_pylist()
    assert Counter((r["_topic"], r["_partition"], r["_offset"]) for r in still) == Counter(placed[8:])
