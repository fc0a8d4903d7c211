"""Where lost ranges can still be read: in the log first, then at the source, and nowhere under another topic's id."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from tests.fixtures.books import span

from sluice.ranges import OffsetRange
from sluice.run.locate import Located, locate
from sluice.sources.state import PartitionState, TopicState


class Log:
    """Segments, of which some are damaged."""

    def __init__(self, *spans: tuple[int, int], damaged: Sequence[int] = ()) -> None:
        self.all = [SimpleNamespace(path=f"s{n}", range=span(*ends)) for n, ends in enumerate(spans)]
        self.damaged = damaged

    def refresh(self) -> None:
        pass

    def segments(self, wanted: Sequence[OffsetRange]) -> list[Any]:
        return [s for s in self.all if any(s.range.cut(r) for r in wanted)]

    def check(self, segments: Sequence[Any], *, pages: bool) -> list[Any]:
        assert pages, "every page is read before anything is promised"
        return [SimpleNamespace(segment=self.all[n]) for n in self.damaged if self.all[n] in segments]


def found(log: Log, topic_id: str = "x", known: str | None = "x", start: int = 50) -> Located:
    states = [TopicState("t", topic_id, {0: PartitionState(start, 100)})]
    return locate([span(10, 60)], cast(Any, log), states, {"t": known} if known else {})


def test_lost_ranges_are_read_from_the_log_before_the_source() -> None:
    where = found(Log((0, 20), (30, 55)))
    assert (where.log, where.kafka, where.nowhere) == (
        (span(10, 20), span(30, 55)), (span(55, 60),), (span(20, 30),)
    )  # fmt: skip
    assert where.found == [span(10, 20), span(30, 55), span(55, 60)]


def test_damaged_segment_holds_no_lost_range() -> None:
    where = found(Log((0, 20), (20, 60), damaged=[1]))
    assert (where.log, where.kafka, where.nowhere) == ((span(10, 20),), (span(50, 60),), (span(20, 50),))
    assert [s.path for s in where.segments] == ["s0"]


def test_recreated_topic_holds_no_lost_range() -> None:
    assert found(Log(), topic_id="y").kafka == ()
    for topic_id, known in (("", "x"), ("x", None), ("", None), ("x", "x")):
        assert found(Log(), topic_id=topic_id, known=known).kafka == (span(50, 60),), (topic_id, known)
