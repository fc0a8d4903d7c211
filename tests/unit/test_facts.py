"""Facts of batches: the same value in commit metadata, ledger and account."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.fixtures.books import split
from tests.fixtures.ledgers import attempt

from sluice.facts import (
    FACTS,
    BatchFact,
    ChangedColumns,
    Duplicates,
    Origins,
    Profile,
    Rescued,
    Windows,
    facts_in,
    lines,
    noted,
)
from sluice.facts.profile import ColumnProfile
from sluice.ledger import Ledger
from sluice.ledger.events import batch_committed, parsed

LATE = [["t", 0, 0, 5, 2]]
FIRST: list[BatchFact] = [
    ChangedColumns([{"column": "tax", "type": "bigint"}]),
    Windows(3, LATE, 1, 900, 500, 700, former=[["t", 0, 5, 9, 1]], former_to=100, timing="t"),
    Windows(3, LATE, 0, 900, 500, 700, operator="processor"),
    Duplicates([["t", 0, 0, 5, 3]], LATE, 400),
    Rescued(2, {"a": 2}),
    Origins(4, [["b:t", 0, 0, 7]]),
    Profile(9, {"id": ColumnProfile(9, 0, "number", 1, 9, 45.0, 9, (3, 4))}),
]
NAMES = [f"{fact.name} {getattr(fact, 'operator', None) or ''}".strip() for fact in FIRST]


def test_facts_have_an_example_each() -> None:
    assert {type(fact) for fact in FIRST} == set(FACTS)
    assert len({kind.event for kind in FACTS}) == len({kind.name for kind in FACTS}) == len(FACTS)


@pytest.mark.parametrize("fact", FIRST, ids=NAMES)
def test_fact_is_the_same_in_metadata_ledger_and_account(fact: BatchFact, tmp_path: Path) -> None:
    note = json.loads(json.dumps({"run": "r", **noted([fact])}))
    assert facts_in(note) == [fact]
    event, _ = batch_committed(1, 0, [split(0, 9)], facts=[fact])
    assert parsed(event.type, json.loads(json.dumps(event.payload()))) == event
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    with attempt(ledger, "r") as lease:
        for batch in (0, 1, 1):  # a batch may be recorded again
            ledger.record(lease, *batch_committed(1, batch, [split(batch * 9, batch * 9 + 9)], facts=[fact]))
    account = ledger.runs.account("p", "r")
    assert (fact | fact).account().items() <= account.items()
    assert bool(lines(account)) == isinstance(fact, Windows | Duplicates | Rescued)


@pytest.mark.parametrize("fact", [ChangedColumns(), Rescued(), Origins()], ids=lambda fact: fact.name)
def test_fact_that_says_nothing_is_not_recorded(fact: BatchFact) -> None:
    assert noted([fact]) == {}
    assert len(batch_committed(1, 0, [split(0, 9)], facts=[fact])) == 1


def test_interval_has_the_facts_of_its_last_commit(tmp_path: Path) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    with attempt(ledger, "i", kind="interval", epoch=-1) as lease:
        for batch, facts in enumerate([[Rescued(2, {"a": 2})], [Rescued(1, {"b": 1})]]):
            ledger.record(lease, *batch_committed(-1, batch, [split(0, 9)], facts=facts))
        assert ledger.runs.account("p", "i")["rescued"] == {"records": 1, "fields": {"b": 1}}
        ledger.record(lease, *batch_committed(-1, 2, [split(0, 9)]))
    assert "rescued" not in ledger.runs.account("p", "i")
