"""Resets: where they begin, which offsets are open or would be written twice, and that the audit balances."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from unittest import mock

import pytest
from tests.fixtures.books import Place, rows, span, split
from tests.fixtures.ledgers import attempt
from tests.fixtures.pipelines import modelled
from tests.unit.run.conftest import proved, take_back

from sluice.audit import audit
from sluice.errors import ConfigError, SourceUnreachableError
from sluice.ledger import REDRIVEN, Epoch
from sluice.ledger.events import PipelineReset, Redriven
from sluice.pipeline import load
from sluice.ranges import OffsetRange, Positions
from sluice.recovery import Route
from sluice.run.reset_plan import Reset, Standing, of_windows, plan, still_open, united
from sluice.sources.begin import Begin, ByTime, beginning
from sluice.sources.state import PartitionState, TopicState

LATEST = "source.kafka.starting_offsets: latest"


def there(*ends: tuple[int, int], topic: str = "t", topic_id: str = "c/1") -> TopicState:
    return TopicState(topic, topic_id, {n: PartitionState(*pair) for n, pair in enumerate(ends)})


def asked(begin: str | None, states: list[TopicState], at: dict[Any, Any]) -> Positions:
    """Return where a user asked to begin, of a source that finds these offsets by time."""
    if begin is None:
        return {}
    moment = begin if begin in ("earliest", "latest") else datetime.fromisoformat(begin).replace(tzinfo=UTC)
    return beginning(moment, states, mock.Mock(offsets_at=lambda keys, _: at))  # type: ignore[arg-type]


def planned(
    states: list[TopicState], *, begin: str | None = None, at: Any = None, changes: str = "",
    accounted: tuple[OffsetRange, ...] = (span(2, 10), span(0, 8, 1)), **more: Any,
) -> Reset:  # fmt: skip
    known: dict[str, Any] = {
        "reached": {"t": {r.partition: r.end for r in accounted if r.topic == "t"}},
        "accounted": {(r.topic, r.partition): r for r in accounted},
        "known_ids": {"t": "c/1", "u": "c/3"}, "unread": (), "first": {},
    }  # fmt: skip
    standing = Standing(**{key: more.pop(key, value) for key, value in known.items()})
    asked_for = {"begin": asked(begin, states, at or {}), "truncate": False, "reason": "x", **more}
    return plan(modelled(changes), Epoch(3, Route.DIRECT, None), standing=standing, states=states, **asked_for)


def test_reset_goes_on_at_the_position() -> None:
    found = planned([there((0, 12), (0, 8))])
    assert (found.epoch, found.positions, found.skipped, found.given_up) == (4, {"t": {0: 10, 1: 8}}, (), ())


@pytest.mark.parametrize(
    ("begin", "at", "first", "zero"),
    [
        ("latest", {}, 0, 12),
        ("2026-01-01", {("t", 0): 11, ("t", 1): None}, 0, 11),
        (None, {}, 11, 11),  # the source no longer has the one before
    ],
)
def test_reset_to_a_later_start_opens_offsets(begin: str | None, at: dict[Any, Any], first: int, zero: int) -> None:
    found = planned([there((first, 12), (0, 8))], begin=begin, at=at)
    assert (found.positions, found.skipped) == ({"t": {0: zero, 1: 8}}, (span(10, zero),))


@pytest.mark.parametrize("begin", ["earliest", "2026-01-01"])
def test_reset_refuses_offsets_that_would_be_written_twice(begin: str) -> None:
    with pytest.raises(ConfigError, match=r"t-0 \[3, 10\)") as refused:
        planned([there((3, 12), (8, 8))], begin=begin, at={("t", 0): 1, ("t", 1): 8})
    assert "--truncate" in refused.value.next_step
    assert "t-0: 10, t-1: 8" in refused.value.next_step


def test_reset_refuses_a_topic_that_is_shorter_than_the_position() -> None:
    with pytest.raises(ConfigError, match=r"t-0 \[4, 10\)"):
        planned([there((0, 4), (0, 8))])


def test_reset_with_truncate_gives_up_offsets_that_are_not_read_again() -> None:
    assert not planned([there((0, 12), (0, 8))], begin="earliest", truncate=True).given_up
    found = planned([there((5, 12), (0, 8))], begin="earliest", truncate=True)
    assert (found.positions, found.skipped) == ({"t": {0: 5, 1: 0}}, (span(2, 5),))
    leave, gone = found.given_up
    assert "rows leave the sink" in leave
    assert gone == f"the source no longer has {span(2, 5)}"


def test_reset_of_a_recreated_topic_needs_truncate() -> None:
    states = [there((0, 3), (0, 0), topic_id="c/2")]
    with pytest.raises(ConfigError, match="recreated"):
        planned(states)
    found = planned(states, begin="earliest", truncate=True)
    assert (found.positions, found.skipped, found.recreated) == ({"t": {0: 0, 1: 0}}, (), ("t",))
    assert (found.topic_ids, bool(found.given_up)) == ({"t": "c/2"}, True)
    assert planned(states, accounted=()).positions == {"t": {0: 0, 1: 0}}, "no row of the former one is there"


def test_reset_keeps_the_account_of_a_topic_that_the_file_no_longer_names() -> None:
    states, other = [there((0, 12), (0, 8))], OffsetRange("u", 0, 0, 5)
    accounted = (span(0, 10), span(0, 8, 1), other)
    assert planned(states, accounted=accounted).skipped == ()
    found = planned(states, accounted=accounted, begin="earliest", truncate=True)
    assert found.skipped == (other,), "its rows leave, too"


def test_reset_loses_unread_offsets_of_a_topic_that_is_left_out() -> None:
    states, unread = [there((0, 12), (0, 8))], (span(10, 12), OffsetRange("u", 0, 5, 9))
    found = planned(states, accounted=(span(0, 10), span(0, 8, 1), OffsetRange("u", 0, 0, 5)), unread=unread)
    assert found.skipped == (unread[1],), "what the new epoch reads is not lost"
    assert found.topic_ids == {"t": "c/1", "u": "c/3"}


@pytest.mark.parametrize("start", [0, 4])
def test_reset_begins_a_topic_that_a_pattern_matches_since_then_at_zero(start: int) -> None:
    states = [there((0, 12), (0, 8)), there((start, 9), topic="v", topic_id="c/4")]
    found = planned(states, changes=f"source.kafka.topics: null, source.kafka.pattern: .*, {LATEST}")
    assert found.positions["v"] == {0: start}
    assert found.skipped == ((OffsetRange("v", 0, 0, start),) if start else ())


def test_reset_begins_an_unknown_partition_at_its_start_or_refuses() -> None:
    states, latest = [there((0, 12), (3, 8), (2, 5))], {"t": {0: 12, 1: 8, 2: 5}}
    assert planned(states).positions == {"t": {0: 10, 1: 8, 2: 2}}
    with pytest.raises(ConfigError, match="t-2"):
        planned(states, changes=LATEST)
    assert planned(states, changes=LATEST, begin="latest").positions == latest
    assert planned(states, changes=LATEST, accounted=(), first=latest).positions == latest


WINDOWS = {output: modelled(base=base).window for base, output in (
    ("kafka", None), ("session", "sessions"), ("window", "append"), ("update", "update"), ("complete", "complete"),
)}  # fmt: skip


@pytest.mark.parametrize(
    ("definition", "latest", "closed_to", "found"),
    [
        (None, None, 0, False),
        (None, 5000, 9000, True),
        (("window", {"size": 1.0}), 5000, 6001, False),
        (("window", {"size": 2.0}), 5000, 6001, True),
        (("window", {"gap": 1.0}), 5000, 6000, True),
    ],
)
def test_reset_finds_windows_that_are_open(definition: Any, latest: int | None, closed_to: int, found: bool) -> None:
    assert still_open(definition, latest, closed_to) is found


@pytest.mark.parametrize(
    ("written", "are_open", "before", "output", "given_up", "note"),
    [
        (True, False, "update", "update", None, "event time so far (2026-01-01T00:00:00+00:00) stay as the table has"),
        (True, True, "update", "update", "windows that are open are updated no more", "stay as the table has them"),
        (True, True, "append", "update", "windows that are open are dropped", "stay as the table has them"),
        (False, False, "append", "update", None, None),
        (True, True, "append", "append", "windows that are open are dropped", "that it does not have are not written"),
        (True, True, "update", "append", "windows that are open are updated no more", "an interval of event time"),
        (True, False, "append", "append", None, "stay as the table has them"),
        (True, True, "append", "sessions", "A session that goes on gets a row of", "so far (2025-12-31T23:00:00+"),
        (True, False, "append", "sessions", None, "sessions that were written stay as they are"),
        (True, True, "append", None, "windows that are open are dropped", None),
        (True, True, "complete", "complete", "in place of all rows", None),
        (False, False, "append", "complete", None, None),
    ],
)
def test_reset_notes_the_fate_of_windows(
    written: bool, are_open: bool, before: str, output: str | None, given_up: str | None, note: str | None
) -> None:
    known = {"latest": 1_767_225_600_000, "closed_to": 1_767_222_000_000}
    said = of_windows(WINDOWS[output], written=written, are_open=are_open, before=before, **known)
    for expected, found in zip((given_up, note), said, strict=True):
        assert len(found) == (expected is not None)
        assert (expected or "") in " ".join(found)


def test_reset_names_truncate_for_windows_that_no_interval_makes_again() -> None:
    _, (note,) = of_windows(WINDOWS["append"], written=True, are_open=False, latest=0, intervals=False)
    assert note.endswith("count as filtered, and only --truncate with an earlier --from writes all windows again")


def carried_out(place: Place, begin: str, *, truncate: bool = False, zero: int = 20) -> None:
    """Reset as the run does: the rows leave, and the ledger has it, twice as after a crash."""
    ledger, now = place.ledger, place.ledger.offsets.epoch("p")
    states = [there((0, zero), (0, 8), topic_id="")]
    found = plan(
        load(place.file), now, reason="x", begin=asked(begin, states, {}), truncate=truncate,
        standing=Standing(ledger.offsets.reached("p"), united(ledger, "p"), {}), states=states,
    )  # fmt: skip
    if truncate:
        place.sink, place.quarantine = [], []
    place.ends[f"sluice:p:{now.number}"] = place.ends.get(f"sluice:p:{now.number}", -1) + 1
    with attempt(ledger, f"reset {now.number}", kind="reset", epoch=now.number, state="done") as lease:
        for _ in range(2):
            ledger.record(lease, PipelineReset(**found.as_dict()))


def test_reset_to_a_later_start_balances(story: Place) -> None:
    carried_out(story, "latest", zero=25)
    assert story.ledger.offsets.epoch("p") == Epoch(3, Route.DIRECT, {"t": {0: 25, 1: 8}})
    assert span(20, 25) in [row.range for row in story.ledger.offsets.lost("p")]
    assert story.ledger.runs.account("p", "reset 2")["lost"] == 5
    assert proved(story) == []
    story.commit("e", split(25, 30), epoch=3)
    story.sink += rows("e", *range(25, 30))
    story.commit("f", split(20, 25), epoch=REDRIVEN, redriven=Redriven(of="lost"))
    story.sink += rows("f", *range(20, 25))
    assert proved(story) == []


def test_reset_with_truncate_begins_a_new_account(story: Place) -> None:
    before = story.ledger.runs.account("p", "a")["written"]
    carried_out(story, "earliest", truncate=True)
    assert (
        story.ledger.offsets.lost("p", state=None),
        story.ledger.offsets.entries("p"),
        story.ledger.offsets.resets("p").base,
    ) == ([], [], 3)
    assert story.ledger.runs.account("p", "a")["written"] == before, "what it did stays on record"
    assert proved(story) == []
    story.commit("e", split(0, 20), split(0, 8, 1), epoch=3)
    story.sink = [*rows("e", *range(20)), *rows("e", *range(8), partition=1)]
    assert proved(story) == []
    assert story.ledger.rebuild()
    assert proved(story) == []
    carried_out(story, "latest", truncate=True)
    assert sorted(row.range for row in story.ledger.offsets.lost("p")) == [span(0, 20), span(0, 8, 1)]
    assert proved(story) == []
    story.commit("g", split(4, 6), epoch=REDRIVEN, redriven=Redriven(of="lost"))
    story.sink = rows("g", 4, 5)
    assert proved(story) == []
    assert audit(story.ledger, "p").balanced


def test_reset_with_truncate_keeps_redrives_after_it_from_a_retraction_before_it(story: Place) -> None:
    take_back(story, "c", 16, 17, epoch=REDRIVEN)
    assert story.ledger.offsets.retracted_from("p")
    carried_out(story, "earliest", truncate=True)
    assert story.ledger.offsets.retracted_from("p") == {}
    assert len(story.ledger.offsets.retractions("p", "back")) == 1


MOMENT = ByTime(by_time=datetime(2026, 1, 1, tzinfo=UTC))
BEGINS: list[tuple[Begin, Positions]] = [
    ("earliest", {"t": {0: 2, 1: 0}}),
    ("latest", {"t": {0: 10, 1: 8}}),
    (MOMENT, {"t": {0: 5, 1: 8}}),  # partition 1 has no record of that time
    ({"t": {1: 3}}, {"t": {0: 2, 1: 3}}),
    ({"t": {0: 0, 1: 8}}, {"t": {0: 2, 1: 8}}),  # retention removed the first two offsets
]


@pytest.mark.parametrize(("begin", "positions"), BEGINS)
def test_first_run_begins_where_the_file_says(begin: Begin, positions: Positions) -> None:
    source = mock.Mock(offsets_at=lambda keys, moment: dict(zip(keys, (5, None), strict=True)))
    states = [there((2, 10), (0, 8))]
    assert beginning(begin, states, source) == positions
    found = plan(
        modelled(), Epoch(1, Route.DIRECT, None), reason="x", begin={}, truncate=False, states=states,
        standing=Standing({}, {}, {}, first=positions),
    )  # fmt: skip
    assert found.positions == positions, "a reset before anything was read begins there, too"


@pytest.mark.parametrize(
    ("begin", "kind", "named"),
    [
        (MOMENT, SourceUnreachableError, "t-1"),
        ({"t": {2: 1}}, ConfigError, "t-2"),
        ({"t": {0: 11}}, ConfigError, "t-0 begins at 11, and its records end at 10"),
    ],
)
def test_first_run_refuses_a_beginning_that_is_not_there(begin: Begin, kind: type[Exception], named: str) -> None:
    silent = mock.Mock(offsets_at=lambda keys, moment: {keys[0]: 5})
    with pytest.raises(kind, match=named):
        beginning(begin, [there((2, 10), (0, 8))], silent)
