"""Wrongs are planted in the tables; each must be found and named by its range."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.fixtures.books import Place, Row, rows, split

from sluice.audit import deep, sieve


def without(found: list[Row], *offsets: int, partition: int = 0) -> list[Row]:
    left = [row for row in found if row[1] != partition or row[2] not in offsets]
    assert len(left) == len(found) - len(offsets)
    return left


IN_THE_TABLES: dict[str, tuple[Callable[[Place], Any], list[str]]] = {
    "a doubled row": (
        lambda p: p.sink.extend(rows("a", 5)),
        ["t-0 [5, 6) stands more than once in the sink"],
    ),
    "rows that stand three times": (
        lambda p: p.sink.extend(rows("b", 10, 11, 11, 10)),
        ["t-0 [10, 12) stands more than once in the sink"],
    ),
    "a doubled row of the quarantine": (
        lambda p: p.quarantine.extend(rows("a", 3)),
        ["t-0 [3, 4) stands more than once in the quarantine"],
    ),
    "rows behind the position": (
        lambda p: p.sink.extend(rows("b", 20, 21, 30)),
        ["t-0 [20, 22), t-0 [30, 31) is in the sink, but no account covers it"],
    ),
    "rows of strange partitions": (
        lambda p: p.quarantine.extend([("t", 7, 0, "a"), ("other", 0, 4, "a")]),
        [
            "other-0 [4, 5) is in the quarantine, but no account covers it",
            "t-7 [0, 1) is in the quarantine, but no account covers it",
        ],
    ),
    "rows without an offset": (
        lambda p: p.sink.extend([("t", 0, None, "a"), (None, 0, 3, "a"), ("t", None, 3, "a")]),
        ["3 rows of the sink have no offset"],
    ),
    "a missing row": (
        lambda p: p.__setattr__("sink", without(p.sink, 6, partition=1)),
        [
            "t-1 [6, 7) is missing: it was written or quarantined, and is in neither table",
            "of t-1 [5, 8) the ledger counts 3 offsets as written, the sink holds 2",
        ],
    ),
    "a missing row where others are absent": (
        lambda p: p.__setattr__("sink", without(p.sink, 5)),
        ["of t-0 [0, 10) the ledger counts 7 offsets as written, the sink holds 6"],
    ),
    "a missing row that was redriven": (
        lambda p: p.__setattr__("sink", without(p.sink, 16, 4)),
        [
            "t-0 [4, 5) is missing: it was written or quarantined, and is in neither table",
            "of t-0 [16, 19) the ledger counts 1 offsets as written, the sink holds 0",
            "of t-0 [4, 5) the ledger counts 1 offsets as written, the sink holds 0",
        ],
    ),
    "a missing record of the quarantine": (
        lambda p: p.quarantine.clear(),
        ["of t-0 [0, 10) the ledger counts 1 offsets as quarantined, the quarantine holds 0"],
    ),
    "a redriven record that is still in the quarantine": (
        lambda p: p.quarantine.extend(rows("c", 17)),
        [
            "t-0 [17, 18) is in the sink and in the quarantine",
            "t-0 [17, 18) is in the quarantine, by another run than the ledger names",
            "of t-0 [17, 18) the ledger counts 0 offsets as quarantined, the quarantine holds 1",
        ],
    ),
    "an offset in sink and quarantine": (
        lambda p: p.quarantine.extend(rows("a", 8)),
        [
            "t-0 [8, 9) is in the sink and in the quarantine",
            "of t-0 [0, 10) the ledger counts 1 offsets as quarantined, the quarantine holds 2",
        ],
    ),
    "a row of an absent offset": (
        lambda p: p.sink.extend(rows("a", 9)),
        ["of t-0 [0, 10) the ledger counts 7 offsets as written, the sink holds 8"],
    ),
    "a row inside an open lost range": (
        lambda p: p.sink.extend(rows("b", 19)),
        ["t-0 [19, 20) is in the sink, but is open as lost"],
    ),
    "a refused record inside an open lost range": (
        lambda p: p.quarantine.extend(rows("b", 15)),
        ["t-0 [15, 16) is in the quarantine, but is open as lost"],
    ),
    "rows of another run": (
        lambda p: p.__setattr__("sink", [*without(p.sink, 11, 12), *rows("a", 11), *rows("nobody", 12)]),
        ["t-0 [11, 13) is in the sink, by another run than the ledger names"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("stretch", [1 << 28, 7])
@pytest.mark.parametrize("wrong", IN_THE_TABLES)
def test_a_wrong_in_the_tables_is_named_by_its_range(
    story: Place, monkeypatch: pytest.MonkeyPatch, wrong: str, stretch: int
) -> None:
    monkeypatch.setattr(deep, "_STRETCH", stretch)
    monkeypatch.setattr(sieve, "_BLOCK", 4 if stretch == 7 else 1 << 22)
    plant, problems = IN_THE_TABLES[wrong]
    plant(story)
    assert sorted(story.found()) == sorted(problems)


def test_very_many_wrongs_are_counted(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sieve, "_BLOCK", 512)
    place.commit("a", split(0, 4000, written=2000, absent=2000))
    place.sink = [*rows("a", *range(0, 4000, 2)) * 2, *rows("a", *range(5000, 6040))]
    found = place.found()
    assert found[0] == "t-0 [0, 1) stands more than once in the sink"
    assert found[1000] == "what stands more than once in the sink: 1,000 more"
    assert found[1001] == "1,040 rows of the sink lie within t-0 [5000, 6040), but no account covers them"
    assert len(found) == 1002


def test_random_tables_are_judged_as_a_slow_oracle_judges_them(place: Place) -> None:
    """Many partitions, each with a history of its own; some have a row too few, too many, or in the wrong place."""
    rng = random.Random(5)
    ends = {partition: rng.randint(0, 5) for partition in range(300)}
    wrong = set()
    for run in ("a", "b", "c"):
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
                    table += rows(run, *[offset] * copies, partition=partition)
            if parts:
                accounts.append(split(start, end, partition, **parts))
        place.commit(run, *accounts)
    found = place.found()
    assert {partition for partition in ends if any(f"t-{partition} " in problem for problem in found)} == wrong
    assert 20 < len(wrong) < 100
