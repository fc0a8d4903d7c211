"""Compares a pipeline's positions with the broker's offsets before anything is read. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from sluice.errors import (
    START_OVER,
    ConfigError,
    OffsetsGoneError,
    SourceUnreachableError,
    TopicRecreatedError,
    TopicsDeletedError,
    begin_again,
)
from sluice.pipeline.model import Pipeline
from sluice.ranges import OffsetRange, Positions, describe
from sluice.sources.base import Numbering, Source
from sluice.sources.state import Key, TopicState, is_another, is_elsewhere

__all__ = [
    "check", "never_read", "refuse_behind", "refuse_replaced", "refuse_rewritten", "refuse_unordered", "unread_of",
]  # fmt: skip

_CLEAN = "nothing was read or written now; what earlier runs wrote is in the sink, and the position stays where it was"


def check(
    pipeline: str,
    positions: Positions | None,
    states: Sequence[TopicState],
    known_ids: Mapping[str, str],
    open_ranges: Sequence[OffsetRange] = (),
    *,
    deleted: Mapping[str, Sequence[OffsetRange]] = MappingProxyType({}),
    accounted: Positions | None = None,
) -> None:
    """Refuse a run that cannot read the offsets that it must read.

    Parameters
    ----------
    positions
        Committed positions; None before the first run, which starts wherever the broker starts.
    known_ids
        Topic ids that an earlier run saw.
    open_ranges
        Ranges of a batch that was planned and not committed; the run begins with exactly these.
    deleted
        Topics that a pattern matched, and that are no longer there, with what earlier runs planned to read of each and
        did not.
    accounted
        If a pattern says which topics there are: up to where accounts stand. New topics begin at offset 0 then,
        whatever the source has removed of them since.

    Raises
    ------
    ConfigError
        If the pipeline file no longer names a topic that was read before, or a new topic does not begin at offset 0.
    TopicRecreatedError
        When a topic's id or cluster changed, a partition vanished, or a position or planned range lies beyond the end.
    SourceUnreachableError
        If, under ``read_committed``, a position or planned range is after an open transaction: the offsets exist, but
        cannot be read until the transaction ends.
    OffsetsGoneError
        If offsets that must be read are below the log start; with each range. Its subclass
        :class:`~sluice.errors.TopicsDeletedError` if topics of a pattern were deleted.
    """
    for state in states:
        _refuse_another(pipeline, state.topic, known_ids.get(state.topic), state.topic_id)
    if positions is None and not open_ranges:
        return
    known_topics = {*(positions or {}), *(r.topic for r in open_ranges)}
    _same_topics(pipeline, known_topics - set(deleted), states, by_pattern=accounted is not None)
    _not_again(pipeline, known_topics, states, accounted or {})
    if deleted:
        raise _deleted(pipeline, deleted, positions or {})
    planned = {(r.topic, r.partition): r for r in open_ranges}
    gone: list[OffsetRange] = []
    waiting: list[str] = []
    for state in states:
        known_partitions = (positions or {}).get(state.topic, {})
        vanished = sorted(set(known_partitions) - set(state.partitions))
        if vanished:
            raise _recreated(pipeline, f"topic {state.topic!r} no longer has the partitions {vanished}")
        for partition, now in state.partitions.items():
            batch = planned.get((state.topic, partition))
            # a partition that was added since is read from its beginning
            position = batch.start if batch else known_partitions.get(partition, 0)
            furthest = batch.end if batch else position
            # the last stable offset may be below what was read before the isolation level was changed
            end = max(now.end, now.high or 0)
            if furthest > end:
                raise _recreated(
                    pipeline, f"{state.topic}-{partition} ends at {end}, but offsets up to {furthest} were planned"
                )
            if furthest > now.end:
                waiting.append(
                    f"{state.topic}-{partition} can be read up to {now.end}, and offsets up to {furthest} were planned"
                )
            if position < now.start:
                gone.append(OffsetRange(state.topic, partition, position, now.start))
    if waiting:
        # checked first: Spark would move the position back to the last stable offset and read on from there
        raise SourceUnreachableError(
            f"pipeline {pipeline!r}: a transaction is open, and read_committed waits for its end: {'; '.join(waiting)}",
            state=_CLEAN,
            next_step="run again when the transaction has ended; kafka-transactions.sh find-hanging finds one that "
            "hangs. Or set source.kafka.isolation_level back to read_uncommitted",
        )
    if gone:
        total = sum(map(len, gone))
        raise OffsetsGoneError(
            f"pipeline {pipeline!r}: {total} planned offsets are gone from the source: {describe(gone)}",
            state=_CLEAN,
            next_step="run with --recovery ignore_range, or ignore_batch (not with rows: aggregate), which record them "
            "as lost and go on. To avoid this, let the source keep records for longer or run more often; strategy wal "
            "retains what it has read",
            ranges=gone,
        )


def refuse_replaced(pipeline: str, planned: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Refuse records that may be of another topic than the one that was planned, by the same name.

    Parameters
    ----------
    planned, now
        Ids of topics when the run was planned, and after the records were read; one of which nothing is known passes.

    Raises
    ------
    TopicRecreatedError
        When a topic's id or cluster changed.
    """
    for topic, known in planned.items():
        try:
            _refuse_another(pipeline, topic, known, now.get(topic), " while it was read")
        except TopicRecreatedError as error:
            error.state = "what was committed before is in the sink and stays; nothing of this batch was committed"
            raise


