"""The lag of a pipeline now: the checkpoint's positions against the broker's answer."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from sluice.connections import Connection
from sluice.errors import ConfigError, SluiceError, SourceUnreachableError
from sluice.home import Home
from sluice.lag import Ages, Backlog, Limits, PastRun, Recorded, measure
from sluice.ledger import Epoch, Ledger
from sluice.ledger.cache import Cache
from sluice.pipeline import Pipeline
from sluice.recovery import Route
from sluice.run.checkpoint import Checkpoint
from sluice.run.circuit_breaker import surely_held
from sluice.sources.clusters import bare, bare_positions, named
from sluice.sources.measurable import Isolation, Measurable, Topics
from sluice.sources.state import FirstUnread, Key, TopicState

__all__ = ["Known", "active", "backlog", "backlogs", "waiting"]

_SAMPLES = (0.0, 0.25, 0.5, 0.75)
"""Where records are looked at if the first unread one is from the future: shares of the unread offsets."""


def backlog(
    pipeline: Pipeline,
    cluster: Measurable,
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
    # first: what a run that ends meanwhile has read is no lag without a run
    running = ledger.runs.running(pipeline.name)
    asked = _Asked(pipeline, Known.of(pipeline, home, ledger), running, limits or Limits.of(pipeline.lag), now)
    asked.look(cluster)
    return asked.full(cluster) if ages else asked.plain()


def backlogs(
    pipelines: Sequence[Pipeline], cluster: Measurable, *, home: Home, ledger: Ledger, remembered: Cache[Known]
) -> dict[str, Backlog | SluiceError]:
    """Measure the lags of many pipelines of one cluster: it is asked once for all of them.

    Parameters
    ----------
    remembered
        What is known of them from earlier measurements; used again for those without news in the ledger.

    Returns
    -------
    dict
        By the pipeline's name: its backlog, or why its checkpoint or the ledger cannot be read.
    """
    specs, running = {pipeline.name: pipeline for pipeline in pipelines}, ledger.runs.all_running()
    failed: dict[str, SluiceError] = {}

    def find(names: list[str]) -> dict[str, Known]:
        found = {}
        for name in names:
            try:
                found[name] = Known.of(specs[name], home, ledger)
            except SluiceError as error:
                failed[name] = error
        return found

    def holds(name: str, known: Known) -> bool:
        """Whether neither the checkpoint nor the pipeline's file is another one now."""
        return known.pipeline == specs[name] and known.stamp == _stamp(home.checkpoint(name, known.epoch.number))

    found = remembered.of(ledger, list(specs), find, holds)
    asked = [
        _Asked(specs[name], known, running.get(name), Limits.of(specs[name].lag), None) for name, known in found.items()
    ]
    shared = _Shared(cluster)
    shared.look_at(asked)
    for one in asked:
        one.look(shared)
    shared.read_first(asked)
    return {**failed, **{one.name: one.full(shared) for one in asked}}


@dataclass(frozen=True)
class Known:
    """The positions and runs of a pipeline, from checkpoint and ledger. They hold until its next run or event."""

    pipeline: Pipeline
    epoch: Epoch
    source: Topics
    recorded: Recorded
    held: str | None
    stamp: tuple[int, ...]
    """By which a checkpoint is known that was written, or restored, meanwhile."""

    @classmethod
    def of(cls, pipeline: Pipeline, home: Home, ledger: Ledger) -> Known:
        """Read it.

        Raises
        ------
        SluiceError
            If the checkpoint or the ledger cannot be read.
        """
        name, epoch = pipeline.name, ledger.offsets.epoch(pipeline.name)
        source = pipeline.kafka.at(epoch.positions)
        place = home.checkpoint(name, epoch.number)
        checkpoint, stamp = Checkpoint(place, epoch.positions, prefix=source.prefix), _stamp(place)
        positions, open_batch = checkpoint.positions(), checkpoint.open_batch()
        planned = checkpoint.end_of(open_batch) if open_batch is not None else None
        holds = None if pipeline.recovery.route is Route.LOG else surely_held(ledger, pipeline)  # the log goes on
        return cls(
            pipeline,
            epoch,
            source,
            Recorded(  # of several clusters, the one that is read: by the names that topics have there
                None if positions is None else bare_positions(positions),
                None if planned is None else bare_positions(planned),
                bare_positions(ledger.offsets.furthest(name, epoch.number)),
                {bare(t): i for t, i in ledger.runs.topic_ids(name).items() if named(source.prefix, bare(t)) == t},
                _history(ledger, name),
            ),
            None if holds is None else holds.run,
            stamp,
        )


