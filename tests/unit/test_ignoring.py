"""What the ignoring strategies give up when a batch fails, and what they never do; no JVM, no broker."""

from __future__ import annotations

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
from sluice.ranges import LostRange, OffsetRange, describe
from sluice.recovery import Recovery
from sluice_spark.batch.account import PromiseError
from sluice_spark.engine.failures import EngineError, classify
from sluice_spark.sources.kafka import SIGNS
from sluice_spark.strategies import ignore
from sluice_spark.strategies.base import Batch
from sluice_spark.strategies.ignore import Ignoring

BATCH = [OffsetRange("t", 0, 0, 10), OffsetRange("t", 1, 0, 10)]

Trouble = Callable[[int], Exception | None]


def offsets(ranges: Iterable[OffsetRange]) -> set[tuple[int, int]]:
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
        self.process(BATCH if frame == "frame" else frame)
        if (error := self.writing(self.attempts)) is not None:
            raise error
        self.written = offsets(BATCH if frame == "frame" else frame)
        return list(lost)

    def give_up(self, ranges: Sequence[OffsetRange], lost: Sequence[LostRange]) -> Any:
        self.written = set()
        return list(lost)

    def process(self, ranges: Sequence[OffsetRange]) -> None:
        if self.spark_is_dead:
            raise RuntimeError("Answer from Java side is empty")
        if gone := self.missing(ranges):
            raise OffsetsGoneError(f"dropped: {describe(gone)}", ranges=gone)
        if dead := sorted(offsets(ranges) & self.poison):
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
    assert not world.written & offsets(item.range for item in lost), "both lost and written"
    assert world.written | offsets(item.range for item in lost) == offsets(BATCH)
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
    assert "gone from Kafka" in lost[0].reason
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
    with pytest.raises(EngineError, match="Spark fails, whatever it reads"):
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
