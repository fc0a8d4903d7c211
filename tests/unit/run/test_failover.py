"""Failing over and back, in any order: each record once, by its origin, and books that balance."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from tests.fixtures.books import Place, span

from sluice.audit import audit
from sluice.ledger import REDRIVEN
from sluice.ledger.events import PipelineReset, Redriven
from sluice.pipeline import load
from sluice.ranges import Counts, LostRange, OffsetRange, RangeAccount, overlaps, subtract
from sluice.run.failover import goes_to
from sluice.run.origins import Origins, Screened, Settled, screened, settled_of
from sluice.run.reset_plan import Standing, united
from sluice.sources.clusters import active_of, bare, named, origin_pattern
from sluice.sources.state import PartitionState, TopicState

SOURCE = {"kafka": {"clusters": ["a", "b"], "topics": ["t"], "origin_header": "o"}}
Origin = tuple[str, int, int]


def of(*placed: tuple[str, int, Origin]) -> Origins:
    columns: Any = [(stream, 0, offset, *origin) for stream, offset, origin in placed]
    return Origins(*(list(column) for column in zip(*columns, strict=True))) if placed else Origins(*[[]] * 6)


def test_cluster_prefixes_name_streams_and_origin_headers() -> None:
    assert (named("", "t"), named("b:", "t"), named("b:", "a:t"), bare("b:t"), bare("t")) == (
        "t", "b:t", "a:t", "t", "t",
    )  # fmt: skip
    assert (active_of(None), active_of({"t": {}}), active_of({"b:t": {}})) == ("", "", "b:")
    assert origin_pattern(["a", "b"], ["t.x"]) == r"^(t\.x|b:t\.x):([0-9]{1,9}):([0-9]{1,18})$"


def test_copy_is_a_record_whose_origin_is_settled_or_comes_twice() -> None:
    settled = Settled([span(0, 5), span(7, 9)])
    found = screened(of(*(("b:t", 10 + n, ("t", 0, origin)) for n, origin in enumerate((4, 5, 8, 5)))), settled, [])
    assert found.as_ranges() == [OffsetRange("b:t", 0, 10, 11), OffsetRange("b:t", 0, 12, 14)]
    assert found.settled == (span(5, 6),)
    assert found.fact.as_dict() == {"copies": 3, "ranges": [["t", 0, 5, 6]]}
    assert not Screened().fact


def test_record_that_was_mirrored_over_and_back_is_a_copy() -> None:
    found = screened(of(("t", 9, ("t", 0, 3)), ("t", 10, ("t", 0, 30))), Settled([]), [span(0, 12)])
    assert found.as_ranges() == [span(9, 10)]


def test_settled_ranges_cover_their_offsets() -> None:
    settled = Settled([span(2, 4), span(0, 9, 1)])
    assert settled.covers(("t", 0), np.array([1, 2, 3, 4])).tolist() == [False, True, True, False]
    assert settled.covers(("u", 0), np.array([1])).tolist() == [False]


@dataclass
class World:
    """Two clusters of one partition, a mirror, and a pipeline whose ledger is real."""

    place: Place
    chance: random.Random
    logs: dict[str, list[tuple[int, Origin | None]]] = field(default_factory=lambda: {"": [], "b:": []})
    behind: dict[str, int] = field(default_factory=lambda: {"": 0, "b:": 0})
    table: list[int] = field(default_factory=list)
    made: int = 0
    number: int = 0

    @property
    def active(self) -> str:
        return active_of(self.place.ledger.offsets.epoch("p").positions)

    def make(self, prefix: str) -> None:
        for _ in range(self.chance.randint(1, 4)):
            self.logs[prefix].append((self.made, None))
            self.made += 1

    def mirror(self, prefix: str, *, whole: bool = False) -> None:
        other = "b:" if prefix == "" else ""
        log, begin = self.logs[prefix], self.behind[prefix]
        end = len(log) if whole else self.chance.randint(begin, len(log))
        for offset in range(max(0, begin - self.chance.randint(0, 2)), end):  # at least once
            record, origin = log[offset]
            if origin is None or self.chance.random() < 0.2:  # some mirrors pass copies on
                self.logs[other].append((record, origin or (f"{prefix}t", 0, offset)))
        self.behind[prefix] = end

    def state(self, prefix: str) -> TopicState:
        return TopicState(f"{prefix}t", f"{prefix}/1", {0: PartitionState(0, len(self.logs[prefix]))})

    def process(self, spans: list[OffsetRange], *, epoch: int, lossy: bool = False) -> None:
        ledger = self.place.ledger
        gone = [OffsetRange(s.topic, s.partition, s.start, s.start + 1) for s in spans if lossy]
        read = [
            (s.topic, n, *self.logs[active_of({s.topic: {}})][n])
            for s in spans for n in range(s.start, s.end) if not any(n in range(g.start, g.end) for g in gone)
        ]  # fmt: skip
        kept = [(topic, n, origin) for topic, n, _, origin in read if origin is not None]
        found = screened(of(*kept), settled_of(ledger, "p"), subtract(spans, gone))
        copies = {(r.topic, n) for r in found.as_ranges() for n in range(r.start, r.end)}
        self.table += [record for topic, n, record, _ in read if (topic, n) not in copies]
        accounts = []
        for s in spans:
            filtered = sum((s.topic, n) in copies for n in range(s.start, s.end))
            lost = sum(map(len, overlaps([s], gone)))
            accounts.append(RangeAccount(s, Counts(len(s) - filtered - lost, filtered, 0, 0, lost)))
        self.number += 1
        self.place.commit(
            f"r{self.number}", *accounts, epoch=epoch, facts=[found.fact],
            **({"redriven": Redriven(of="lost")} if epoch == REDRIVEN else {"lost": [LostRange(g, "x") for g in gone]}),
        )  # fmt: skip

    def run(self, *, whole: bool = False) -> None:
        ledger, stream = self.place.ledger, f"{self.active}t"
        epoch = ledger.offsets.epoch("p")
        begin = ledger.offsets.reached("p").get(stream, {}).get(0, (epoch.positions or {}).get(stream, {}).get(0, 0))
        size = len(self.logs[self.active])
        end = size if whole else self.chance.randint(begin, size)
        if end > begin:
            lossy = not whole and self.chance.random() < 0.2
            self.process([OffsetRange(stream, 0, begin, end)], epoch=epoch.number, lossy=lossy)

    def redrive(self) -> None:
        for item in [row.range for row in self.place.ledger.offsets.lost("p")]:
            still = overlaps([item], [row.range for row in self.place.ledger.offsets.lost("p")])
            if still:  # an earlier step may have brought it
                self.process(still, epoch=REDRIVEN)

    def fail_over(self) -> None:
        ledger, epoch = self.place.ledger, self.place.ledger.offsets.epoch("p")
        to = "b" if self.active == "" else "a"
        reached = {**(epoch.positions or {}), **ledger.offsets.reached("p")}
        answers = self.chance.random() < 0.7
        standing = Standing(reached, united(ledger, "p"), ledger.runs.topic_ids("p"))
        found = goes_to(
            load(self.place.file), epoch, to, reason="x", standing=standing,
            states=[self.state("b:" if to == "b" else "")], left=[self.state(self.active)] if answers else None,
        )  # fmt: skip
        assert not found.truncated
        self.number += 1
        with ledger.acquire("p", f"f{self.number}") as lease:
            ledger.record(lease, PipelineReset(**found.as_dict()))


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(n, marks=pytest.mark.long) for n in range(4, 60))])
def test_failover_in_any_order_writes_each_record_once(place: Place, seed: int) -> None:
    place.configure(source=SOURCE)
    world = World(place, random.Random(seed))
    world.make("")
    world.run(whole=True)
    for _ in range(40):
        chosen = world.chance.randrange(8)
        if chosen < 2:
            world.make("")
        elif chosen == 2:
            world.make("b:")
        elif chosen == 3:
            world.mirror(world.chance.choice(["", "b:"]))
        elif chosen < 6:
            world.run()
        elif chosen == 6:
            world.fail_over()
        elif world.chance.random() < 0.3:
            world.redrive()
        assert max(Counter(world.table).values(), default=1) == 1, "a record is there twice"
    for prefix in ("", "b:"):
        world.mirror(prefix, whole=True)
    for _ in range(3):
        world.run(whole=True)
        world.fail_over()
        world.run(whole=True)
    world.redrive()
    assert Counter(world.table) == Counter(range(world.made))
    assert not place.ledger.offsets.lost("p")
    report = audit(place.ledger, "p")
    assert not report.problems, report.problems
    before = place.ledger.offsets.lost("p", state=None), place.ledger.offsets.entries("p")
    place.ledger.rebuild()
    assert (place.ledger.offsets.lost("p", state=None), place.ledger.offsets.entries("p")) == before