def refuse_rewritten(
    pipeline: str,
    positions: Positions | None,
    read: Sequence[OffsetRange],
    seen: Mapping[Key, tuple[int, int]],
    ends: Mapping[Key, int],
) -> None:
    """Refuse a partition that lost records which were read, and gave their offsets to others.

    Parameters
    ----------
    positions
        As for :func:`check`.
    read
        Ranges behind them that were read, too.
    seen
        The epoch and the end of each partition, when the run before planned: no record below that end was of a later
        epoch.
    ends
        Where the records of these epochs end now, as far as that is known.

    Raises
    ------
    TopicRecreatedError
        With the offsets.

    Notes
    -----
    After KIP-320, as consumers detect the truncation of a log.
    """
    furthest = {(t, p): offset for t, parts in (positions or {}).items() for p, offset in parts.items()}
    for item in read:
        key = (item.topic, item.partition)
        furthest[key] = max(item.end, furthest.get(key, 0))
    lost = [
        OffsetRange(*key, ends[key], min(furthest[key], end))
        for key, (_, end) in sorted(seen.items())
        if key in furthest and key in ends and ends[key] < min(furthest[key], end)
    ]
    if lost:
        raise TopicRecreatedError(
            f"pipeline {pipeline!r}: the source lost records that were read, and their offsets may stand for other "
            f"records now: {describe(lost)}. It was put back to an earlier state (an unclean election of a leader, a "
            "failover, or a restored disk)",
            state=_CLEAN,
            next_step="to take the former rows out and read all of it again: "
            f"{begin_again(pipeline, truncate=True)}; to go on behind these offsets, without what they stand for now: "
            f"{begin_again(pipeline)}",
        )


def _refuse_another(pipeline: str, topic: str, known: str | None, now: str | None, when: str = "") -> None:
    if is_elsewhere(known, now):
        one, other = ((text or "").rpartition("/")[0] for text in (now, known))
        raise TopicRecreatedError(
            f"pipeline {pipeline!r}: the connection leads to another cluster than the one that topic {topic!r} was "
            f"read from: the id of this one begins with {one}, that of the other one with {other}",
            state=_CLEAN,
            next_step="let the connection lead to the first cluster again. Offsets of one cluster mean nothing on "
            f"another; to read this one into the same table, {begin_again(pipeline, truncate=True)}; to keep "
            f"the rows of the first one, {START_OVER}",
        )
    if is_another(known, now):
        raise _recreated(pipeline, f"topic {topic!r} was deleted and recreated{when} (its id changed)")


