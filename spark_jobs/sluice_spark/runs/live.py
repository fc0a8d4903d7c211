"""A live run: processes what the source holds now, directly or by way of the write-ahead log."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import ClassVar

from sluice.errors import (
    ConfigError,
    HeldError,
    OffsetsGoneError,
    SinkError,
    SluiceError,
    TopicsDeletedError,
    begin_again,
)
from sluice.faults import point
from sluice.kinds import imported, kind_of
from sluice.ledger import Epoch, Lease
from sluice.ledger.events import Degraded, EpochOpened
from sluice.ranges import OffsetRange, Positions, ranges_between
from sluice.recovery import Route
from sluice.run.actions import Reset
from sluice.run.circuit_breaker import holder, refuse_held
from sluice.run.preflight import never_read, refuse_unordered
from sluice.run.slowest_partition import held_by
from sluice.sources.base import Announcing, CopyError, Copying, Source
from sluice.sources.begin import beginning
from sluice.sources.state import TopicState, ends, starts
from sluice.wal.cleaning import applied_batch, clean
from sluice_spark.engine.logs import logger
from sluice_spark.engine.progress import Progress
from sluice_spark.runs.batches import MicroBatches
from sluice_spark.runs.direct_route import DirectRoute
from sluice_spark.runs.flush import plan_held
from sluice_spark.runs.handover import HandOver
from sluice_spark.runs.log_route import LogRoute, with_state
from sluice_spark.runs.rebuild import due
from sluice_spark.runs.reconcile import reconcile_log
from sluice_spark.runs.reset import ResetRun
from sluice_spark.runs.run import Run
from sluice_spark.runs.sealed_batches import sealed_batches
from sluice_spark.runs.source_check import SourceCheck
from sluice_spark.runs.stateful_route import StatefulRoute, plan_closing, refuse_other
from sluice_spark.runs.tables import Tables
from sluice_spark.sinks.base import TakenBackError
from sluice_spark.strategies.apply import Sealed

__all__ = ["LiveRun"]

_EMPTY_RUNS_KEPT = timedelta(days=90)


@dataclass
class LiveRun(Run):
    """Processes what the source holds when the run starts.

    Parameters
    ----------
    max_records
        Approximate maximum number of records in a batch; None means the default.

    Notes
    -----
    The driver may be killed at any instruction. The next run, with any id and any strategy, finds what is committed,
    reads the open batch's ranges again, and ends with the same rows (less what an ``ignore_*`` strategy skips).
    """

    kind: ClassVar[str] = "live"

    max_records: int | None
    _begin: Positions | None = field(default=None, init=False)

    def _drive(self, lease: Lease) -> str | None:
        try:
            self._refuse_held(lease)
        except HeldError as held:
            if self.context.recovery.route is Route.LOG:
                self._land_alone(lease, SourceCheck(self.context, self.context.opened_source()), held)
            raise
        source = self.context.opened_source()
        check = SourceCheck(self.context, source)
        if isinstance(source, Announcing):
            source.found = self.context.begin_session
        with self.context.watch.phase("planning"):
            try:
                tables = self._reconciled(lease)
            except (SinkError, TakenBackError) as error:
                self._land_alone(lease, check, error)
                raise
            if self.pipeline.origins is not None:  # reconciling may have finished a failover to another cluster
                source = self.context.opened_source()
                check = SourceCheck(self.context, source)
            refuse_other(self.pipeline, tables)
            left = sealed_batches(tables) if tables.epoch.route is Route.LOG else []
            if self.pipeline.stateful is not None:
                self._plan_closing(tables, left)
            states, trouble = self._look(check, tables)
        self._found += source.notes
        if isinstance(trouble, TopicsDeletedError) and not left and self.context.recovery.ignores:
            tables = self._go_on_without(lease, tables, source, trouble)
            states, trouble = self._look(check, tables)
        if trouble is not None and not left:
            raise trouble
        positions = tables.position()
        refuse_unordered(self.pipeline, positions or {}, states)
        ranges = [r for batch in left for r in batch.ranges] + self._ahead(positions, states)
        if not ranges and not tables.opened:
            self._plan_without_records(lease, tables)
        busy = bool(ranges) or positions is None or tables.opened or due(self.ledger, self.pipeline, tables)
        target = self._target(tables) if busy else tables.epoch  # the epoch changes only when there are records
        if not self._planned:
            self._plan(lease, ranges, states, epoch=target.number)
        kind, config = self.pipeline.source.kind, self.pipeline.source.config
        first = positions is None and kind.retention and config.starting_offsets == "earliest"
        if first:
            self._tell_of_gone(lease, {}, starts(states))
        if positions is None and isinstance(config.starting_offsets, dict):
            self._tell_of_gone(lease, config.starting_offsets, self._beginning(states))
        if positions is None and not self._notes_start:
            target = Epoch(target.number, target.route, self._beginning(states))
        if target.number == tables.epoch.number and target != tables.epoch:
            # nothing was planned in this epoch yet: change its route or set its start in place
            self.ledger.record(
                lease, EpochOpened(epoch=target.number, lineage=target.route, positions=target.positions)
            )
            tables = self.context.tables(target)
        if busy:
            batches = self._batches(lease, check, states, positions, sum(map(len, ranges)))
            with self.context.watch.phase("query"):
                tables = self._run_query(batches, tables, left, trouble, target)
            point("query-ended")
            if first:  # Kafka may have removed more between the plan and the query
                self._tell_of_gone(lease, starts(states), tables.checkpoint.initial() or {})
        if self.context.recovery.route is tables.epoch.route is Route.LOG:
            self._clean(lease, tables)
        self._mirror(source, tables)
        self._let_go(source, tables)
        tables.also.settled()
        self._forget_empty(lease)
        return self._judge(lease, tables.sink)

    def _forget_empty(self, lease: Lease) -> None:
        """Remove old runs that found nothing from the ledger, in the first run of each day."""
        days = {row.opened_at[:10] for row in self.ledger.runs.newest(self.pipeline.name, limit=2)}
        if len(days) > 1:
            self.ledger.drop_empty(lease, datetime.now(UTC) - _EMPTY_RUNS_KEPT)

    def _refuse_held(self, lease: Lease) -> None:
        """Refuse to go on if the pipeline is held, as soon as the ledger has what drivers that died had committed."""
        name, run_id = self.pipeline.name, self.context.run_id
        held = holder(self.ledger, self.pipeline)
        if held is not None and self.ledger.verdicts.unfinished_since_judged(name, held.run):
            with suppress(SinkError, TakenBackError):  # which the run meets again, if it is not held
                self._reconciled(lease)
        refuse_held(self.ledger, self.pipeline, run_id, driver=True)

    def _plan_closing(self, tables: Tables, left: Sequence[Sealed]) -> None:
        if tables.applied is None:
            plan_closing(tables, self.ledger.runs.last_plan(self.pipeline.name, tables.epoch.number))
        else:
            plan_closing(tables.applying, [r for batch in left for r in batch.ranges])

    def _plan_without_records(self, lease: Lease, opened: Tables) -> None:
        """Plan a batch without records, if ``flush`` or ``hold`` ask for one."""
        pipeline, tables = self.pipeline, opened.applying
        kept, epoch = pipeline.stateful, opened.epoch.number
        behind = held_by(self.ledger, self.pipeline, epoch)
        if kept is not None and (flush := kind_of("operators", kept.key).flush):
            imported(flush)(self.context, lease, tables, epoch)
        if behind is not None and kept is not None and not opened.opened:
            plan_held(lease, tables, behind.latest - round(kept.delay.total_seconds() * 1000))

    def _land_alone(self, lease: Lease, check: SourceCheck, unreadable: SluiceError) -> None:
        """Land records although nothing can be applied, if the strategy and the epoch are ``wal``.

        The sink cannot be read, it was rolled back, or the pipeline is held.
        Kafka's retention does not wait for the sink.

        Raises
        ------
        SluiceError
            If something was to be landed: ``unreadable``, whose state then says what was landed, or the error that
            prevented the landing.
        """
        epoch = self.ledger.offsets.epoch(self.pipeline.name)
        if not self.context.recovery.route is epoch.route is Route.LOG:
            return
        known = self.ledger.runs.find(self.pipeline.name, self.context.run_id)
        if known is not None and known.verdict not in (None, "empty"):
            return  # a new attempt would take its verdict away; the next run lands what there is
        tables = self.context.tables(epoch)
        try:
            reconcile_log(self.ledger, lease, tables)
            states = check.states(tables)
        except SluiceError as second:
            logger.warning("no records are landed: %s", second.what)
            return
        positions = tables.position()
        ranges = self._ahead(positions, states)
        self._plan(lease, ranges, states, epoch=epoch.number)
        if not ranges:
            return
        if positions is None and not self._notes_start:
            epoch = Epoch(epoch.number, epoch.route, self._beginning(states))
            self.ledger.record(lease, EpochOpened(epoch=epoch.number, lineage=epoch.route, positions=epoch.positions))
            tables = self.context.tables(epoch)
        logger.warning("%s: records are landed in the write-ahead log but not applied", unreadable.what)
        batches = self._batches(lease, check, states, positions, sum(map(len, ranges)))
        LogRoute(batches, unreadable).land(tables, [], None)

    def _batches(
        self, lease: Lease, check: SourceCheck, states: Sequence[TopicState], positions: Positions | None, offsets: int
    ) -> MicroBatches:
        spark = self.context.session()
        self.context.warm_up(spark, self.context.recovery, offsets)
        progress = Progress(ends(states), positions or starts(states))
        reader = self.context.reader(spark, check.source)
        return MicroBatches(self.context, lease, spark, reader, check, states, progress, self.max_records)

    def _run_query(
        self,
        batches: MicroBatches,
        tables: Tables,
        left: Sequence[Sealed],
        trouble: SluiceError | None,
        target: Epoch,
    ) -> Tables:
        """Apply what is left in the log, hand over to the target epoch if it differs, then process the source."""
        if target.number != tables.epoch.number:
            tables = HandOver(LogRoute(batches)).to(target, tables, left)
            left = []
        if tables.epoch.route is Route.LOG:
            LogRoute(batches).land(tables, left, trouble)
        elif trouble is not None:
            raise with_state(
                trouble, "what the write-ahead log held is in the sink; the next run continues from the source alone"
            )
        elif self.pipeline.stateful is not None:
            StatefulRoute(batches).drain(tables)
        else:
            DirectRoute(batches).drain(tables)
        return tables

    def _tell_of_gone(self, lease: Lease, expected: Positions, begun: Positions) -> None:
        """Report in the log and in the ledger which offsets were gone before the pipeline read anything."""
        note = never_read(expected, begun)
        if note is not None:
            logger.warning("%s", note)
            self.ledger.record(lease, Degraded(note=note))

    def _look(self, check: SourceCheck, tables: Tables) -> tuple[list[TopicState], SluiceError | None]:
        try:
            return check.states(tables), None
        except TopicsDeletedError as deleted:
            return [], deleted
        except OffsetsGoneError as gone:
            try:
                self.context.strategy.admit(gone)
            except OffsetsGoneError as refused:
                return [], refused
            return check.source.snapshot(), None
        except SluiceError as error:
            return [], error

    def _go_on_without(self, lease: Lease, tables: Tables, source: Source, deleted: TopicsDeletedError) -> Tables:
        """Begin an epoch without topics that were deleted, and count what was seen of them and not read as lost.

        Spark's checkpoint has their positions: it would take them for lost data in each run.
        """
        logger.warning("%s: the run goes on without", deleted.what)
        closing = ResetRun(self.context, Reset(self.context.run_id, f"deleted: {', '.join(deleted.topics)}"))
        states = source.snapshot()
        reset = closing.plan(tables, source, states)
        reset = replace(reset, route=self.context.recovery.route, reason=closing.action.reason)
        self._found.append(deleted.what)
        self._plan(lease, [*reset.skipped, *self._ahead(reset.positions, states)], states, epoch=tables.epoch.number)
        closing.carry_out(lease, tables, reset)
        return self.context.tables(self.ledger.offsets.epoch(self.pipeline.name))

    def _ahead(self, positions: Positions | None, states: Sequence[TopicState]) -> list[OffsetRange]:
        return ranges_between(self._beginning(states) if positions is None else positions, ends(states))

    @property
    def _notes_start(self) -> bool:
        """Whether Spark's checkpoint is to say where the pipeline began, and not the epoch."""
        source = self.pipeline.source
        return source.kind.notes_start and isinstance(source.config.starting_offsets, str)

    def _beginning(self, states: Sequence[TopicState]) -> Positions:
        """Return the positions at which a pipeline starts that has read nothing yet."""
        if self._begin is None:
            self._begin = beginning(self.pipeline.source.config.starting_offsets, states, self.context.opened_source())
        return self._begin

    def _target(self, tables: Tables) -> Epoch:
        """Return the epoch that this run's strategy needs: the present one or the next."""
        now = tables.epoch
        if self.context.recovery.route is now.route:
            return now
        committed = tables.sink.version() >= 0 or tables.filled.version() >= 0
        begun = committed or bool(tables.checkpoint.planned())
        if begun and self.pipeline.stateful is not None:
            rebuild = self.pipeline.no_rebuilding is None
            again = begin_again(self.pipeline.name, rebuild=rebuild)
            again += ", which makes what is kept again" if rebuild else ", which drops what is kept"
            raise ConfigError(
                f"pipeline {self.pipeline.name!r} has {self.pipeline.kept_by}, and cannot change to or from strategy "
                "wal: what is kept between runs belongs to the route that it came by",
                state="nothing was read or written; the position stays where it was",
                next_step=f"run with --recovery {'wal' if now.route is Route.LOG else 'replay'} as before; or, for "
                f"the new strategy, change recovery in the file, and {again}",
            )
        if committed and self.pipeline.aggregates:
            raise ConfigError(
                f"pipeline {self.pipeline.name!r} has rows: aggregate, and cannot change to or from strategy wal: "
                "the two routes would cut its batches differently",
                state="nothing was read or written; the position stays where it was",
                next_step=f"run with --recovery {'wal' if now.route is Route.LOG else 'replay'} as before; or, for "
                f"the new strategy, {begin_again(self.pipeline.name)} with recovery in the file changed",
            )
        self._refuse_to_forget(tables)
        # begun: a planned batch may have left files, or a driver that still prepares it: a new epoch excludes both
        return Epoch(now.number + 1 if begun else now.number, self.context.recovery.route, now.positions)

    def _refuse_to_forget(self, tables: Tables) -> None:
        """Refuse to leave an epoch before what a user decided of its open batch was done.

        Raises
        ------
        ConfigError
            If the next run of the present route has yet to do it. Batches in the log are applied before the epoch ends.
        """
        name, now, batch = self.pipeline.name, tables.epoch, tables.checkpoint.open_batch()
        decided = None if batch is None else self.ledger.verdicts.decision(name, now.number, batch)
        if decided is None or now.route is Route.LOG or (batch or 0) <= tables.filled.version():
            return  # nothing was decided, or the sink has what was
        what = "accepted" if decided.event == "VerdictAccepted" else "given up"
        raise ConfigError(
            f"batch {batch} of {name!r} was {what} ({decided.reason}): "
            "a run has to do that before the strategy changes",
            state="nothing was read or written; the position stays where it was",
            next_step=f"sluice run {self.pipeline.called} --recovery replay does it; then change the strategy",
        )

    def _let_go(self, source: Source, tables: Tables) -> None:
        """Tell the source which records it need not keep; best effort."""
        try:
            source.done(tables.checkpoint.positions() or {})
        except (SluiceError, OSError) as error:
            logger.warning("the source still has what was read: %s", error)

    def _mirror(self, source: Source, tables: Tables) -> None:
        """Copy the committed positions into the consumer group that the pipeline file names; best effort."""
        group, positions = self.pipeline.lag.mirror_group, tables.checkpoint.positions()
        if group is None or not positions or not isinstance(source, Copying):
            return
        at = f"epoch {tables.epoch.number} batch {tables.sink.version()} run {self.context.run_id}"
        note = f"sluice {self.pipeline.name} {at}"
        try:
            count = source.copy(group, positions, note)
        except CopyError as error:
            logger.warning("the positions could not be copied into the consumer group %s: %s", group, error)
        else:
            logger.info("the positions of %d partitions were copied into the consumer group %s", count, group)

    def _applied(self, tables: Tables) -> int:
        """Return the newest batch of the log that is not needed any more."""
        if tables.applied is None:
            return tables.sink.version()
        tables.log.refresh()
        return applied_batch(tables.log, tables.epoch.number, tables.applying.checkpoint.positions())

    def _clean(self, lease: Lease, tables: Tables) -> None:
        """Remove segments that are older than ``wal.keep``."""
        threshold = datetime.now(UTC) - self.pipeline.wal.keep
        applied = {tables.epoch.number: self._applied(tables)}
        try:
            found = clean(self.ledger, lease, tables.log, applied, threshold, thorough=False)
        except SinkError as error:  # the records are processed; a later run can remove old segments
            logger.warning("the write-ahead log could not be cleaned: %s", error)
            return
        if found.segments:
            logger.info(
                "%d segments older than %s were removed", len(found.segments), threshold.isoformat("T", "seconds")
            )
