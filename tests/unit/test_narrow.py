"""The search for what a batch dies of: exact, frugal, and never more than what fails; no JVM, no broker."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence

import pytest

from sluice.ranges import LostRange, OffsetRange, subtract
from sluice_spark.strategies.ignore import narrow

Offset = tuple[str, int, int]
Trial = Callable[[Sequence[OffsetRange]], str | None]

SEEDS = range(100)


def offsets(ranges: Iterable[OffsetRange]) -> set[Offset]:
    return {(r.topic, r.partition, offset) for r in ranges for offset in range(r.start, r.end)}


class Trials:
    """A batch in which some offsets are poison: a trial of ranges that hold one fails."""

    def __init__(self, poison: Iterable[Offset], reason: str = "poison") -> None:
        self.poison = set(poison)
        self.reason = reason
        self.made: list[set[Offset]] = []

    def __call__(self, part: Sequence[OffsetRange]) -> str | None:
        here = offsets(part)
        assert len(here) == sum(map(len, part)), "an offset is tried once in a trial"
        assert here, "nothing is tried"
        self.made.append(here)
        return self.reason if here & self.poison else None


def batch(chance: random.Random, largest: int = 400) -> list[OffsetRange]:
    """Ranges of one to five partitions of two topics, in any order; sometimes a partition has several."""
    ranges: list[OffsetRange] = []
    for number in range(chance.randint(1, 5)):
        start = chance.randint(0, 1000)
        for _ in range(chance.choice([1, 1, 1, 3])):
            end = start + chance.randint(1, largest)
            ranges.append(OffsetRange(chance.choice("ab") + str(number), number, start, end))
            start = end + chance.randint(1, 9)
    chance.shuffle(ranges)
    return ranges


def some(chance: random.Random, ranges: Sequence[OffsetRange], most: int) -> set[Offset]:
    everything = sorted(offsets(ranges))
    return set(chance.sample(everything, min(len(everything), chance.randint(1, most))))


def lost(found: Iterable[LostRange]) -> set[Offset]:
    return offsets(item.range for item in found)


def test_exactly_the_failing_offsets_are_found() -> None:
    for seed in SEEDS:
        chance = random.Random(seed)
        ranges = batch(chance)
        trials = Trials(some(chance, ranges, 12))
        found = narrow(trials, ranges, 10_000)
        assert lost(found) == trials.poison
        assert [item.range for item in found] == sorted(item.range for item in found)
        assert {item.reason for item in found} == {"poison"}


def test_a_stretch_of_failing_neighbours_is_one_range() -> None:
    for seed in SEEDS:
        chance = random.Random(seed)
        ranges = batch(chance)
        whole = chance.choice(ranges)
        start = chance.randint(whole.start, whole.end - 1)
        bad = OffsetRange(whole.topic, whole.partition, start, chance.randint(start + 1, whole.end))
        trials = Trials(offsets([bad]))
        assert [item.range for item in narrow(trials, ranges, 10_000)] == [bad]


def test_neighbours_that_fail_for_other_reasons_stay_apart() -> None:
    reasons = {3: "three", 4: "four", 5: "four"}

    def dies(part: Sequence[OffsetRange]) -> str | None:
        return next((reasons[n] for _, _, n in sorted(offsets(part)) if n in reasons), None)

    found = narrow(dies, [OffsetRange("t", 0, 0, 8)])
    assert found == [LostRange(OffsetRange("t", 0, 3, 4), "three"), LostRange(OffsetRange("t", 0, 4, 6), "four")]


def test_everything_fails() -> None:
    ranges = [OffsetRange("t", 0, 5, 9), OffsetRange("t", 1, 0, 3)]
    assert [item.range for item in narrow(Trials(offsets(ranges)), ranges)] == ranges


def test_a_failure_that_passes_loses_nothing() -> None:
    """The first trials fail, whatever they are of; then all is well again."""
    for seed in SEEDS:
        chance = random.Random(seed)
        ranges = batch(chance)
        for failures in range(6):
            left = [failures]

            def flickers(part: Sequence[OffsetRange], left: list[int] = left) -> str | None:
                left[0] -= 1
                return "flicker" if left[0] >= 0 and sum(map(len, part)) > 1 else None

            assert narrow(flickers, ranges) == []


def too_large(limit: int) -> Trial:
    return lambda part: "too large" if sum(map(len, part)) > limit else None


def clash(pair: set[Offset]) -> Trial:
    return lambda part: "clash" if pair <= offsets(part) else None


def test_what_fails_only_together_is_nobodys_fault() -> None:
    """No offset is lost that passes when it is tried alone: too many at once, or two that do not get along."""
    for seed in SEEDS:
        chance = random.Random(seed)
        ranges = batch(chance)
        size = sum(map(len, ranges))
        assert narrow(too_large(chance.randint(1, size)), ranges, 10_000) == []
        pair = set(chance.sample(sorted(offsets(ranges)), 2)) if size > 1 else {("", 0, 0)}
        assert narrow(clash(pair), ranges, 10_000) == []


def test_failures_at_random_lose_only_what_failed_when_it_was_tried_alone() -> None:
    for seed in SEEDS:
        chance = random.Random(seed)
        alone: set[Offset] = set()

        def dies(part: Sequence[OffsetRange], chance: random.Random = chance, alone: set[Offset] = alone) -> str | None:
            if chance.random() < 0.3:
                return None
            alone |= offsets(part) if sum(map(len, part)) == 1 else set()
            return "chance"

        assert lost(narrow(dies, batch(chance, 60), 100_000)) <= alone


@pytest.mark.parametrize("partitions", [1, 2, 7, 500])
def test_one_record_costs_about_log2_of_the_batch_whatever_its_partitions(partitions: int) -> None:
    total = 100_000
    chance = random.Random(partitions)
    size = total // partitions
    ranges = [OffsetRange("t", p, 10, 10 + size) for p in range(partitions)]
    for _ in range(50):
        poison = ("t", chance.randrange(partitions), chance.randrange(10, 10 + size))
        count = 0

        def dies(part: Sequence[OffsetRange], poison: Offset = poison) -> str | None:
            nonlocal count
            count += 1
            return "x" if any(r.partition == poison[1] and r.start <= poison[2] < r.end for r in part) else None

        (found,) = narrow(dies, ranges)
        assert (found.range.partition, found.range.start, len(found.range)) == (*poison[1:], 1)
        assert count <= math.ceil(math.log2(total)) + 3


@pytest.mark.parametrize("poisons", [2, 3, 5, 8, 20])
def test_each_further_record_costs_about_as_much(poisons: int) -> None:
    total = 4096
    for seed in range(20):
        chance = random.Random(seed)
        trials = Trials(("t", 0, n) for n in chance.sample(range(total), poisons))
        assert lost(narrow(trials, [OffsetRange("t", 0, 0, total)], 10_000)) == trials.poison
        assert len(trials.made) <= 1.6 * poisons * (math.log2(total / poisons) + 2) + 10


@pytest.mark.parametrize("budget", [0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 160])
def test_when_the_budget_ends_all_that_fails_is_covered_by_what_failed(budget: int) -> None:
    for seed in range(60):
        chance = random.Random(seed)
        ranges = batch(chance)
        trials = Trials(some(chance, ranges, 200))
        found = narrow(trials, ranges, budget)
        assert len(trials.made) <= max(1, budget)
        assert trials.poison <= lost(found) <= offsets(ranges)
        for offset in lost(found):
            last = next(part for part in reversed(trials.made) if offset in part)
            assert last & trials.poison, "what is given up failed when it was tried last"


def test_a_larger_budget_loses_no_more() -> None:
    for seed in range(20):
        chance = random.Random(seed)
        ranges = [OffsetRange("t", p, 0, 1000) for p in range(3)]
        poison = some(chance, ranges, 40)
        sizes = [len(lost(narrow(Trials(poison), ranges, budget))) for budget in (1, 160, 10_000)]
        assert sizes[0] == 3000
        assert sizes[0] >= sizes[1] >= sizes[2] == len(poison)
        assert sizes[1] < 3000 or len(poison) > 30


def test_without_a_budget_the_batch_is_tried_once_and_is_lost_as_it_is() -> None:
    ranges = [OffsetRange("t", 1, 0, 9), OffsetRange("t", 0, 4, 9)]
    trials = Trials([("t", 1, 3)])
    assert [item.range for item in narrow(trials, ranges, 0)] == sorted(ranges)
    assert len(trials.made) == 1
    assert narrow(Trials([]), ranges, 0) == []


def test_what_is_left_and_what_is_lost_make_the_batch() -> None:
    chance = random.Random(7)
    ranges = batch(chance)
    trials = Trials(some(chance, ranges, 9))
    found = [item.range for item in narrow(trials, ranges)]
    assert offsets(subtract(ranges, found)) == offsets(ranges) - trials.poison


def test_trouble_of_another_kind_ends_the_search() -> None:
    def dies(part: Sequence[OffsetRange]) -> str | None:
        if sum(map(len, part)) < 4:
            raise ConnectionError("the broker is down")
        return "x"

    with pytest.raises(ConnectionError):
        narrow(dies, [OffsetRange("t", 0, 0, 64)])
