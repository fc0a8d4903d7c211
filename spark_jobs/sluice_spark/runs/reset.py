"""A run that begins a pipeline again in a new epoch, with a fresh checkpoint."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

from sluice.errors import START_OVER, CheckpointError, ConfigError
from sluice.facts import Windows
from sluice.faults import point
from sluice.ledger import REDRIVEN, Lease
from sluice.ledger.events import PipelineReset
from sluice.ledger.resets import described
from sluice.pipeline.operator import operator_of
from sluice.ranges import OffsetRange, Positions
from sluice.run import actions
from sluice.run.interval import moment_of
from sluice.run.preflight import refuse_behind, unread_of
from sluice.run.rebuild_plan import began
from sluice.run.reset_plan import Reset, Standing, may_hold, of_windows, plan, possible, still_open, united
from sluice.run.transfer import Transfer
from sluice.sources.base import Numbering, Source
from sluice.sources.begin import beginning
from sluice.sources.state import TopicState
from sluice_spark.engine.logs import logger
from sluice_spark.runs.epoch_end import HANDOVER, RESET, open_next, seal_off
from sluice_spark.runs.rebuild import readable
from sluice_spark.runs.reconcile import examine, reconcile
from sluice_spark.runs.redrive import REDRIVING, refuse_beside_intervals
from sluice_spark.runs.restore_check import refuse_restored
from sluice_spark.runs.run import Run
from sluice_spark.runs.tables import Tables
from sluice_spark.sinks.also import TAKEN
from sluice_spark.sinks.base import NOTHING, AcceptingSink, Fence, ReplaceableSink, TakenBackError, overtaken
from sluice_spark.sinks.parquet.rows_by_run import RowsByRun
from sluice_spark.sinks.parquet.slice import Slice

__all__ = ["EpochRun", "ResetRun"]

_KEPT = "nothing was reset; the table, the checkpoint and the ledger are unchanged"


@dataclass
class EpochRun(Run):
    """A run that closes the pipeline's epoch and opens the next one.

    Notes
    -----
    One commit to the sink decides: it takes the number of the batch that would come next, so that no driver that still
    works in the old epoch commits anything more. Its metadata has all that follows from it (the quarantine, the
    ledger), so that any later run finishes it if the driver dies. The old checkpoint is not read, unless the account
    does not say where a partition stands, and it is not removed. No Spark session is needed.
    """

    def preview(self) -> dict[str, Any]:
        """Return what would be done; nothing is changed, and no lease is needed."""
        self.check()
        with self.context.resources:
            tables = self.context.tables(self.ledger.offsets.epoch(self.pipeline.name))
            source = self.context.opened_source()
            # a look for new records would give them offsets
            states = source.recorded() if isinstance(source, Numbering) else None
            found = self.plan(tables, source, states)
            last = self.ledger.offsets.last_batch(self.pipeline.name, tables.epoch.number)
            if (there := tables.sink.version()) > (last.batch if last else -1):
                note = f"the sink holds batch {there}, which the ledger does not have: it is entered first"
                found = replace(found, notes=(*found.notes, f"{note}, and the new epoch begins behind it"))
        return found.as_dict() | {"given_up": list(found.given_up)}

    @abstractmethod
    def check(self) -> None:
        """Refuse what this pipeline cannot do."""

    @abstractmethod
    def plan(self, tables: Tables, source: Source, states: Sequence[TopicState] | None = None) -> Reset:
        """Return what is to be done.

        Parameters
        ----------
        source
            What the old epoch reads.
        states
            What the new epoch's source has, if a user asked it before.

        Raises
        ------
        ConfigError
            If it cannot be done in this way, or there is nothing to go on from.
        SluiceError
            If the source does not answer.
        """

    def _settled(self, lease: Lease, *, truncate: bool = False) -> Tables:
        """Return the tables of the present epoch, after entering what the sink holds and the ledger does not know."""
        redriven = self.context.redriven()
        while True:
            tables = self.context.tables(self.ledger.offsets.epoch(self.pipeline.name))
            try:
                self._found += examine(tables, leave=True)
                redriven.also.examine(redriven.sink, leave=True)
                refuse_restored(self.ledger, self.pipeline.name, tables)
            except TakenBackError as error:
                if not truncate:
                    raise
                logger.warning("%s", error.what)
            except CheckpointError as error:
                if not truncate or tables.sink.is_cut_off():
                    raise
                logger.warning("%s", error.what)
            reconcile(
                self.ledger, lease, tables, redriven,
                forgo=truncate or self.context.recovery.ignores, unchecked=True, emptied=truncate,
            )  # fmt: skip
            if self.ledger.offsets.epoch(self.pipeline.name).number == tables.epoch.number:
                return tables

    def _reached(self, tables: Tables) -> Positions:
        """Return the position by the account; where that has none, by the epoch, else by its checkpoint."""
        found: Positions = {}
        with suppress(CheckpointError):
            found = {topic: dict(parts) for topic, parts in (tables.checkpoint.initial() or {}).items()}
        for known in (tables.epoch.positions or {}, self.ledger.offsets.reached(self.pipeline.name)):
            for topic, parts in known.items():
                found.setdefault(topic, {}).update(parts)
        return found

    def carry_out(self, lease: Lease, tables: Tables, reset: Reset) -> None:
        """Close the epoch and open the next one; whoever calls it has planned the run."""
        there, last = tables.sink.as_it_is(), self.ledger.offsets.last_batch(self.pipeline.name, tables.epoch.number)
        number = max(tables.sink.version(), last.batch if last else -1) + 1
        told = reset.as_dict()
        note: dict[str, Any] = {
            HANDOVER: {key: told[key] for key in ("epoch", "lineage", "positions")},
            RESET: told, "run": self.context.run_id, "pipeline": self.pipeline.name,
        }  # fmt: skip
        if tables.also.taken:
            note[TAKEN] = tables.also.taken
        removed: dict[tuple[str, int], int] = {}
        if there is not None and reset.truncated:
            removed = self._empty(lease, tables, cast(ReplaceableSink, there[0]), there[1], number, note)
        elif there is not None:
            lease.verify()
            point("before-sink-commit")
            if not there[0].commit(NOTHING, there[1], number, note):
                raise self._overtaken(tables, number)
        point("epoch-closed")
        tables.also.restart(number, self.context.run_id)
        if self.pipeline.stateful is not None:  # left by an attempt to rebuild state, which no run repeats
            Transfer(tables.applying.checkpoint.path, lease.token).clear()
        seal_off(tables, note)
        replaced = [[*key, count] for key, count in removed.items()]
        open_next(self.ledger, lease, tables, {**note, "version": number, "replaced": replaced})
        point("epoch-opened")
        done = PipelineReset(**{**told, "removed": sum(removed.values())})
        logger.info("epoch %d was closed; %s", tables.epoch.number, described(done))

    def _empty(
        self, lease: Lease, tables: Tables, sink: ReplaceableSink, schema: Any, number: int, note: dict[str, Any]
    ) -> dict[tuple[str, int], int]:
        """Take all rows of the pipeline out of the sink, by the commit that closes the epoch."""
        sink.check_replaceable()
        tables.quarantine.check_replaceable()
        if isinstance(sink, AcceptingSink):
            sink.accept()
        fence = Fence(sink.table_version(), lambda other: other.get("interval") is not None)
        name = self.pipeline.name
        gone: Slice
        if self.pipeline.aggregates:
            gone = RowsByRun([], runs=frozenset(run.run for run in self.ledger.runs.newest(name, limit=1 << 31)))
        else:
            gone = Slice(may_hold(self.ledger, name))
        lease.verify()
        point("before-sink-commit")
        removed = sink.replace(gone, NOTHING, schema, number, note, name=tables.batch_name(number), fence=fence)
        if removed is None:
            raise self._overtaken(tables, number)
        return removed

    def _overtaken(self, tables: Tables, number: int) -> Exception:
        return overtaken(
            f"committed batch {number} to {tables.sink.path}",
            state="the epoch is still open; this driver did not close it",
            next_step="run the same command again: it begins after that batch",
        )


@dataclass
class ResetRun(EpochRun):
    """Begins the pipeline again where the user says; see :mod:`sluice.run.reset_plan`."""

    kind: ClassVar[str] = "reset"

    action: actions.Reset

    def check(self) -> None:
        """Refuse what this pipeline cannot do."""
        wanted = self.action
        possible(self.pipeline, wanted.begin, truncate=wanted.truncate, rebuild=wanted.rebuild)

    def _drive(self, lease: Lease) -> str | None:
        self.check()
        tables = self._settled(lease, truncate=self.action.truncate)
        if self.ledger.offsets.resets(self.pipeline.name).by(self.context.run_id):  # an earlier attempt of this run
            self._plan(lease, [], [], epoch=tables.epoch.number)
            logger.info("this run has reset the pipeline already")
            return None
        reset = self.plan(tables, self.context.opened_source())
        self._plan(lease, [], [], epoch=tables.epoch.number)
        if reset.cluster is None and self._stands(tables, reset):
            logger.info("epoch %d stands there already, and nothing was read in it yet", tables.epoch.number)
            return None
        if reset.given_up and not self.action.agreed:
            raise ConfigError(
                f"this does not come back: {'; '.join(reset.given_up)}",
                state=_KEPT,
                next_step="if that is meant, add --yes; --dry-run shows all that would be done",
            )
        with ExitStack() as fences:
            if reset.truncated:
                self._keep_out_others(fences)
            self.carry_out(lease, tables, reset)
        return None

    def plan(self, tables: Tables, source: Source, states: Sequence[TopicState] | None = None) -> Reset:
        """Return what is to be done."""
        name = self.pipeline.name
        # a ledger that was lost knows no run, and what the sink holds it has just learnt
        if not self.ledger.runs.newest(name, kind="live", limit=1) and not self.ledger.offsets.reached(name):
            raise ConfigError(
                f"the ledger has no live run of {name!r}: there is nothing to reset",
                state=_KEPT,
                next_step=f"sluice run {self.pipeline.called} starts the first one",
            )
        accounted, reached = united(self.ledger, name), self._reached(tables)
        if not self.action.truncate:  # with it, no row stays whose offset another one could get
            refuse_behind(name, source, reached, self.ledger.runs.topic_ids(name))
        states, moment = source.snapshot() if states is None else states, self._moment()
        begin = {} if moment is None else beginning(moment, states, source)
        if moment is None:
            states = [_there(state, source, reached) for state in states]
        first = self.pipeline.source.config.starting_offsets
        planned = self.ledger.runs.last_plan(name, tables.epoch.number)
        with suppress(CheckpointError):
            planned += (
                tables.checkpoint.ranges_of(batch) if (batch := tables.checkpoint.open_batch()) is not None else []
            )
        reset = plan(
            self.pipeline,
            tables.epoch,
            reason=self.context.reason or "",
            begin=begin,
            truncate=self.action.truncate,
            standing=Standing(
                reached,
                accounted,
                self.ledger.runs.topic_ids(name),
                unread_of({r.topic for r in planned}, reached, planned),
                {} if accounted else beginning(first, states, source),
            ),
            states=states,
        )
        self._refuse_former_segments(tables, reset)
        if tables.sink.as_it_is() is None:
            if accounted and not self.action.truncate:
                raise ConfigError(
                    f"there is no sink at {tables.sink.path}, and the ledger has rows in it",
                    state=_KEPT,
                    next_step="restore it; or let them be written again: add --truncate --from earliest",
                )
            reset = replace(reset, truncated=True)  # nothing closes the epoch there, and no account of it stands
        reset = replace(reset, held=tuple(self._held(tables)) if reset.truncated else ())
        return self._to_rebuild(tables, source, reset) if self.action.rebuild else self._with_state(tables, reset)

    def _to_rebuild(self, tables: Tables, source: Source, reset: Reset) -> Reset:
        """Say of what the new epoch's state is made again, after checking that it can be."""
        known, name = None, self.pipeline.name
        with suppress(CheckpointError):
            known = tables.checkpoint.definition()
        if known is not None and known[0] != self.pipeline.keeps:
            raise ConfigError(
                f"epoch {tables.epoch.number} of {name!r} has state of {known[0]}, and the pipeline file has "
                f"{self.pipeline.keeps}: there is no state to rebuild",
                state=_KEPT,
                next_step="leave --rebuild-state out",
            )
        needed, _ = readable(self.context, source, reset.epoch)
        notes = [
            "what is open, or remembered, is kept: the first run of the new epoch makes it again, of at most "
            f"{needed.records:,} records that earlier runs read"
        ]
        if self.pipeline.tables:
            notes.append("these records are joined with the tables as they are then")
        return replace(reset, rebuild=True, notes=(*reset.notes, *notes))

    def _refuse_former_segments(self, tables: Tables, reset: Reset) -> None:
        """Refuse to go on beside a log that holds records of a former topic: a redrive would take them for others."""
        if any(span.topic in reset.recreated for _, span in tables.log.known()):
            raise ConfigError(
                f"the write-ahead log {tables.log.path} holds records of the former topic {reset.recreated[0]!r}: its "
                "offsets stand for other records now",
                state=_KEPT,
                next_step=f"to keep them, {START_OVER}. To discard them, with Spark: DELETE FROM "
                f"delta.`{tables.log.path}` WHERE true; then run this again",
            )

    def _moment(self) -> Any:
        return self.action.begin if self.action.begin in (None, "earliest", "latest") else moment_of(self.action.begin)

    def _held(self, tables: Tables) -> list[tuple[int, int]]:
        """Return, for redrives and intervals, the sink's newest batch where the ledger knows of later ones."""
        name, last = self.pipeline.name, self.ledger.offsets.last_batches(self.pipeline.name)
        writers = {REDRIVEN: self.context.redriven()}
        for known in self.ledger.offsets.intervals(name):
            writers[-known.number] = tables.of_interval(name, known.interval, known.number)
        held = {number: writer.sink.version() for number, writer in writers.items() if number in last}
        return [(number, batch) for number, batch in sorted(held.items()) if batch < last[number]]

    def _with_state(self, tables: Tables, reset: Reset) -> Reset:
        """Say what becomes of what Spark's checkpoint keeps from run to run."""
        if reset.truncated:
            return reset
        known = None
        with suppress(CheckpointError):
            known = tables.checkpoint.definition()
        name, number = self.pipeline.name, tables.epoch.number
        # also of what this epoch was to go on with, and no run has made again yet
        resets = self.ledger.offsets.resets(name)
        first = began(self.ledger, name, number) if number in resets.rebuilt else number
        latest, closed = self.ledger.facts.reach(name, range(first, number + 1))
        given_up, notes = list(reset.given_up), list(reset.notes)
        last = self.ledger.offsets.last_batch(name, number)
        waiting = 0 if last is None else last.batch + 1
        decided = self.ledger.verdicts.decision(name, number, waiting)
        if decided is not None:
            what = "accepted" if decided.event == "VerdictAccepted" else "given up"
            notes.append(
                f"batch {waiting} was {what} ({decided.reason}), which is void: "
                "what the new epoch reads is judged as new"
            )
        window, was = self.pipeline.window, operator_of(known and known[0])
        if latest is not None or window is not None:
            written = any(m["epoch"] >= resets.base and m["rows"] for m in self.ledger.facts.told(name, Windows))
            ever = self.ledger.facts.reach(name, range(resets.base, number + 1))
            if window is not None and window.output == "complete":  # which takes the place of whatever rows there are
                written = any(entry.account.counts.written for entry in self.ledger.offsets.entries(name))
            dropped, told = of_windows(
                window,
                written=written,
                are_open=not (was and was.dropped) and still_open(known, latest, closed),
                before=str(known[1].get("output", "append")) if known and known[0] == "window" else "append",
                latest=ever.latest,
                closed_to=ever.closed_to,
                intervals=self.pipeline.no_intervals is None,
            )
            given_up += dropped
            notes += told
        if was is not None and was.dropped and latest is not None:
            given_up.append(was.dropped)
        both = dict.fromkeys((was, operator_of(self.pipeline.keeps)))
        notes += [operator.begins for operator in both if operator is not None and operator.begins]
        return replace(reset, given_up=tuple(given_up), notes=tuple(notes))

    def _stands(self, tables: Tables, reset: Reset) -> bool:
        """Return whether the present epoch is what this reset would open, and nothing was planned in it."""
        now, name = tables.epoch, self.pipeline.name
        if (now.route, now.positions) != (reset.route, reset.positions) or tables.checkpoint.planned():
            return False
        if tables.applying.checkpoint.planned():  # an attempt to make its state again
            return False
        if self.ledger.offsets.last_batch(name, now.number) is not None or reset.recreated:
            return False
        resets = self.ledger.offsets.resets(name)
        if reset.rebuild != (now.number in resets.rebuilt):
            return False
        return resets.base == now.number if reset.truncated else not reset.skipped

    def _keep_out_others(self, fences: ExitStack) -> None:
        """Fence redrives and intervals: rows of theirs would come after all rows have left."""
        name = self.pipeline.name
        # this lease first: an interval that begins now sees it, and one that has begun is seen here
        fences.enter_context(self.ledger.acquire(name, self.context.run_id, scope=REDRIVING))
        refuse_beside_intervals(self.ledger, name, _KEPT)
        for known in self.ledger.offsets.intervals(name):
            fences.enter_context(self.ledger.acquire(name, self.context.run_id, scope=known.interval))


def _there(state: TopicState, source: Source, reached: Positions) -> TopicState:
    """Return a state without what is gone right behind the position, such as files that were moved away."""
    parts = dict(state.partitions)
    for number, part in state.partitions.items():
        at = first = max(reached.get(state.topic, {}).get(number, part.start), part.start)
        for gone in source.missing(OffsetRange(state.topic, number, at, part.end)) if at < part.end else ():
            if gone.start > at:
                break
            at = gone.end
        if at > first:
            parts[number] = replace(part, start=at)
    return replace(state, partitions=parts)
