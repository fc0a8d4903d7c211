"""What a batch dies of is searched for, exactly and frugally; what is given up then, and what never is."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from sluice.errors import (
    ConfigError,
    LeaseHeldError,
    OffsetsGoneError,
    SinkError,
    SluiceError,
    SourceUnreachableError,
    TopicRecreatedError,
)
from sluice.ledger.store import LedgerError
from sluice.ranges import LostRange, OffsetRange, describe, subtract
from sluice.recovery import Recovery
from sluice_spark.batch.account import PromiseError
from sluice_spark.engine.failures import EngineError, classify
from sluice_spark.sources.kafka import SIGNS
from sluice_spark.strategies import ignore
from sluice_spark.strategies.base import Batch
from sluice_spark.strategies.ignore import Ignoring, narrow
from sluice_spark.transforms.lookups import NO_LOOKUPS, Lookups

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


# --- what is given up ----------------------------------------------------------------------------------------------

BATCH = [OffsetRange("t", 0, 0, 10), OffsetRange("t", 1, 0, 10)]


Trouble = Callable[[int], Exception | None]


def places(ranges: Iterable[OffsetRange]) -> set[tuple[int, int]]:
    return {(r.partition, offset) for r in ranges for offset in range(r.start, r.end)}


@dataclass
class World:
    """A broker, a Spark and a sink, all of them pretended: ``Records``, ``BatchWriter`` and session in one."""

    poison: set[tuple[int, int]] = field(default_factory=set)
    start: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0})
    """Where the log of each partition starts."""
    writing: Trouble = lambda _: None
    """What the nth attempt at writing a batch dies of."""
    reading: Trouble = lambda _: None
    """What the nth trial of anything dies of, before records are looked at."""
    spark_is_dead: bool = False
    lookups: Lookups = NO_LOOKUPS
    written: set[tuple[int, int]] | None = None
    attempts: int = 0
    trials: int = 0

    # --- records

    def read(self, ranges: Sequence[OffsetRange]) -> Any:
        return ranges

    def missing(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        below = [OffsetRange("t", p, 0, start) for p, start in self.start.items()]
        return ignore.overlaps(ranges, below)

    def verify(self, read: Mapping[tuple[str, int], int], ranges: Sequence[OffsetRange]) -> None:
        raise AssertionError("is the writer's to call")

    def diagnose(self, error: Exception, ranges: Sequence[OffsetRange]) -> SluiceError:
        return classify(error, lambda: None, SIGNS)

    # --- writer

    def prepare(self, frame: Any, name: str, ranges: Any, source: Any, lost: Sequence[LostRange]) -> Any:
        self.attempts += 1
        if frame is None:
            frame = self.read(subtract(ranges, [item.range for item in lost]))
        self.process(BATCH if frame == "frame" else frame)
        if (error := self.writing(self.attempts)) is not None:
            raise error
        self.written = places(BATCH if frame == "frame" else frame)
        return list(lost)

    def give_up(self, ranges: Sequence[OffsetRange], lost: Sequence[LostRange]) -> Any:
        self.written = set()
        return list(lost)

    def process(self, ranges: Sequence[OffsetRange]) -> None:
        if self.spark_is_dead:
            raise RuntimeError("Answer from Java side is empty")
        if gone := self.missing(ranges):
            raise OffsetsGoneError(f"dropped: {describe(gone)}", ranges=gone)
        if dead := sorted(places(ranges) & self.poison):
            raise RuntimeError(f"poison: {dead[0]}")

    # --- session: a job without any records

    def range(self, _: int) -> Any:
        if self.spark_is_dead:
            raise RuntimeError("the Java server does not answer")
        return self

    def __getattr__(self, name: str) -> Any:  # write.format("noop").mode("overwrite").save()
        if name in ("write", "format", "mode", "save"):
            return self
        raise AttributeError(name)

    def __call__(self, *_: Any) -> Any:
        return self


@pytest.fixture(autouse=True)
def pretended_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies_of(world: World, _: World, ranges: Sequence[OffsetRange], typed: Any) -> str | None:
        world.trials += 1
        try:
            if (error := world.reading(world.trials)) is not None:
                raise error
            world.process(ranges)
        except Exception as error:
            failure = typed(error)
            if not ignore.can_be_ignored(failure):
                raise failure from error
            return failure.what
        return None

    monkeypatch.setattr(ignore, "dies_of", dies_of)
    monkeypatch.setattr(ignore, "_sample", lambda *_: None)


def prepare(world: World, strategy: Recovery = Recovery.IGNORE_RANGE) -> list[LostRange]:
    batch = Batch("e1-000000", tuple(BATCH), world, "frame", world)  # type: ignore[arg-type]
    lost: list[LostRange] = Ignoring(strategy).prepare(world, batch)  # type: ignore[arg-type,assignment]
    assert world.written is not None
    assert not world.written & places(item.range for item in lost), "both lost and written"
    assert world.written | places(item.range for item in lost) == places(BATCH)
    return lost


def spans(lost: Sequence[LostRange]) -> list[tuple[int, int, int]]:
    return [(item.range.partition, item.range.start, item.range.end) for item in lost]


WHOLE = [(0, 0, 10), (1, 0, 10)]


EACH = pytest.mark.parametrize("strategy", [Recovery.IGNORE_RANGE, Recovery.IGNORE_BATCH])


@EACH
def test_a_batch_that_goes_through_is_not_looked_at(strategy: Recovery) -> None:
    world = World()
    assert prepare(world, strategy) == []
    assert (world.attempts, world.trials) == (1, 0)


def test_poison_and_what_is_gone_are_lost_each_for_its_reason() -> None:
    lost = prepare(World(poison={(0, 3), (1, 7), (1, 8)}, start={0: 2, 1: 0}))
    assert spans(lost) == [(0, 0, 2), (0, 3, 4), (1, 7, 8), (1, 8, 9)]
    assert "gone from the source" in lost[0].reason
    assert [item.reason.rpartition("poison: ")[2] for item in lost[1:]] == ["(0, 3)", "(1, 7)", "(1, 8)"]


def test_a_batch_is_lost_as_a_whole_whatever_fails_in_it() -> None:
    assert spans(prepare(World(poison={(1, 7)}), Recovery.IGNORE_BATCH)) == WHOLE
    world = World(start={0: 1, 1: 0})
    assert spans(prepare(world, Recovery.IGNORE_BATCH)) == WHOLE
    assert world.attempts == 0, "what is known to be gone is not read first"


def test_what_is_dropped_while_the_poison_is_looked_for_is_no_poison() -> None:
    world = World(poison={(1, 7)})

    def drop(trial: int) -> None:
        if trial == 3:
            world.start[0] = 6

    world.reading = drop
    lost = prepare(world)
    assert spans(lost) == [(0, 0, 6), (1, 7, 8)]
    assert "dropped" in lost[0].reason


@EACH
def test_a_failure_that_passes_costs_nothing(strategy: Recovery) -> None:
    for times in (1, 2):
        world = World(writing=lambda n, times=times: RuntimeError("a flicker") if n <= times else None)  # type: ignore[misc]
        assert prepare(world, strategy) == []


@EACH
def test_what_only_writing_dies_of_is_not_the_records_fault(strategy: Recovery) -> None:
    world = World(writing=lambda _: RuntimeError("some store said no"))
    with pytest.raises(SluiceError, match="some store said no"):
        prepare(world, strategy)
    assert world.written is None
    assert world.attempts == 3


@EACH
def test_when_spark_itself_is_dead_nothing_is_lost(strategy: Recovery) -> None:
    """A JVM that was killed leaves the Python side alive, for which every record fails from then on."""
    world = World(spark_is_dead=True)
    with pytest.raises(EngineError, match="Spark fails even without these records"):
        prepare(world, strategy)
    assert world.written is None


@EACH
@pytest.mark.parametrize(
    "kind",
    [
        ConfigError, EngineError, LeaseHeldError, LedgerError, PromiseError, SinkError, SourceUnreachableError,
        TopicRecreatedError,
    ],
)  # fmt: skip
def test_trouble_that_is_not_the_records_ends_the_run_as_it_is(strategy: Recovery, kind: type[SluiceError]) -> None:
    for world in (
        World(writing=lambda _: kind("trouble")),
        World(
            poison={(0, 1)}, reading=lambda n: kind("trouble") if n > 1 or strategy is Recovery.IGNORE_BATCH else None
        ),
    ):
        with pytest.raises(kind, match="trouble"):
            prepare(world, strategy)
        assert world.written is None


@EACH
def test_a_reason_can_be_stored_and_shown_whatever_it_quotes(strategy: Recovery) -> None:
    error = RuntimeError("no \x00 \x1b[31m number: ü")
    (first, *_) = prepare(World(reading=lambda _: error, writing=lambda n: error if n == 1 else None), strategy)
    assert first.reason.endswith(r"no \x00 \x1b[31m number: ü")
