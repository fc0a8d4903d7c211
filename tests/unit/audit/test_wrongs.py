"""Wrongs that are planted in ledger and tables: an audit finds each one and names its range."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.fixtures.books import Place, lost, rows, span, split
from tests.fixtures.golden import Golden
from tests.fixtures.ledgers import attempt
from tests.unit.ledger.conftest import run

from sluice.audit import audit, deep, occurrences
from sluice.audit.cover import Cover
from sluice.ledger import REDRIVEN, Ledger, schema
from sluice.ledger.events import Redriven, batch_committed
from sluice.ranges import RangeAccount


def redrive(story: Place, run: str, *accounts: RangeAccount, of: str) -> None:
    story.commit(run, *accounts, epoch=REDRIVEN, redriven=Redriven(of=of))


IN_THE_LEDGER: dict[str, Callable[[Place], Any]] = {
    "an account that does not add up": lambda p: p.execute("UPDATE sluice_account SET written = 6 WHERE written = 7"),
    "a gap": lambda p: p.commit("e", split(21, 23), epoch=2),
    "an overlap": lambda p: p.commit("e", split(7, 9, 1), epoch=2),
    "an overlap within a longer range": lambda p: [p.commit("e", split(n, n + 1), epoch=2) for n in (12, 20)],
    "an epoch that begins elsewhere": lambda p: p.hand_over({0: 20, 1: 9}),
    "a loss that no account counts": lambda p: p.commit("e", split(20, 22), epoch=2, lost=[lost(21, 22)]),
    "a loss that is not recorded": lambda p: p.commit(
        "e", split(20, 26, written=1, lost=5), epoch=2, lost=[lost(20, 22), lost(24, 26)]
    ),
    "a loss outside of all accounts": lambda p: p.commit("e", split(20, 22, lost=2), epoch=2, lost=[lost(20, 25)]),
    "a loss that is recorded twice": lambda p: [
        p.commit("e", split(20, 22, lost=2), epoch=2, lost=[lost(20, 22)]),
        p.commit("f", split(22, 23), epoch=2, lost=[lost(21, 22)]),
    ],
    "a loss that was redriven twice": lambda p: redrive(p, "e", split(15, 17), of="lost"),
    "something redriven that was never lost": lambda p: redrive(p, "e", split(14, 16), split(3, 4, 1), of="lost"),
    "a redriven loss that was never closed": lambda p: p.execute(
        "UPDATE sluice_lost SET state = 'open' WHERE state = 'redriven'"
    ),
    "a loss closed without a trace": lambda p: p.execute("UPDATE sluice_lost SET state = 'redriven' WHERE start = 19"),
    "a redriven loss that is lost again": lambda p: redrive(p, "e", split(15, 16, lost=1), of="lost"),
    "a refused record that was redriven twice": lambda p: redrive(p, "e", split(4, 5), of="quarantined"),
    "more redriven than was refused": lambda p: redrive(p, "e", split(5, 7), split(2, 3, 1), of="quarantined"),
    "more redriven than was refused when redriving": lambda p: redrive(p, "e", split(18, 19), of="quarantined"),
    "something redriven from the quarantine that was never there": lambda p: redrive(
        p, "e", split(19, 20), split(25, 26), of="quarantined"
    ),
    "something redriven whose origin is unknown": lambda p: redrive(p, "e", split(19, 20), of="spilt"),
}


@pytest.mark.parametrize("wrong", IN_THE_LEDGER)
def test_audit_names_a_wrong_in_the_ledger_by_its_range(story: Place, wrong: str, golden: Golden) -> None:
    IN_THE_LEDGER[wrong](story)
    found = audit(story.ledger, "p")
    assert not found.balanced
    golden("audit", "\n".join(found.problems))
    story.write()
    assert set(found.problems) <= set(story.deep().problems)


def test_audit_takes_a_record_that_an_interval_refuses_again_and_that_is_dropped_again(place: Place) -> None:
    place.commit("a", split(0, 10, written=8, quarantined=2))
    dropped = split(4, 6, filtered=2)
    redrive(place, "drop", dropped, of="quarantined")
    day, new = "2026-01-01T00:00:00Z/2026-01-02T00:00:00Z", split(0, 10, written=8, quarantined=2)
    with attempt(place.ledger, "i", scope=day, kind="interval", epoch=-1, interval=day) as lease:
        assert place.ledger.interval_resolved(lease, day, ranges=[new.range], whole=True, topic_ids={}) == 1
        place.ledger.record(lease, *batch_committed(-1, 0, [new], replaced={new.range: (8, 0)}))
    redrive(place, "again", dropped, of="quarantined")
    assert audit(place.ledger, "p").problems == []


def test_audit_counts_redriven_offsets_as_their_last_outcome(place: Place) -> None:
    place.commit("a", split(0, 100, lost=100), lost=[lost(0, 100)])
    place.commit("b", split(0, 60, written=40, quarantined=20), epoch=REDRIVEN, redriven=Redriven(of="lost"))
    place.commit("c", split(30, 35, filtered=5), split(36, 37), epoch=REDRIVEN, redriven=Redriven(of="quarantined"))
    report = audit(place.ledger, "p")
    assert report.problems == []
    assert report.partitions == [
        dict(topic="t", partition=0, start=0, end=100, planned=100, written=41, filtered=5, quarantined=14, absent=0,
             lost=40, redriven=66, open=40)
    ]  # fmt: skip


def test_audit_is_the_same_on_each_database(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    run(ledger, "r", [split(0, 5), split(0, 5, 1), split(2, 5, 2)], [split(6, 9), split(4, 9, 1), split(5, 9, 2)])
    report = audit(ledger, "p")
    assert report.problems == [
        "a gap between t-0 [0, 5) and t-0 [6, 9)", "an overlap between t-1 [0, 5) and t-1 [4, 9)",
    ]  # fmt: skip
    good = report.partitions[2]
    assert (good["start"], good["end"], good["written"]) == (2, 9, 7)
    with ledger._engine.begin() as connection:
        connection.execute(schema.account.update().where(schema.account.c.partition == 2).values(written=9))
    assert "t-2 [2, 5)" in audit(ledger, "p").problems[0]


def drop(place: Place, *offsets: int, partition: int = 0) -> None:
    for offset in offsets:
        (row,) = [row for row in place.sink if row[1:3] == (partition, offset)]
        place.sink.remove(row)


IN_THE_TABLES: dict[str, Callable[[Place], Any]] = {
    "a doubled row": lambda p: p.sink.extend(rows("a", 5)),
    "rows that stand three times": lambda p: p.sink.extend(rows("b", 10, 11, 11, 10)),
    "a doubled row of the quarantine": lambda p: p.quarantine.extend(rows("a", 3)),
    "rows behind the position": lambda p: p.sink.extend(rows("b", 20, 21, 30)),
    "rows of strange partitions": lambda p: p.quarantine.extend([("t", 7, 0, "a"), ("other", 0, 4, "a")]),
    "rows without an offset": lambda p: p.sink.extend([("t", 0, None, "a"), (None, 0, 3, "a"), ("t", None, 3, "a")]),
    "a missing row": lambda p: drop(p, 6, partition=1),
    "a missing row where others are absent": lambda p: drop(p, 5),
    "a missing row that was redriven": lambda p: drop(p, 16, 4),
    "a missing record of the quarantine": lambda p: p.quarantine.clear(),
    "a redriven record that is still in the quarantine": lambda p: p.quarantine.extend(rows("c", 17)),
    "an offset in sink and quarantine": lambda p: p.quarantine.extend(rows("a", 8)),
    "a row of an absent offset": lambda p: p.sink.extend(rows("a", 9)),
    "a row inside an open lost range": lambda p: p.sink.extend(rows("b", 19)),
    "a refused record inside an open lost range": lambda p: p.quarantine.extend(rows("b", 15)),
    "rows of another run": lambda p: [drop(p, 11, 12), p.sink.extend([*rows("a", 11), *rows("unknown", 12)])],
}


@pytest.mark.parametrize("wrong", IN_THE_TABLES)
def test_deep_audit_names_a_wrong_in_the_tables_by_its_range(
    story: Place, monkeypatch: pytest.MonkeyPatch, wrong: str, golden: Golden
) -> None:
    IN_THE_TABLES[wrong](story)
    problems = sorted(story.found())
    golden("audit", "\n".join(problems))
    monkeypatch.setattr(deep, "_STRETCH", 7)  # in many small steps, the same is found
    monkeypatch.setattr(occurrences, "_BLOCK", 4)
    assert sorted(story.deep().problems) == problems


def test_deep_audit_counts_very_many_wrongs(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(occurrences, "_BLOCK", 512)
    place.commit("a", split(0, 4000, written=2000, absent=2000))
    place.sink = [*rows("a", *range(0, 4000, 2)) * 2, *rows("a", *range(5000, 6040))]
    found = place.found()
    assert found[0] == "t-0 [0, 1) stands more than once in the sink"
    assert found[1000] == "what stands more than once in the sink: 1,000 more"
    assert found[1001] == "1,040 rows of the sink lie within t-0 [5000, 6040), but no account covers them"
    assert len(found) == 1002


def test_deep_audit_judges_random_tables_as_a_slow_oracle(place: Place) -> None:
    """Many partitions, each with a history of its own; some have a row too few, too many, or in the wrong place."""
    rng = random.Random(5)
    ends = {partition: rng.randint(0, 5) for partition in range(300)}
    wrong = set()
    for name in ("a", "b", "c"):
        accounts = []
        for partition, start in ends.items():
            ends[partition] = end = start + rng.randint(0, 12)
            parts: Counter[str] = Counter()
            for offset in range(start, end):
                part = rng.choice(["written", "written", "quarantined", "absent", "filtered"])
                parts[part] += 1
                fits = {"written": [1, 0], "quarantined": [0, 1]}.get(part, [0, 0])
                there = rng.choices([fits, [0, 0], [1, 0], [0, 1], [1, 1], [2, 0], [0, 2]], [400, 1, 1, 1, 1, 1, 1])[0]
                wrong |= {partition} if there != fits else set()
                for table, copies in zip((place.sink, place.quarantine), there, strict=True):
                    table += rows(name, *[offset] * copies, partition=partition)
            if parts:
                accounts.append(split(start, end, partition, **parts))
        place.commit(name, *accounts)
    found = place.found()
    assert {partition for partition in ends if any(f"t-{partition} " in problem for problem in found)} == wrong
    assert 20 < len(wrong) < 100


def test_audit_covers_count_and_cut_like_sets() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        ranges = [span(a, a + rng.randint(0, 6)) for a in rng.choices(range(16), k=rng.randint(0, 6))]
        start = rng.randint(0, 16)
        asked = span(start, start + rng.randint(0, 12))
        inside = {o for r in ranges for o in range(r.start, r.end)} & set(range(asked.start, asked.end))
        cover = Cover(ranges)
        assert cover.length(asked.start, asked.end) == len(inside)
        for found, there in (
            (cover.cut(asked), inside),
            (cover.holes(asked), {*range(asked.start, asked.end)} - inside),
        ):
            assert {o for r in found for o in range(r.start, r.end)} == there