def _stamp(checkpoint: str) -> tuple[int, ...]:
    found = []
    for folder in ("offsets", "commits"):
        with contextlib.suppress(OSError):
            found.append(os.stat(f"{checkpoint}/{folder}").st_mtime_ns)
    return tuple(found)


class _Asked:
    """One pipeline, and what the broker answers about it."""

    def __init__(
        self, pipeline: Pipeline, known: Known, running: str | None, limits: Limits, now: datetime | None
    ) -> None:
        self.name, self.known = pipeline.name, known
        self._running, self._limits, self._now = running, limits, now
        self._states: list[TopicState] = []
        self._error: SluiceError | None = None

    @property
    def source(self) -> Topics:
        return self.known.source

    @property
    def topics(self) -> set[str]:
        """The topics that are known without the broker: all of them, unless there is a pattern."""
        seen = {*(self.known.recorded.positions or {}), *(self.known.recorded.planned or {})}
        return seen if self.source.pattern is not None else set(self.source.streams)

    def look(self, cluster: Measurable | _Shared) -> None:
        """Ask for the topics' states; a broker that does not answer leaves an error."""
        try:
            names = self.topics.union(cluster.topics_of(self.source))
            self._states = cluster.look(names, isolation_level=self.source.isolation_level)
        except SluiceError as error:
            self._states = [TopicState(topic, "", {}, error=error) for topic in sorted(self.topics)]
            self._error = error
            return
        if self.source.pattern is not None:  # a topic that was deleted has no offsets, and that leaves nothing open
            self._states = [
                TopicState(s.topic, "", {}) if isinstance(s.error, ConfigError) else s for s in self._states
            ]

    def plain(self, ages: Ages | None = None) -> Backlog:
        """Return the backlog, without ages if no times are given."""
        known, start = self.known, self.source.starting_offsets
        found = measure(
            self.name, known.recorded, self._states, start, ages=ages, limits=self._limits, now=self._now
        )  # fmt: skip
        return replace(found, held=known.held, running=self._running, error=found.error or self._error)

    def full(self, cluster: Measurable | _Shared) -> Backlog:
        """Return the backlog with ages, as far as the broker says enough."""
        found = self.plain()
        if self._error is not None:
            return found
        return self.plain(_times(cluster, found, self._limits, self.source.isolation_level, self._now))


class _Shared:
    """The answers of a cluster to one look for many pipelines; other questions go to the cluster one by one."""

    def __init__(self, cluster: Measurable) -> None:
        self._cluster = cluster
        self.at_time, self.retention = cluster.at_time, cluster.retention
        self._down: SourceUnreachableError | None = None
        self._states: dict[Isolation, dict[str, TopicState]] = {}
        self._first: dict[str, dict[tuple[Key, int], FirstUnread | None]] = {}

    def look_at(self, asked: Sequence[_Asked]) -> None:
        """Ask for the states of all their topics; if no broker answers, each will say so."""
        names: dict[Isolation, set[str]] = {}
        for one in asked:
            names.setdefault(one.source.isolation_level, set()).update(one.topics)
        for level, topics in names.items():
            try:
                self._states[level] = {s.topic: s for s in self._cluster.look(topics, isolation_level=level)}
            except SourceUnreachableError as error:  # to ask for each would take the patience for each
                self._down = error
                return
            except SluiceError:
                continue

    def read_first(self, asked: Sequence[_Asked]) -> None:
        """Read the first unread records of all of them."""
        wanted: dict[Isolation, dict[Key, dict[int, int]]] = {}
        for one in asked:
            for key, (start, end) in _behind(one.plain()).items():
                wanted.setdefault(one.source.isolation_level, {}).setdefault(key, {})[start] = end
        for level, spans in wanted.items():
            while spans:  # pipelines that read one partition from several positions need several rounds
                turn = {key: next(iter(starts.items())) for key, starts in spans.items()}
                starts, ends = ({key: span[at] for key, span in turn.items()} for at in (0, 1))
                try:
                    found = self._cluster.first_unread(starts, ends, isolation_level=level)
                except SourceUnreachableError as error:
                    self._down = error
                    return
                except SluiceError:
                    break
                known = self._first.setdefault(level, {})
                known |= {(key, start): found.get(key) for key, start in starts.items()}
                spans = {
                    k: rest for k, own in spans.items() if (rest := {s: e for s, e in own.items() if s != starts[k]})
                }

    def topics_of(self, source: Topics) -> list[str]:
        self._refuse_down()
        return self._cluster.topics_of(source)

    def look(self, topics: Collection[str], *, isolation_level: Isolation) -> list[TopicState]:
        self._refuse_down()
        known = self._states.get(isolation_level, {})
        if known.keys() >= set(topics):
            return [known[topic] for topic in sorted(topics)]
        return self._cluster.look(topics, isolation_level=isolation_level)

    def first_unread(
        self, positions: Mapping[Key, int], ends: Mapping[Key, int], *, isolation_level: Isolation
    ) -> dict[Key, FirstUnread]:
        self._refuse_down()
        known = self._first.get(isolation_level, {})
        if known.keys() >= set(positions.items()):
            return {key: found for key, start in positions.items() if (found := known[key, start]) is not None}
        return self._cluster.first_unread(positions, ends, isolation_level=isolation_level)

    def _refuse_down(self) -> None:
        if self._down is not None:
            raise self._down


