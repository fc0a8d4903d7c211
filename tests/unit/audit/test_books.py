"""Wrongs are planted in the ledger; the audit must find each one and name its range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.fixtures.books import Place, lost, split
from tests.unit.ledger.conftest import commit, plan

from sluice.audit import audit
from sluice.ledger import REDRIVEN, Ledger, schema
from sluice.ledger.store import open_engine
from sluice.ranges import RangeAccount


def redrive(story: Place, run: str, *accounts: RangeAccount, of: str) -> None:
    story.commit(run, *accounts, epoch=REDRIVEN, redriven=of)


IN_THE_LEDGER: dict[str, tuple[Callable[[Place], Any], list[str]]] = {
    "an account that does not add up": (
        lambda p: p.execute("UPDATE sluice_account SET written = 6 WHERE run = 'a' AND partition = 0"),
        [
            "the account of t-0 [0, 10) does not balance: 10 planned, "
            "{'written': 6, 'filtered': 0, 'quarantined': 2, 'absent': 1, 'lost': 0}"
        ],
    ),
    "a gap": (
        lambda p: p.commit("e", split(21, 23), epoch=2),
        ["a gap between t-0 [10, 20) and t-0 [21, 23)"],
    ),
    "an overlap": (
        lambda p: p.commit("e", split(7, 9, 1), epoch=2),
        ["an overlap between t-1 [5, 8) and t-1 [7, 9)"],
    ),
    "an overlap within a longer range": (
        lambda p: [p.commit("e", split(12, 13), epoch=2), p.commit("f", split(20, 21), epoch=2)],
        ["an overlap between t-0 [10, 20) and t-0 [12, 13)"],
    ),
    "an epoch that begins elsewhere": (
        lambda p: p.hand_over({0: 20, 1: 9}),
        ["epoch 3 begins at offset 9 of t-1, where no range ends"],
    ),
    "a loss that no account counts": (
        lambda p: p.commit("e", split(20, 22), epoch=2, lost=[lost(21, 22)]),
        ["the account of t-0 [20, 22) counts 0 offsets as lost, recorded as lost there: t-0 [21, 22)"],
    ),
    "a loss that is not recorded": (
        lambda p: p.commit("e", split(20, 26, written=1, lost=5), epoch=2, lost=[lost(20, 22), lost(24, 26)]),
        [
            "the account of t-0 [20, 26) counts 5 offsets as lost, recorded as lost there: t-0 [20, 22), t-0 [24, 26)"
        ],
    ),
    "a loss outside of all accounts": (
        lambda p: p.commit("e", split(20, 22, lost=2), epoch=2, lost=[lost(20, 25)]),
        ["t-0 [22, 25) is recorded as lost, but no account covers it"],
    ),
    "a loss that is recorded twice": (
        lambda p: [
            p.commit("e", split(20, 22, lost=2), epoch=2, lost=[lost(20, 22)]),
            p.commit("f", split(22, 23), epoch=2, lost=[lost(21, 22)]),
        ],
        ["t-0 [21, 22) is recorded as lost twice"],
    ),
    "a loss that was redriven twice": (
        lambda p: redrive(p, "e", split(15, 17), of="lost"),
        ["t-0 [16, 17) was redriven twice, as lost"],
    ),
    "something redriven that was never lost": (
        lambda p: redrive(p, "e", split(14, 16), split(3, 4, 1), of="lost"),
        [
            "t-0 [14, 15) was redriven as lost, but was never lost",
            "t-1 [3, 4) was redriven as lost, but was never lost",
        ],
    ),
    "a redriven loss that was never closed": (
        lambda p: p.execute("UPDATE sluice_lost SET state = 'open' WHERE state = 'redriven'"),
        [
            "t-0 [16, 19) was redriven, but is open as lost",
            "t-0 [17, 18) was redriven from the quarantine, but was never in it",
        ],
    ),
    "a loss closed without a trace": (
        lambda p: p.execute("UPDATE sluice_lost SET state = 'redriven' WHERE start = 19"),
        ["t-0 [19, 20) is closed as redriven, but no account covers it"],
    ),
    "a redriven loss that is lost again": (
        lambda p: redrive(p, "e", split(15, 16, lost=1), of="lost"),
        ["the account of t-0 [15, 16) counts 1 redriven offsets as lost again"],
    ),
    "a refused record that was redriven twice": (
        lambda p: redrive(p, "e", split(4, 5), of="quarantined"),
        ["t-0 [4, 5) was redriven twice, from the quarantine"],
    ),
    "more redriven than was refused": (
        lambda p: redrive(p, "e", split(5, 7), split(2, 3, 1), of="quarantined"),
        [
            "t-0 [4, 7) was redriven from the quarantine, 3 offsets, but only 2 of t-0 [0, 10) were quarantined",
            "t-1 [2, 3) was redriven from the quarantine, 1 offsets, but only 0 of t-1 [0, 5) were quarantined",
        ],
    ),
    "more redriven than was refused when redriving": (
        lambda p: redrive(p, "e", split(18, 19), of="quarantined"),
        ["t-0 [17, 19) was redriven from the quarantine, 2 offsets, but only 1 of t-0 [16, 19) were quarantined"],
    ),
    "something redriven from the quarantine that was never there": (
        lambda p: redrive(p, "e", split(19, 20), split(25, 26), of="quarantined"),
        [
            "t-0 [19, 20) was redriven from the quarantine, but was never in it",
            "t-0 [25, 26) was redriven from the quarantine, but was never in it",
            "t-0 [19, 20) was redriven from the quarantine, 1 offsets, but only 0 of t-0 [10, 20) were quarantined",
        ],
    ),
    "something redriven of which nobody knows what it was": (
        lambda p: redrive(p, "e", split(19, 20), of="spilt"),
        ["t-0 [19, 20) was redriven, but the ledger does not say what it was before"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("wrong", IN_THE_LEDGER)
def test_a_wrong_in_the_ledger_is_named_by_its_range(story: Place, wrong: str) -> None:
    plant, problems = IN_THE_LEDGER[wrong]
    plant(story)
    found = audit(story.ledger, "p")
    assert (found.problems, found.balanced) == (problems, False)
    story.write()
    assert set(problems) <= set(story.deep().problems)


def test_what_an_interval_refuses_again_can_be_dropped_again(place: Place) -> None:
    place.commit("a", split(0, 10, written=8, quarantined=2))
    dropped = split(4, 6, filtered=2)
    redrive(place, "drop", dropped, of="quarantined")
    scope = "2026-01-01T00:00:00Z/2026-01-02T00:00:00Z"
    with place.ledger.acquire("p", "i", scope=scope) as lease:
        new = split(0, 10, written=8, quarantined=2)
        number = place.ledger.interval_resolved(lease, scope, ranges=[new.range], whole=True, topic_ids={})
        place.ledger.run_planned(
            lease, kind="interval", recovery="replay", epoch=-number, ranges=[], topic_ids={}, interval=scope
        )
        gone = {new.range: (8, 0)}
        place.ledger.batch_committed(lease, epoch=-number, batch=0, accounts=[new], replaced=gone)
    redrive(place, "again", dropped, of="quarantined")
    assert audit(place.ledger, "p").problems == []


def test_what_was_redriven_is_what_it_became(place: Place) -> None:
    place.commit("a", split(0, 100, lost=100), lost=[lost(0, 100)])
    place.commit("b", split(0, 60, written=40, quarantined=20), epoch=REDRIVEN, redriven="lost")
    place.commit("c", split(30, 35, filtered=5), split(36, 37), epoch=REDRIVEN, redriven="quarantined")
    report = audit(place.ledger, "p")
    assert report.problems == []
    assert report.partitions == [
        dict(topic="t", partition=0, start=0, end=100, planned=100, written=41, filtered=5, quarantined=14, absent=0,
             lost=40, redriven=66, open=40)
    ]  # fmt: skip


def test_an_audit_names_gaps_and_overlaps(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    with ledger.acquire("p", "r") as lease:
        plan(ledger, lease)
        commit(ledger, lease, 0, split(0, 5), split(0, 5, 1), split(2, 5, 2))
        commit(ledger, lease, 1, split(6, 9), split(4, 9, 1), split(5, 9, 2))
    report = audit(ledger, "p")
    assert not report.balanced
    assert report.problems == [
        "a gap between t-0 [0, 5) and t-0 [6, 9)", "an overlap between t-1 [0, 5) and t-1 [4, 9)",
    ]  # fmt: skip
    good = report.partitions[2]
    assert (good["start"], good["end"], good["written"]) == (2, 9, 7)


def test_an_audit_names_an_account_that_was_tampered_with(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    with ledger.acquire("p", "r") as lease:
        plan(ledger, lease)
        commit(ledger, lease, 0, split(0, 5))
    with open_engine(ledger_url).begin() as connection:
        connection.execute(schema.account.update().values(written=4))
    report = audit(ledger, "p")
    assert not report.balanced
    assert "t-0 [0, 5) does not balance" in report.problems[0]
