"""Ranges and their split, and profiles of rows that add up."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable
from itertools import pairwise

import pytest

from sluice.facts.profile import NO_ROWS, SKETCH, ColumnProfile, Profile
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


def test_range_account_and_loss_survive_their_dicts() -> None:
    account = RangeAccount(OffsetRange("t", 3, 10, 25), Counts(1, 2, 3, 4, 5))
    assert (len(account.range), str(account.range), account.counts.planned) == (15, "t-3 [10, 25)", 15)
    assert RangeAccount.from_dict(account.as_dict()) == account
    for sample in (None, {"offset": 3, "key": None, "value": "\\x00"}):
        lost = LostRange(OffsetRange("t", 1, 3, 4), "it died", sample)
        assert LostRange.from_dict(lost.as_dict()) == lost
    for start, end in ((-1, 4), (5, 4)):
        with pytest.raises(ValueError, match="range"):
            OffsetRange("t", 0, start, end)
    assert Counts(1, 2, 3, 4, 5) + Counts(10, 20, 30, 40, 50) == Counts(11, 22, 33, 44, 55)


@pytest.mark.parametrize(
    "counts",
    [Counts(written=9), Counts(written=11), Counts(5, 4), Counts(11, -1), Counts(written=11, lost=-1), Counts()],
)
def test_range_account_that_does_not_balance_is_refused(counts: Counts) -> None:
    span = {"topic": "t", "partition": 0, "start": 0, "end": 10}
    with pytest.raises(ValueError, match=r"t-0 \[0, 10\)"):
        RangeAccount(OffsetRange(**span), counts)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="balance"):
        RangeAccount.from_dict(span | counts.as_dict())


def test_ranges_between_positions() -> None:
    start = {"a": {0: 5, 1: 7}}
    end = {"b": {0: 2}, "a": {0: 9, 1: 7, 2: 3}}
    assert ranges_between(start, end) == [
        OffsetRange("a", 0, 5, 9), OffsetRange("a", 2, 0, 3), OffsetRange("b", 0, 0, 2),
    ]  # fmt: skip


def test_ranges_in_a_long_list_are_cut() -> None:
    ranges = [OffsetRange("t", p, 0, 1) for p in range(10)]
    assert describe(ranges[:1]) == "t-0 [0, 1)"
    assert describe(ranges).endswith("t-7 [0, 1) and 2 more")


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


def test_range_has_nothing_in_common_with_an_empty_one() -> None:
    span, empty = OffsetRange("t", 0, 10, 20), OffsetRange("t", 0, 15, 15)
    assert (span.cut(span), span.cut(empty), empty.cut(span)) == (span, None, None)


def test_ranges_are_compared_fast_when_they_are_many() -> None:
    ranges = [OffsetRange("t", p, n * 10, n * 10 + 8) for p in range(4) for n in range(1_000)]
    holes = [OffsetRange("t", p, n * 10 + 2, n * 10 + 3) for p in range(4) for n in range(1_000)]
    assert sum(map(len, subtract(ranges, holes))) == 4 * 1_000 * 7  # one with all others: too slow
    assert len(overlaps(ranges, holes)) == 4 * 1_000


def test_ranges_overlap_and_are_subtracted_like_sets() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        ranges, others, holes = apart(chance), apart(chance), spans(chance, 8)
        common, rest, gone = overlaps(ranges, others), subtract(ranges, holes), set(offsets(holes))
        assert common == sorted(common) == overlaps(others, ranges)
        assert sorted(offsets(common)) == sorted(set(offsets(ranges)) & set(offsets(others)))
        assert offsets(rest) == [o for o in offsets(sorted(ranges)) if o not in gone]
        assert all(len(r) for r in (*common, *rest))


def test_ranges_of_runs_of_offsets() -> None:
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


def test_range_of_a_command_line_is_parsed_or_refused() -> None:
    for topic in ("flights", "a:b", "with-dash", "with.dots_and-1"):
        assert OffsetRange.parse(f"{topic}:3:10-20") == OffsetRange(topic, 3, 10, 20)
    wrong = "|t|t:0|t:0:5|t:0:5-|t:0:-5|t:0:9-5|t:x:1-2|t:0:1-2-3|t:0:a-b|t-0:1-2|:0:1"
    for text in wrong.split("|"):
        with pytest.raises(ValueError, match="TOPIC:PARTITION:START-END"):
            OffsetRange.parse(text)


def numbers(*values: float | None) -> ColumnProfile:
    there = [v for v in values if v is not None]
    ends = ("number", min(there), max(there)) if there else (None, None, None)
    return ColumnProfile(len(values), len(values) - len(there), *ends, sum(there), len(there))


def test_profile_columns_add_up_in_any_order() -> None:
    parts = [numbers(1, None, 9), numbers(None, None), numbers(-3.5)]
    for order in (parts, parts[::-1]):
        whole = order[0] | order[1] | order[2]
        assert whole == numbers(1, None, 9, None, None, -3.5)
        assert (whole.null_share, whole.mean) == (0.5, 6.5 / 3)


def test_profile_compares_decimals_as_numbers() -> None:
    nine, ten = (ColumnProfile(1, 0, "decimal", value, value) for value in ("9.50", "10.00"))
    assert ((nine | ten).low, (nine | ten).high) == ("9.50", "10.00")
    assert (nine | ten).end("high") == 10.0


def test_profile_with_an_unknown_part_is_unknown() -> None:
    blind = ColumnProfile(2, 0)  # values, but no ends
    assert (numbers(1, 2) | blind) == ColumnProfile(4, 0)
    assert (numbers(1, 2) | ColumnProfile(2)).nulls is None
    widened = numbers(1) | ColumnProfile(1, 0, "decimal", "2", "2")
    assert (widened.kind, widened.low) == (None, None)


def test_profile_of_a_later_column_has_fewer_rows() -> None:
    whole = Profile(5, {"a": numbers(1, 2, 3, 4, 5)}) | Profile(2, {"a": numbers(6, 7), "b": numbers(1, None)})
    assert (whole.rows, whole.columns["a"].rows, whole.columns["b"].rows) == (7, 7, 2)
    assert whole.columns["b"].null_share == 0.5
    assert Profile.from_dict(json.loads(json.dumps(whole.as_dict()))) == whole
    assert Profile.from_dict(NO_ROWS.as_dict()) == NO_ROWS


def sketch(hashes: list[int]) -> ColumnProfile:
    return ColumnProfile(len(hashes), 0, sketch=tuple(sorted(set(hashes))[:SKETCH]))


def test_profile_counts_few_distinct_values_and_estimates_many() -> None:
    chance = random.Random(7)
    hashes = [chance.getrandbits(64) for _ in range(50_000)]
    assert (sketch(hashes[:30]) | sketch(hashes[10:40])).distinct == 40
    both = sketch(hashes[:30_000]) | sketch(hashes[20_000:])
    assert both.distinct == pytest.approx(50_000, rel=4 / math.sqrt(SKETCH - 2))
    assert not both.exact
    assert sketch(hashes[:3]).exact
    assert ColumnProfile.from_dict(both.as_dict(), 60_000) == both