def _behind(found: Backlog) -> dict[Key, tuple[int, int]]:
    """Return the unread offsets of each partition that has some."""
    return {
        p.key: (max(p.next, p.start), p.end)
        for p in found.partitions
        if p.records and p.next is not None and p.start is not None and p.end is not None
    }


def _times(
    cluster: Measurable | _Shared, found: Backlog, limits: Limits, isolation_level: Isolation, now: datetime | None
) -> Ages:
    """Fetch what ages are computed from; if a right is missing, ages stay unknown, which is not a failure."""
    behind = _behind(found)
    known = Ages()
    with contextlib.suppress(SluiceError):
        starts, ends = ({key: span[n] for key, span in behind.items()} for n in (0, 1))
        first = dict(cluster.first_unread(starts, ends, isolation_level=isolation_level))
        known = replace(known, first_unread=first)
        first |= _behind_future(cluster, behind, first, isolation_level, now)
        unknown = set(behind) - set(first)
        if unknown and limits.max_age is not None:
            moment = (now or datetime.now(UTC)) - limits.max_age
            at = cluster.at_time(unknown, moment, isolation_level=isolation_level)
            known = replace(known, at_age_limit=at)
        known = replace(known, retention=cluster.retention({p.topic for p in found.partitions}))
    return known


def _behind_future(
    cluster: Measurable | _Shared,
    behind: Mapping[Key, tuple[int, int]],
    first: Mapping[Key, FirstUnread],
    isolation_level: Isolation,
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
    return kafka.active if kafka.clusters is None else kafka.at(ledger().offsets.epoch(pipeline.name).positions).active


def waiting(pipeline: Pipeline, connection: Callable[[str], Connection], *, home: Home, epoch: Epoch) -> int | None:
    """Return the approximate number of waiting records, as a hint; None if the broker does not answer.

    Parameters
    ----------
    connection
        Returns a connection by its id.
    """
    if pipeline.source.kafka is None:
        return None
    source = pipeline.source.kafka.at(epoch.positions)
    kafka = connection(source.active)
    try:
        place = home.checkpoint(pipeline.name, epoch.number)
        found = Checkpoint(place, epoch.positions, prefix=source.prefix).positions()
        positions = None if found is None else bare_positions(found)
        with pipeline.source.kind.cluster(kafka, timeout=5) as cluster:
            states = cluster.snapshot(cluster.topics_of(source), isolation_level=source.isolation_level)
        return measure(pipeline.name, Recorded(positions), states, source.starting_offsets).records
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
            settled=number == 0 and row.state == "failed" and ledger.verdicts.is_decided(pipeline, row.run),
        )
        # older ones do not change the status
        for number, (row, planned, committed) in enumerate(ledger.runs.past(pipeline, limit=9))
    ]
