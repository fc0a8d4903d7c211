"""Retractions: from which account they take, in any order with redrives, so that the audit balances."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np
import pytest
from tests.fixtures.books import Place, Row, lost, rows, span, split
from tests.fixtures.ledgers import attempt
from tests.unit.run.conftest import proved

from sluice.audit import audit
from sluice.errors import ConfigError
from sluice.ledger import REDRIVEN, UnknownRunError
from sluice.ledger.events import LossAcknowledged, Redriven, batch_committed, rows_retracted
from sluice.ranges import Counts, OffsetRange, RangeAccount
from sluice.run.retraction import Part, standing, taken


def held(found: Sequence[Row], spans: Sequence[OffsetRange]) -> dict[tuple[str, int], Any]:
    inside: dict[Any, list[Any]] = {}
    for topic, partition, offset, _ in found:
        if any((s.topic, s.partition) == (topic, partition) and offset in range(s.start, s.end) for s in spans):
            inside.setdefault((topic, partition), []).append(offset)
    return {key: np.array(sorted(offsets), dtype=np.int64) for key, offsets in inside.items()}


def retract(place: Place, run: str, **chosen: Any) -> list[Part]:
    """Retract as the run does: rows leave the sink, and the ledger has it."""
    tables = [lambda s, rows=rows: held(rows, s) for rows in (place.sink, place.quarantine)]
    parts = [part for item in standing(place.ledger, "p", **chosen) if (part := taken(item, *tables)) is not None]
    if not parts:
        return []
    gone = held(place.sink, [s for part in parts for s in part.ranges])
    place.sink = [row for row in place.sink if row[2] not in gone.get((str(row[0]), int(row[1] or 0)), ())]
    batch = place.ends["sluice:p:redriven"] = place.ends.get("sluice:p:redriven", -1) + 1
    moved = [part.as_dict() for part in parts]
    with attempt(place.ledger, run, kind="retract", epoch=REDRIVEN, state="done") as lease:
        for _ in range(2):  # recorded again, as after a crash
            place.ledger.record(lease, *rows_retracted(REDRIVEN, batch, moved, "wrong currency"))
    return parts


def redrive(place: Place, run: str, chance: random.Random) -> None:
    """Redrive some open ranges: an offset is written, refused, or filtered."""
    spans = [row.range for row in place.ledger.offsets.lost("p")]
    accounts = []
    for item in chance.sample(spans, chance.randrange(len(spans) + 1)):
        outcomes = [chance.choice(("written", "written", "quarantined", "filtered")) for _ in range(len(item))]
        for offset, outcome in zip(range(item.start, item.end), outcomes, strict=True):
            one = rows(run, offset, partition=item.partition)
            place.sink += one if outcome == "written" else []
            place.quarantine += one if outcome == "quarantined" else []
        counts = {name: outcomes.count(name) for name in ("written", "quarantined", "filtered")}
        accounts.append(RangeAccount(item, Counts(**counts)))
    place.commit(run, *accounts, epoch=REDRIVEN, redriven=Redriven(of="lost"))


def unquarantine(place: Place, run: str, chance: random.Random) -> None:
    chosen = [row for row in place.quarantine if chance.random() < 0.5]
    place.quarantine = [row for row in place.quarantine if row not in chosen]
    place.sink += [(topic, partition, offset, run) for topic, partition, offset, _ in chosen]
    accounts = [split(int(o or 0), int(o or 0) + 1, int(p or 0)) for _, p, o, _ in sorted(chosen, key=str)]
    place.commit(run, *accounts, epoch=REDRIVEN, redriven=Redriven(of="quarantined"))


def test_retraction_of_a_run_opens_its_offsets(story: Place) -> None:
    (part,) = retract(story, "x", run_id="b", ranges=())[:1]
    assert (part.written, part.ranges) == (5, (span(10, 15),))
    assert {(r.range, r.state, r.run, r.reason) for r in story.ledger.offsets.lost("p") if r.reason != "poison"} == {
        (span(10, 15), "open", "b", "retracted: wrong currency"),
        (span(5, 8, 1), "open", "b", "retracted: wrong currency"),
    }
    assert story.ledger.runs.account("p", "b")["written"] == 0
    assert story.ledger.runs.account("p", "x")["retracted"] == {"written": 8, "opened": 8}
    (notes,) = [r.notes for r in story.ledger.runs.newest("p") if r.run == "b"]
    assert notes == ["run x retracted 8 offsets: wrong currency"]
    assert proved(story) == []
    assert retract(story, "y", run_id="b") == []


@pytest.mark.parametrize("deleted", [range(11, 12), range(10, 15)], ids=["one", "all"])
def test_retraction_takes_back_a_run_whose_rows_were_deleted(story: Place, deleted: range) -> None:
    """Else the rest of it would count as written for good, and hold a pipeline that its verdict holds."""
    story.sink = [row for row in story.sink if row[1] != 0 or row[2] not in deleted]
    (part, *_) = retract(story, "x", run_id="b", ranges=())
    assert (part.written, part.ranges, story.ledger.runs.account("p", "b")["written"]) == (5, (span(10, 15),), 0)
    assert proved(story) == []


def test_retraction_of_a_run_leaves_rows_of_its_redrives(story: Place) -> None:
    assert [part.ranges for part in retract(story, "x", run_id="c")] == [(span(16, 17), span(18, 19))]
    assert [part.ranges for part in retract(story, "y", run_id="d")] == [(span(4, 5),), (span(17, 18),)]
    assert sorted(r.range for r in story.ledger.offsets.lost("p")) == [
        span(4, 5), span(15, 16), span(16, 17), span(17, 18), span(18, 19), span(19, 20)
    ]  # fmt: skip
    assert proved(story) == []


def test_retraction_of_a_part_of_a_batch_takes_rows_of_the_table(story: Place) -> None:
    (part,) = retract(story, "x", ranges=[span(2, 8)])[:1]
    assert (part.written, part.ranges) == (4, (span(2, 3), span(5, 8)))
    assert proved(story) == []


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(n, marks=pytest.mark.long) for n in range(4, 8))])
def test_audit_balances_after_retractions_and_redrives_in_any_order(story: Place, seed: int) -> None:
    chance, numbers = random.Random(seed), count()
    for _ in range(9):
        run = f"n{next(numbers)}"
        what = chance.randrange(4)
        if what == 0:
            redrive(story, run, chance)
        elif what == 1:
            unquarantine(story, run, chance)
        elif what == 2:
            retract(story, run, run_id=chance.choice(story.ledger.runs.newest("p", limit=100)).run)
        else:
            start = chance.randrange(18)
            retract(story, run, ranges=[span(start, start + chance.randrange(1, 9))])
        assert audit(story.ledger, "p").problems == []
    assert proved(story) == []
    before = story.ledger.offsets.lost("p", state=None), story.ledger.offsets.entries("p")
    story.ledger.rebuild()
    assert (story.ledger.offsets.lost("p", state=None), story.ledger.offsets.entries("p")) == before


def test_audit_finds_a_second_redrive_of_a_retraction(story: Place) -> None:
    retract(story, "x", run_id="c")
    for run in "ef":
        story.commit(run, split(16, 17), epoch=REDRIVEN, redriven=Redriven(of="lost"))
    assert audit(story.ledger, "p").problems == ["t-0 [16, 17) was redriven twice, as lost"]


def test_retraction_refuses_intervals_and_unknown_runs(story: Place) -> None:
    story.commit("nightly-7", split(20, 21), epoch=2, lost=[])
    with pytest.raises(UnknownRunError, match="nightly-7"):
        standing(story.ledger, "p", run_id="nightly-8")
    day = "2026-01-01T00:00:00Z/2026-01-02T00:00:00Z"
    with attempt(story.ledger, "i", scope=day, kind="interval", epoch=-1, interval=day) as lease:
        number = story.ledger.interval_resolved(lease, day, ranges=[span(0, 6)], whole=True, topic_ids={})
        new = split(0, 6, filtered=2, written=4)
        story.ledger.record(lease, *batch_committed(-number, 0, [new], replaced={new.range: (4, 0)}))
    for run, named in (("i", "interval"), ("a", r"t-0 \[0, 4\)")):
        with pytest.raises(ConfigError, match=named):
            standing(story.ledger, "p", run_id=run)
    assert standing(story.ledger, "p", ranges=[span(6, 9)])


def test_retraction_does_not_open_an_acknowledged_loss(story: Place) -> None:
    loss = LossAcknowledged(ranges=[span(15, 16)], reason="gone", was="open", now="acknowledged")
    with story.ledger.acquire("p", "ack") as lease:
        story.ledger.record(lease, loss)
    retract(story, "x", run_id="b")
    assert [r.range for r in story.ledger.offsets.lost("p", state="acknowledged")] == [span(15, 16)]
    story.commit("l", split(20, 23, written=2, lost=1), epoch=2, lost=[lost(22, 23)])
    assert audit(story.ledger, "p").balanced