def unread_of(topics: Collection[str], positions: Positions, planned: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Return what was planned to be read of these topics, and lies at or after the position."""
    ends: dict[tuple[str, int], int] = {}
    for r in planned:
        if r.topic in topics:
            ends[r.topic, r.partition] = max(r.end, ends.get((r.topic, r.partition), 0))
    found = ((key, positions.get(key[0], {}).get(key[1], 0), end) for key, end in sorted(ends.items()))
    return [OffsetRange(*key, start, end) for key, start, end in found if end > start]


def refuse_behind(pipeline: str, source: Source, reached: Positions, known_ids: Mapping[str, str]) -> None:
    """Refuse a source whose record of its offsets is older than the account: new records would get offsets of others.

    Call it before :meth:`~sluice.sources.base.Source.snapshot`, which gives offsets.

    Parameters
    ----------
    reached
        Up to where offsets are accounted for.
    known_ids
        The ids of the streams that earlier runs read.

    Raises
    ------
    TopicRecreatedError
        With the stream and both ends.
    """
    for state in source.recorded() if isinstance(source, Numbering) else ():
        for partition, now in state.partitions.items():
            end = reached.get(state.topic, {}).get(partition, 0)
            if end > now.end and not state.is_another(known_ids.get(state.topic)):
                raise TopicRecreatedError(
                    f"pipeline {pipeline!r}: the home has on record that {state.topic}-{partition} ends at {now.end}, "
                    f"and offsets up to {end} are accounted for: sources/{pipeline} in SLUICE_HOME was put back to an "
                    "older state. What is found now would get offsets that other rows have",
                    state=_CLEAN,
                    next_step=f"put the newer sources/{pipeline} back, with the rest of the home; or, to take all rows "
                    f"out and read them again, {begin_again(pipeline, truncate=True)}",
                )


def refuse_unordered(pipeline: Pipeline, positions: Positions, states: Sequence[TopicState]) -> None:
    """Refuse to merge rows by key where nothing says which of two rows of a key is newer.

    Offsets of two partitions cannot be compared: the row that stays would depend on how runs and batches were cut.

    Raises
    ------
    ConfigError
        If a sink has ``mode: upsert`` and no ``sequence``, and the source has more than one partition; or if
        ``sequence: _offset`` says that a key stays in its partition, and a topic that was read has more of them now.
    """
    for key, sink in pipeline.sinks.items():
        if not sink.config.by_offset:
            continue
        every = [f"{state.topic}-{number}" for state in states for number in sorted(state.partitions)]
        new = [
            f"{state.topic}-{number}"
            for state in states
            if state.topic in positions
            for number in sorted(state.partitions)
            if number not in positions[state.topic]
        ]
        by_time = (
            "write sequence: _timestamp (the later record time stays), or the column of the row by which one is newer"
        )
        if new:
            raise ConfigError(
                f"new partitions: {', '.join(new[:8])}{' …' if len(new) > 8 else ''}: the records of a key may be in "
                f"two partitions now, and {key} orders them by offsets",
                state=_CLEAN,
                next_step=f"{by_time}; where tombstones delete rows of a Delta table, which has no such order: produce "
                "the records into a topic with all partitions from the start, and give pipeline and table other names",
            )
        if getattr(sink.config, "sequence", None) is None and len(every) > 1:
            raise ConfigError(
                f"{key}.mode: upsert has no sequence, and the source has {len(every)} partitions: nothing says which "
                "row is newer if the records of a key are in two of them",
                state=_CLEAN,
                next_step=f"write {key}.sequence: _offset if the records of each key are in one partition "
                f"(producers send them with this key); else {by_time}",
            )


def never_read(starts: Positions, begun: Positions) -> str | None:
    """Return a warning if a first run begins above the expected offsets; None otherwise.

    The offsets in between were never planned, so no account has them: they are neither lost nor absent.

    Parameters
    ----------
    starts
        Where the run expected to begin.
    begun
        Where it began.
    """
    gone = [
        OffsetRange(topic, partition, starts.get(topic, {}).get(partition, 0), start)
        for topic, parts in sorted(begun.items())
        for partition, start in sorted(parts.items())
        if start > starts.get(topic, {}).get(partition, 0)
    ]
    if not gone:
        return None
    total = sum(map(len, gone))
    return (
        f"{total} offsets were gone from the source before this pipeline first read the topic: {describe(gone)}. "
        "They were never planned, so no account counts them. If a topic's retention.ms is shorter than its records are "
        "old, Kafka removes records minutes after they were produced"
    )


def _deleted(pipeline: str, deleted: Mapping[str, Sequence[OffsetRange]], positions: Positions) -> TopicsDeletedError:
    unread = [span for topic in sorted(deleted) for span in deleted[topic]]
    places = [f"{t}-{p} to {o}" for t in sorted(deleted) for p, o in sorted(positions.get(t, {}).items())]
    read = ", ".join(places[:8]) + (f" and {len(places) - 8} more" if len(places) > 8 else "")
    left = f"{sum(map(len, unread))} offsets were seen and not read: {describe(unread)}" if unread else ""
    names = ", ".join(repr(topic) for topic in sorted(deleted)[:8]) + (" …" if len(deleted) > 8 else "")
    were = "was" if len(deleted) == 1 else "were"
    return TopicsDeletedError(
        f"pipeline {pipeline!r}: {names} of source.kafka.pattern {were} deleted. Read were {read or 'no offsets'}; "
        f"{left or 'no run saw more'}. What was produced after the last run looked is unknown",
        state=_CLEAN,
        next_step=f"to go on without, {begin_again(pipeline)}, which counts what was seen and not read as lost; "
        "--recovery ignore_range or ignore_batch does so by itself. A topic that is created again under this name has "
        "other records at the same offsets, and is refused",
        ranges=unread,
        topics=list(deleted),
    )


def _not_again(pipeline: str, known: Collection[str], states: Sequence[TopicState], accounted: Positions) -> None:
    """Refuse a topic that the pipeline has let go of: it would be read from its beginning a second time."""
    again = sorted(s.topic for s in states if s.topic not in known and any(accounted.get(s.topic, {}).values()))
    if again:
        raise ConfigError(
            f"pipeline {pipeline!r} has read the topic {again[0]!r} before, went on without it, and now its pattern "
            "matches it again: all of it would be read a second time",
            state=_CLEAN,
            next_step=f"{begin_again(pipeline)} goes on in it where its account ends; or correct source.kafka.pattern",
        )


def _same_topics(
    pipeline: str, known: Collection[str], states: Sequence[TopicState], *, by_pattern: bool = False
) -> None:
    """Refuse a changed set of topics where Spark would lose positions: each batch logs the positions of all topics."""
    names, back = ("matches", "let the pattern match it") if by_pattern else ("names", "add it to the file")
    left_out = sorted(set(known) - {state.topic for state in states})
    if left_out:
        raise ConfigError(
            f"pipeline {pipeline!r} has read the topic {left_out[0]!r}, which its file no longer {names}: its position "
            "would be dropped, and all of it would be read again if the file did so later",
            state=_CLEAN,
            next_step=f"{back} again; or, to go on without it, {begin_again(pipeline)}",
        )
    for state in states:
        cut = sorted(number for number, now in state.partitions.items() if now.start > 0)
        if cut and state.topic not in known and not by_pattern:
            raise ConfigError(
                f"topic {state.topic!r} is new to pipeline {pipeline!r}, and no longer begins at offset 0 in the "
                f"partitions {cut}: a topic that is added later is read from offset 0",
                state=_CLEAN,
                next_step="read it with a pipeline of its own, which begins at the topic's log start",
            )


def _recreated(pipeline: str, what: str) -> TopicRecreatedError:
    return TopicRecreatedError(
        f"pipeline {pipeline!r}: {what}",
        state=_CLEAN,
        next_step="if the topic was recreated, its offsets stand for other records. To take the former rows out: "
        f"{begin_again(pipeline, truncate=True)}; or, to keep them, {START_OVER}",
    )
