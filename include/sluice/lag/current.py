"""The lag of a pipeline now: the checkpoint's positions against the broker's answer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sluice.connections import Connection
from sluice.errors import ConfigError, SluiceError
from sluice.home import Home
from sluice.lag import Backlog, Limits, PastRun, measure
from sluice.ledger import Epoch, Ledger
from sluice.pipeline import Pipeline
from sluice.recovery import Route
from sluice.run.checkpoint import Checkpoint
from sluice.run.held import surely_held
from sluice.sources.kafka.cluster import Cluster
from sluice.sources.kafka.clusters import bare, bare_positions, named
from sluice.sources.kafka.settings import KafkaSettings
from sluice.sources.state import FirstUnread, Key, TopicState

__all__ = ["active", "backlog", "waiting"]

_SAMPLES = (0.0, 0.25, 0.5, 0.75)
"""Where records are looked at if the first unread one is from the future: shares of the unread offsets."""


def backlog(
    pipeline: Pipeline,
    cluster: Cluster,
    *,
    home: Home,
    ledger: Ledger,
    limits: Limits | None = None,
    now: datetime | None = None,
    ages: bool = True,
) -> Backlog:
    """Measure the lag of a pipeline.

    The checkpoint and the ledger are read before the broker is asked, so that a run in between cannot make the lag
    negative. If the broker is silent or refuses, no exception is raised: the verdict is ``UNKNOWN`` or ``AUTH``, and
    the typed error is in ``error``.

    Parameters
    ----------
    limits
        Limits to use instead of those in the pipeline file.
    now
        The time from which ages are counted, for tests; by default the time of the broker's answer.
    ages
        Whether to fetch the first unread records and the topics' retention time. If False, ages are unknown.

    Raises
    ------
    SluiceError
        If the checkpoint or the ledger cannot be read.
    """
    name, epoch = pipeline.name, ledger.epoch(pipeline.name)
    source = pipeline.kafka.at(epoch.positions)
    checkpoint = Checkpoint(home.checkpoint(name, epoch.number), epoch.positions)
    running = ledger.running(name)
    positions, open_batch = checkpoint.positions(), checkpoint.open_batch()
    planned = checkpoint.end_of(open_batch) if open_batch is not None else None
    history = _history(ledger, name)
    # of several clusters, the one that is read: by the names that topics have there
    positions = None if positions is None else bare_positions(positions)
    planned = None if planned is None else bare_positions(planned)
    furthest = bare_positions(ledger.furthest(name, epoch.number))
    known_ids = {bare(t): i for t, i in ledger.topic_ids(name).items() if named(source.prefix, bare(t)) == t}
    limits = limits or Limits.of(pipeline.lag)
    holds = None if pipeline.recovery.route is Route.LOG else surely_held(ledger, pipeline)  # the log goes on

    def judge(**known: Any) -> Backlog:
        found = measure(
            name,
            positions,
            states,
            source.starting_offsets,
            planned=planned,
            known_ids=known_ids,
            furthest=furthest,
            history=history,
            limits=limits,
            running=running,
            now=now,
            **known,
        )
        return replace(found, held=None if holds is None else holds.run)

    read = {*(positions or {}), *(planned or {})} if source.pattern is not None else set(source.streams)
    try:
        names = read.union(cluster.topics_of(source))
        states = cluster.look(names, isolation_level=source.isolation_level)
    except SluiceError as error:
        states = [TopicState(topic, "", {}, error=error) for topic in sorted(read)]
        return judge(error=error)
    if source.pattern is not None:  # a topic that was deleted has no offsets, and that is no question left open
        states = [TopicState(s.topic, "", {}) if isinstance(s.error, ConfigError) else s for s in states]
    if not ages:
        return judge()
    return judge(**_times(cluster, judge(), limits, source.isolation_level, now))


def _times(
    cluster: Cluster, found: Backlog, limits: Limits, isolation_level: str, now: datetime | None
) -> dict[str, Any]:
    """Fetch what ages are computed from; if a right is missing, ages stay unknown, which is not a failure."""
    behind = {
        p.key: (max(p.next, p.start), p.end)
        for p in found.partitions
        if p.records and p.next is not None and p.start is not None and p.end is not None
    }
    known: dict[str, Any] = {}
    with contextlib.suppress(SluiceError):
        known["first_unread"] = cluster.first_unread(
            {key: span[0] for key, span in behind.items()},
            {key: span[1] for key, span in behind.items()},
            isolation_level=isolation_level,
        )
        known["first_unread"] |= _behind_future(cluster, behind, known["first_unread"], isolation_level, now)
        unknown = set(behind) - set(known["first_unread"])
        if unknown and limits.max_age is not None:
            moment = (now or datetime.now(UTC)) - limits.max_age
            known["at_age_limit"] = cluster.at_time(unknown, moment, isolation_level=isolation_level)
        known["retention"] = cluster.retention({p.topic for p in found.partitions})
    return known


def _behind_future(
    cluster: Cluster,
    behind: Mapping[Key, tuple[int, int]],
    first: Mapping[Key, FirstUnread],
    isolation_level: str,
    now: datetime | None,
) -> dict[Key, FirstUnread]:
    """Return the first unread records that are from the future, with the times of some records behind them."""
    moment = (now or datetime.now(UTC)).timestamp()
    ahead = {key: found for key, found in first.items() if found.is_ahead(moment)}
    others: dict[Key, list[float]] = {key: [] for key in ahead}
    for share in _SAMPLES if ahead else ():
        starts = {key: start + 1 + int((end - start - 1) * share) for key in ahead for start, end in [behind[key]]}
        starts = {key: start for key, start in starts.items() if start < behind[key][1]}
        ends = {key: behind[key][1] for key in starts}
        for key, found in cluster.first_unread(starts, ends, isolation_level=isolation_level).items():
            others[key] += [] if found.time is None else [found.time]
    return {key: replace(found, others=tuple(others[key])) for key, found in ahead.items()}


def active(pipeline: Pipeline, ledger: Callable[[], Ledger]) -> str:
    """Return the connection of the cluster that the pipeline reads now; only if there are several, the ledger knows."""
    kafka = pipeline.kafka
    return kafka.active if kafka.clusters is None else kafka.at(ledger().epoch(pipeline.name).positions).active


def waiting(
    pipeline: Pipeline, kafka: Connection | Sequence[Connection] | None, *, home: Home, epoch: Epoch
) -> int | None:
    """Return the approximate number of waiting records, as a hint; None if the broker does not answer.

    Parameters
    ----------
    kafka
        The source's connection, or those of several clusters.
    """
    if kafka is None or pipeline.source.kafka is None:
        return None
    source = pipeline.source.kafka.at(epoch.positions)
    if not isinstance(kafka, Connection):
        kafka = next(c for c in kafka if c.conn_id == source.active)
    try:
        found = Checkpoint(home.checkpoint(pipeline.name, epoch.number), epoch.positions).positions()
        positions = None if found is None else bare_positions(found)
        with Cluster(KafkaSettings.from_connection(kafka), timeout=5) as cluster:
            states = cluster.snapshot(cluster.topics_of(source), isolation_level=source.isolation_level)
        return measure(pipeline.name, positions, states, source.starting_offsets).records
    except SluiceError:
        return None


def _history(ledger: Ledger, pipeline: str) -> list[PastRun]:
    """Return the newest closed live runs, newest first: as many as the status needs."""
    return [
        PastRun(
            row.state,
            planned,
            committed,
            (row.error or {}).get("exit_code"),
            settled=number == 0 and row.state == "failed" and ledger.is_decided(pipeline, row.run),
        )
        for number, (row, planned, committed) in enumerate(ledger.past(pipeline, limit=9))  # nobody asks of older ones
    ]
