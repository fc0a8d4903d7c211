"""Recovery strategies: the error that each gives, the search of ``ignore_range`` for failing records, and losses."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest

from sluice import errors
from sluice.errors import OffsetsGoneError, SluiceError, SourceUnreachableError
from sluice.ledger.store import LedgerError
from sluice.ranges import LostRange, OffsetRange, describe, overlaps, subtract
from sluice.recovery import Recovery
from sluice_spark.batch.account import PromiseError
from sluice_spark.engine.failures import EngineError, classify
from sluice_spark.sources.kafka import SIGNS
from sluice_spark.strategies import ignore
from sluice_spark.strategies.base import Batch
from sluice_spark.strategies.by_name import STRATEGIES
from sluice_spark.strategies.ignore import Ignoring, narrow
from sluice_spark.transforms.lookups import NO_LOOKUPS

FIRST = OffsetRange("t", 0, 0, 5)
ODD = RuntimeError("Caused by: java.lang.NullPointerException")


@pytest.mark.parametrize("recovery", list(Recovery))
def test_strategy_lets_the_source_diagnose_a_failure_unless_it_ignores_it(recovery: Recovery) -> None:
    strategy = STRATEGIES[recovery]
    assert (strategy.recovery, isinstance(strategy, Ignoring)) == (recovery, recovery.ignores)
    if recovery.ignores:
        return
    down = SourceUnreachableError("no broker", next_step="start it")
    writer = mock.Mock(lookups=NO_LOOKUPS, prepare=mock.Mock(side_effect=ODD))
    batch = mock.Mock(ranges=(FIRST,), source=mock.Mock(diagnose=mock.Mock(return_value=down)))
    with pytest.raises(SourceUnreachableError):
        strategy.prepare(writer, batch)
    batch.source.diagnose.assert_called_once_with(ODD, (FIRST,))


Offset = tuple[str, int, int]
Trial = Callable[[Sequence[OffsetRange]], str | None]


def offsets(ranges: Iterable[OffsetRange]) -> set[Offset]:
    return {(r.topic, r.partition, offset) for r in ranges for offset in range(r.start, r.end)}


def lost(found: Iterable[LostRange]) -> set[Offset]:
    return offsets(item.range for item in found)


class Trials:
    """A batch in which some offsets are poison: a trial of ranges that hold one fails."""

    def __init__(self, poison: Iterable[Offset]) -> None:
        self.poison = set(poison)
        self.made: list[set[Offset]] = []

    def __call__(self, part: Sequence[OffsetRange]) -> str | None:
        here = offsets(part)
        assert len(here) == sum(map(len, part)), "an offset is tried once in a trial"
        assert here, "no trial is empty"
        self.made.append(here)
        return "poison" if here & self.poison else None


def batch(chance: random.Random, largest: int = 200) -> list[OffsetRange]:
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


def stretch(chance: random.Random, ranges: Sequence[OffsetRange]) -> set[Offset]:
    whole = chance.choice(ranges)
    start = chance.randint(whole.start, whole.end - 1)
    return offsets([OffsetRange(whole.topic, whole.partition, start, chance.randint(start + 1, whole.end))])


@pytest.mark.parametrize("seed", range(20))
def test_narrow_finds_exactly_the_failing_offsets_in_ranges_as_long_as_can_be(seed: int) -> None:
    chance = random.Random(seed)
    ranges = batch(chance, 60)
    for poison in (some(chance, ranges, 12), stretch(chance, ranges), offsets(ranges)):
        found = narrow(Trials(poison), ranges, 10_000)
        assert lost(found) == poison
        assert {item.reason for item in found} == {"poison"}
        spans = [item.range for item in found]
        assert spans == sorted(spans)
        assert not any((a.topic, a.partition, a.end) == (b.topic, b.partition, b.start) for a, b in pairwise(spans))


def test_narrow_keeps_neighbours_apart_that_fail_for_other_reasons() -> None:
    reasons = {3: "three", 4: "four", 5: "four"}

    def dies(part: Sequence[OffsetRange]) -> str | None:
        return next((reasons[n] for _, _, n in sorted(offsets(part)) if n in reasons), None)

    found = narrow(dies, [OffsetRange("t", 0, 0, 8)])
    assert found == [LostRange(OffsetRange("t", 0, 3, 4), "three"), LostRange(OffsetRange("t", 0, 4, 6), "four")]


def flicker(times: int) -> Trial:
    left = iter(range(times))
    return lambda part: "flicker" if sum(map(len, part)) > 1 and next(left, None) is not None else None


@pytest.mark.parametrize("seed", range(20))
def test_narrow_loses_only_offsets_that_failed_when_they_were_tried_alone(seed: int) -> None:
    """Not those that fail by chance, when there are too many at once, or beside another one."""
    chance = random.Random(seed)
    ranges = batch(chance)
    size = sum(map(len, ranges))
    pair = set(chance.sample(sorted(offsets(ranges)), 2)) if size > 1 else {("", 0, 0)}
    limit = chance.randint(1, size)
    for dies in (
        *map(flicker, range(6)),
        lambda part: "too large" if sum(map(len, part)) > limit else None,
        lambda part: "clash" if pair <= offsets(part) else None,
    ):
        assert narrow(dies, ranges, 10_000) == []
    assert narrow(Trials([]), ranges, 0) == []
    alone: set[Offset] = set()

    def fails_at_random(part: Sequence[OffsetRange]) -> str | None:
        if chance.random() < 0.3:
            return None
        alone.update(offsets(part) if sum(map(len, part)) == 1 else ())
        return "chance"

    assert lost(narrow(fails_at_random, batch(chance, 60), 100_000)) <= alone


@pytest.mark.parametrize(
    ("partitions", "total", "poisons"),
    [(1, 100_000, 1), (2, 100_000, 1), (7, 100_000, 1), (500, 100_000, 1),
     (1, 4096, 2), (1, 4096, 3), (1, 4096, 5), (1, 4096, 8), (1, 4096, 20)],
)  # fmt: skip
def test_narrow_makes_about_log2_of_the_batch_trials_for_each_poison(partitions: int, total: int, poisons: int) -> None:
    size = total // partitions
    ranges = [OffsetRange("t", p, 10, 10 + size) for p in range(partitions)]
    most = math.log2(total) + 4 if poisons == 1 else 1.6 * poisons * (math.log2(total / poisons) + 2) + 10
    for seed in range(10):
        chance = random.Random(seed)
        poison = {("t", n // size, 10 + n % size) for n in chance.sample(range(partitions * size), poisons)}
        made: list[None] = []

        def dies(part: Sequence[OffsetRange], poison: set[Offset] = poison, made: list[None] = made) -> str | None:
            made.append(None)
            return "x" if any(r.partition == p and r.start <= n < r.end for _, p, n in poison for r in part) else None

        assert lost(narrow(dies, ranges, 10_000)) == poison
        assert len(made) < most


@pytest.mark.parametrize("budget", [0, 1, 2, 3, 5, 13, 34, 160])
def test_narrow_covers_all_that_fails_by_what_failed_last_when_its_trials_are_used_up(budget: int) -> None:
    for seed in range(12):
        chance = random.Random(seed)
        ranges = batch(chance)
        trials = Trials(some(chance, ranges, 200))
        found = narrow(trials, ranges, budget)
        assert len(trials.made) <= max(1, budget)
        assert trials.poison <= lost(found) <= offsets(ranges)
        for offset in lost(found):
            last = next(part for part in reversed(trials.made) if offset in part)
            assert last & trials.poison


def test_narrow_loses_no_more_with_a_larger_budget() -> None:
    for seed in range(5):
        chance = random.Random(seed)
        ranges = [OffsetRange("t", p, 0, 1000) for p in range(3)]
        poison = some(chance, ranges, 40)
        most, fewer, exact = (len(lost(narrow(Trials(poison), ranges, n))) for n in (1, 160, 10_000))
        assert 3000 == most >= fewer >= exact == len(poison)
        assert fewer < 3000 or len(poison) > 30


BATCH = [OffsetRange("t", 0, 0, 10), OffsetRange("t", 1, 0, 10)]
WHOLE = [(0, 0, 10), (1, 0, 10)]
EACH = pytest.mark.parametrize("strategy", [Recovery.IGNORE_RANGE, Recovery.IGNORE_BATCH])
Trouble = Callable[[int], Exception | None]


@dataclass
class World:
    """A broker, a Spark session and a writer of batches in one, whose frames are the ranges that they hold."""

    poison: set[Offset] = field(default_factory=set)
    start: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0})
    """Where the log of each partition starts."""
    writing: Trouble = lambda _: None
    """The error of the nth attempt at writing a batch."""
    reading: Trouble = lambda _: None
    """The error of the nth trial, before records are looked at."""
    spark_is_dead: bool = False
    written: set[Offset] | None = None
    attempts: int = 0
    trials: int = 0
    lookups = NO_LOOKUPS
    pipeline = None

    def read(self, ranges: Sequence[OffsetRange]) -> Any:
        return ranges

    def missing(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        return overlaps(ranges, [OffsetRange("t", p, 0, start) for p, start in self.start.items()])

    def diagnose(self, error: Exception, ranges: Sequence[OffsetRange]) -> SluiceError:
        return classify(error, lambda: None, SIGNS)

    def prepare(self, frame: Any, name: str, ranges: Any, source: Any, lost: Sequence[LostRange]) -> Any:
        self.attempts += 1
        frame = self.read(subtract(ranges, [item.range for item in lost])) if frame is None else frame
        self.process(frame)
        if (error := self.writing(self.attempts)) is not None:
            raise error
        self.written = offsets(frame)
        return list(lost)

    def give_up(self, ranges: Sequence[OffsetRange], lost: Sequence[LostRange]) -> Any:
        self.written = set()
        return list(lost)

    def rows_of(self, frame: Any) -> Any:
        self.trials += 1
        if (error := self.reading(self.trials)) is not None:
            raise error
        self.process(frame)
        return mock.MagicMock()

    kept = staticmethod(lambda rows: rows)

    def process(self, ranges: Sequence[OffsetRange]) -> None:
        if self.spark_is_dead:
            raise RuntimeError("Answer from Java side is empty")
        if gone := self.missing(ranges):
            raise OffsetsGoneError(f"dropped: {describe(gone)}", ranges=gone)
        if dead := sorted(offsets(ranges) & self.poison):
            raise RuntimeError(f"poison: {dead[0][1:]}")

    def range(self, _: int) -> Any:
        if self.spark_is_dead:
            raise RuntimeError("the Java server does not answer")
        return mock.MagicMock()


@pytest.fixture(autouse=True)
def frames_are_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ignore, "decoded", lambda frame, _: frame)


def prepare(world: World, strategy: Recovery = Recovery.IGNORE_RANGE) -> list[LostRange]:
    ready = Batch("e1-000000", tuple(BATCH), world, BATCH, world)  # type: ignore[arg-type]
    found: list[LostRange] = Ignoring(strategy).prepare(world, ready)  # type: ignore[arg-type,assignment]
    assert world.written is not None
    assert not world.written & lost(found), "both lost and written"
    assert world.written | lost(found) == offsets(BATCH)
    return found


def spans(found: Sequence[LostRange]) -> list[tuple[int, int, int]]:
    return [(item.range.partition, item.range.start, item.range.end) for item in found]


def test_ignore_range_loses_poison_and_missing_records_each_for_its_reason() -> None:
    found = prepare(World(poison={("t", 0, 3), ("t", 1, 7), ("t", 1, 8)}, start={0: 2, 1: 0}))
    assert spans(found) == [(0, 0, 2), (0, 3, 4), (1, 7, 8), (1, 8, 9)]
    assert "gone" in found[0].reason
    assert [item.reason.rpartition("poison: ")[2] for item in found[1:]] == ["(0, 3)»", "(1, 7)»", "(1, 8)»"]


def test_ignore_batch_loses_the_whole_batch_whatever_fails_in_it() -> None:
    assert spans(prepare(World(poison={("t", 1, 7)}), Recovery.IGNORE_BATCH)) == WHOLE
    world = World(start={0: 1, 1: 0})
    assert spans(prepare(world, Recovery.IGNORE_BATCH)) == WHOLE
    assert world.attempts == 0, "a batch that is known to lack records is not read first"


def test_ignore_range_takes_records_for_gone_that_are_dropped_during_its_search() -> None:
    world = World(poison={("t", 1, 7)})

    def drop(trial: int) -> None:
        if trial == 3:
            world.start[0] = 6

    world.reading = drop
    found = prepare(world)
    assert spans(found) == [(0, 0, 6), (1, 7, 8)]
    assert "dropped" in found[0].reason


@EACH
@pytest.mark.parametrize("failures", [0, 1, 2])
def test_ignore_loses_nothing_to_a_failure_that_passes(strategy: Recovery, failures: int) -> None:
    world = World(writing=lambda n: RuntimeError("a flicker") if n <= failures else None)
    assert prepare(world, strategy) == []
    assert (world.attempts, world.trials) == (failures + 1, failures)


TYPED = [
    errors.ConfigError, EngineError, errors.LeaseHeldError, LedgerError, PromiseError, errors.SinkError,
    errors.SourceUnreachableError, errors.TopicRecreatedError,
]  # fmt: skip


@EACH
@pytest.mark.parametrize(
    ("world", "kind", "attempts"),
    [
        pytest.param({"writing": lambda _: RuntimeError("the store said no")}, SluiceError, 3, id="writing"),
        # a JVM that was killed leaves the Python side alive, for which every record fails from then on
        pytest.param({"spark_is_dead": True}, EngineError, 1, id="dead Spark"),
        *(pytest.param({"writing": lambda _, e=e: e("x")}, e, 1, id=f"writing {e.__name__}") for e in TYPED),
        *(
            pytest.param({"poison": {("t", 0, 1)}, "reading": lambda _, e=e: e("x")}, e, 1, id=f"reading {e.__name__}")
            for e in TYPED
        ),
    ],
)
def test_ignore_ends_the_run_for_trouble_that_is_not_of_the_records(
    strategy: Recovery, world: dict[str, Any], kind: type[SluiceError], attempts: int
) -> None:
    made = World(**world)
    with pytest.raises(SluiceError) as caught:
        prepare(made, strategy)
    assert type(caught.value) is kind
    assert (made.written, made.attempts) == (None, attempts)


@EACH
def test_ignore_gives_a_reason_that_can_be_stored_and_shown(strategy: Recovery) -> None:
    error = RuntimeError("no \x00 \x1b[31m number: ü")
    (first, *_) = prepare(World(reading=lambda _: error, writing=lambda n: error if n == 1 else None), strategy)
    assert first.reason.endswith(r"no \x00 \x1b[31m number: ü»")
