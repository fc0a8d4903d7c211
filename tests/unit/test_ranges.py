"""Ranges and their split."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import pairwise

import pytest

from sluice.ranges import (
    Counts,
    LostRange,
    OffsetRange,
    RangeAccount,
    describe,
    overlaps,
    ranges_between,
    runs_of,
    subtract,
)


def test_a_range_knows_its_length_and_reads_as_its_bounds() -> None:
    span = OffsetRange("t", 3, 10, 14)
    assert len(span) == 4
    assert str(span) == "t-3 [10, 14)"


@pytest.mark.parametrize(("start", "end"), [(-1, 4), (5, 4)])
def test_what_runs_backwards_is_no_range(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="not a range"):
        OffsetRange("t", 0, start, end)


def test_an_account_that_balances_survives_its_own_form() -> None:
    account = RangeAccount(OffsetRange("t", 0, 5, 20), Counts(1, 2, 3, 4, 5))
    assert account.counts.planned == 15
    assert RangeAccount.from_dict(account.as_dict()) == account


@pytest.mark.parametrize(
    "counts",
    [
        Counts(written=9),
        Counts(written=11),
        Counts(written=5, filtered=4),
        Counts(written=11, filtered=-1),
        Counts(written=11, lost=-1),
        Counts(),
    ],
)
def test_an_account_that_does_not_balance_cannot_be_made(counts: Counts) -> None:
    span = OffsetRange("t", 0, 0, 10)
    with pytest.raises(ValueError, match=r"t-0 \[0, 10\) does not balance"):
        RangeAccount(span, counts)
    with pytest.raises(ValueError, match="does not balance"):
        RangeAccount.from_dict(
            {"topic": "t", "partition": 0, "start": 0, "end": 10, "written": counts.written,
             "filtered": counts.filtered, "quarantined": 0, "absent": 0, "lost": counts.lost}
        )  # fmt: skip


def test_counts_add_up_part_by_part() -> None:
    total = sum((Counts(1, 2, 3, 4, 5), Counts(10, 20, 30, 40, 50)), Counts())
    assert total.as_dict() == {
        "planned": 165, "written": 11, "filtered": 22, "quarantined": 33, "absent": 44, "lost": 55,
    }  # fmt: skip


def test_ranges_between_leave_out_what_did_not_move_and_begin_a_new_partition_at_its_beginning() -> None:
    start = {"a": {0: 5, 1: 7}}
    end = {"b": {0: 2}, "a": {0: 9, 1: 7, 2: 3}}
    assert ranges_between(start, end) == [
        OffsetRange("a", 0, 5, 9), OffsetRange("a", 2, 0, 3), OffsetRange("b", 0, 0, 2),
    ]  # fmt: skip


def test_a_long_list_of_ranges_is_cut_and_says_how_much_is_left_out() -> None:
    ranges = [OffsetRange("t", p, 0, 1) for p in range(10)]
    assert describe(ranges[:1]) == "t-0 [0, 1)"
    assert describe(ranges).endswith("t-7 [0, 1) and 2 more")


# --- arithmetic ----------------------------------------------------------------------------------------------------


def offsets(ranges: Iterable[OffsetRange]) -> list[tuple[str, int, int]]:
    return [(r.topic, r.partition, offset) for r in ranges for offset in range(r.start, r.end)]


def spans(chance: random.Random, most: int) -> list[OffsetRange]:
    """Ranges of two topics with two partitions each, none of them empty; those of one partition may overlap."""
    starts = [(chance.choice("ab"), chance.randrange(2), chance.randrange(30)) for _ in range(chance.randint(0, most))]
    return [OffsetRange(t, p, start, start + chance.randint(1, 12)) for t, p, start in starts]


def apart(chance: random.Random) -> list[OffsetRange]:
    """Such ranges in any order, none overlapping another."""
    kept: list[OffsetRange] = []
    for span in spans(chance, 8):
        if not any(span.cut(other) for other in kept):
            kept.append(span)
    return kept


def test_two_ranges_have_in_common_what_lies_in_both() -> None:
    span = OffsetRange("t", 0, 10, 20)
    assert span.cut(OffsetRange("t", 0, 5, 12)) == OffsetRange("t", 0, 10, 12)
    assert span.cut(OffsetRange("t", 0, 12, 15)) == OffsetRange("t", 0, 12, 15)
    assert span.cut(OffsetRange("t", 0, 0, 99)) == span
    for other in (OffsetRange("t", 1, 10, 20), OffsetRange("u", 0, 10, 20)):
        assert span.cut(other) is None
    for start, end in ((0, 10), (20, 30), (15, 15)):  # a neighbour has nothing in common, nor has nothing itself
        assert span.cut(OffsetRange("t", 0, start, end)) is None
        assert OffsetRange("t", 0, start, end).cut(span) is None


def test_what_is_subtracted_is_gone_and_nothing_else() -> None:
    for seed in range(500):
        chance = random.Random(seed)
        ranges, holes = apart(chance), spans(chance, 8)
        rest = subtract(ranges, holes)
        gone = set(offsets(holes))
        assert offsets(rest) == [o for o in offsets(sorted(ranges)) if o not in gone]
        assert all(len(r) for r in rest)


def test_many_ranges_and_holes_take_no_time() -> None:
    ranges = [OffsetRange("t", p, n * 10, n * 10 + 8) for p in range(4) for n in range(5_000)]
    holes = [OffsetRange("t", p, n * 10 + 2, n * 10 + 3) for p in range(4) for n in range(5_000)]
    assert sum(map(len, subtract(ranges, holes))) == 4 * 5_000 * 7  # one with all others: minutes
    assert len(overlaps(ranges, holes)) == 4 * 5_000


def test_overlaps_and_the_rest_make_the_whole() -> None:
    for seed in range(500):
        chance = random.Random(seed)
        ranges, others = apart(chance), apart(chance)
        common = overlaps(ranges, others)
        assert sorted(offsets(common)) == sorted(set(offsets(ranges)) & set(offsets(others)))
        assert common == sorted(common)
        assert common == overlaps(others, ranges)
        assert sorted(offsets(subtract(ranges, common)) + offsets(common)) == sorted(offsets(ranges))


def test_offsets_become_ranges_and_ranges_become_the_same_offsets() -> None:
    assert runs_of("t", 3, []) == []
    assert runs_of("t", 3, [7]) == [OffsetRange("t", 3, 7, 8)]
    assert runs_of("t", 3, iter([1, 2, 3, 5, 9, 10])) == [
        OffsetRange("t", 3, 1, 4), OffsetRange("t", 3, 5, 6), OffsetRange("t", 3, 9, 11),
    ]  # fmt: skip
    for seed in range(200):
        chance = random.Random(seed)
        numbers = sorted(chance.sample(range(60), chance.randint(0, 60)))
        ranges = runs_of("t", 0, numbers)
        assert [o for _, _, o in offsets(ranges)] == numbers
        assert all(a.end < b.start for a, b in pairwise(ranges)), "neighbours are one range"


@pytest.mark.parametrize("topic", ["flights", "a:b", "with-dash", "with.dots_and-1"])
def test_a_range_is_read_as_it_is_written_on_a_command_line(topic: str) -> None:
    assert OffsetRange.parse(f"{topic}:3:10-20") == OffsetRange(topic, 3, 10, 20)


@pytest.mark.parametrize(
    "text",
    ["", "t", "t:0", "t:0:5", "t:0:5-", "t:0:-5", "t:0:9-5", "t:x:1-2", "t:0:1-2-3", "t:0:a-b", "t-0:1-2", ":0:1"],
)
def test_what_is_no_range_is_refused_with_the_right_form(text: str) -> None:
    with pytest.raises(ValueError, match="write TOPIC:PARTITION:START-END"):
        OffsetRange.parse(text)


@pytest.mark.parametrize("sample", [None, {"offset": 3, "key": None, "value": "\\x00"}])
def test_a_lost_range_survives_its_own_form(sample: dict[str, object] | None) -> None:
    lost = LostRange(OffsetRange("t", 1, 3, 4), "it died", sample)
    assert LostRange.from_dict(lost.as_dict()) == lost
