"""What a pipeline's redrive can do, and of which streams it asks the source."""

from __future__ import annotations

from collections.abc import Iterable

from sluice.errors import ConfigError
from sluice.ledger import Ledger
from sluice.pipeline import Pipeline
from sluice.ranges import OffsetRange
from sluice.run.preflight import refuse_behind
from sluice.sources.base import Numbering, Source
from sluice.sources.state import TopicState

__all__ = ["check_ranges", "final", "possible", "states_for", "way_out"]

_AGAIN = "send the records to the source again, corrected"


def possible(pipeline: Pipeline, *, quarantined: bool) -> None:
    """Raise a :class:`~sluice.errors.ConfigError` if lost ranges (or quarantined records) cannot be redriven."""
    if pipeline.stateful is not None:
        raise ConfigError(
            f"pipeline {pipeline.name!r} {pipeline.stateful.unredrivable}, which Sluice cannot do yet",
            state="nothing was read or written; the quarantine is as it was",
            next_step=_again(pipeline),
        )
    if not quarantined and pipeline.sink.kind.delta and pipeline.decode.deletes:
        raise ConfigError(
            f"lost ranges of {pipeline.name!r} cannot be redriven: its tombstones delete rows, and "
            f"sink.{pipeline.sink.key} remembers no deleted keys, so an older record would bring a row back",
            state="nothing was read or written; the ranges stay open",
            next_step=f"{_AGAIN}, then sluice acknowledge {pipeline.name} --reason TEXT",
        )
    if quarantined and not pipeline.sink.kind.replaceable:
        raise ConfigError(
            f"quarantined records of {pipeline.name!r} cannot be redriven or dropped: {pipeline.irreplaceable} does "
            "not take single rows back",
            state="nothing was read or written; sink and quarantine are unchanged",
            next_step=f"{_AGAIN}; or use a sink that can replace rows, such as sink.delta with mode: append. Lost "
            "ranges can be redriven",
        )


def final(pipeline: Pipeline) -> str | None:
    """Return why what is lost of a pipeline stays lost, and what can be done instead; None if it can be redriven."""
    try:
        possible(pipeline, quarantined=False)
    except ConfigError as error:
        return f"{error.what}. Instead, {error.next_step}"
    return None


def check_ranges(ledger: Ledger, pipeline: str, ranges: Iterable[OffsetRange]) -> None:
    """Raise a :class:`~sluice.errors.ConfigError` if a range has no offset that was ever read or lost."""
    ranges = [item for item in ranges if len(item)]
    known = ledger.offsets.reached(pipeline, ever=True) if ranges else {}
    for item in ranges:
        ends = known.get(item.topic, {})
        if item.start >= ends.get(item.partition, 0):
            far = f": it has read up to {ends[item.partition]}" if item.partition in ends else ""
            there = ", ".join(map(str, sorted(ends)))
            raise ConfigError(
                f"{pipeline} has read nothing of {item}{far}",
                state="nothing was read or written",
                next_step=f"name others, of its partitions {there}" if ends else "name a topic that it has read",
            )


def states_for(source: Source, streams: Iterable[str], ledger: Ledger, pipeline: str) -> list[TopicState]:
    """Return the state of the source's streams, and of those that the pipeline has read and its file no longer names.

    What was read of a topic may still be there when the file has let go of it.

    Parameters
    ----------
    streams
        Those from which offsets are wanted.

    Raises
    ------
    SluiceError
        If any part of it is unknown.
    """
    refuse_behind(pipeline, source, ledger.offsets.reached(pipeline), ledger.runs.topic_ids(pipeline))
    states = source.recorded() if isinstance(source, Numbering) else source.snapshot()
    former = set(streams) - {state.topic for state in states}
    states_of = getattr(source, "states_of", None)  # of streams that have names in a server, as Kafka's topics have
    return states + states_of(former) if former and states_of is not None else states


def way_out(pipeline: Pipeline) -> str:
    """Return what to do with quarantined records: the command, where there is one."""
    try:
        possible(pipeline, quarantined=True)
    except ConfigError:
        return f"they stay there, as sluice redrive cannot write them with this pipeline: {_again(pipeline)}"
    return f"when decode, rules or transform take them: sluice redrive {pipeline.called} --quarantined"


def _again(pipeline: Pipeline) -> str:
    if pipeline.window is None or pipeline.no_intervals is not None:
        return _AGAIN
    run = f"sluice run {pipeline.called} --start TIME --end TIME"
    return f"change decode, rules or transform so that they are taken, then make their windows again: {run}"
