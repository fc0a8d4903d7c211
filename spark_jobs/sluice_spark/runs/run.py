"""The frame of every run: takes the lease, gets the verdict, and records how the run ended."""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from sluice.errors import ConfigError, HeldError, LeaseHeldError, SluiceError, described
from sluice.facts import Windows
from sluice.faults import point
from sluice.ledger import Lease, Ledger
from sluice.ledger.events import Degraded, Judged, RunClosed, RunPlanned
from sluice.pipeline import Pipeline
from sluice.ranges import OffsetRange
from sluice.sources.state import TopicState, joined_ids, leaders
from sluice_spark.engine.logs import logger
from sluice_spark.quality.judge import Judge
from sluice_spark.quality.judgement import Judgement
from sluice_spark.runs.context import RunContext
from sluice_spark.runs.reconcile import examine, reconcile
from sluice_spark.runs.restore_check import refuse_restored
from sluice_spark.runs.tables import Tables
from sluice_spark.sinks.base import ReadableSink, SettlingSink, Sink

__all__ = ["Run", "commands_for"]


@dataclass
class Run(ABC):
    """One bounded execution of a pipeline, with a lease, a plan, an account, a verdict and a recorded end."""

    kind: ClassVar[str]

    context: RunContext
    _planned: bool = field(default=False, init=False)
    _found: list[str] = field(default_factory=list, init=False)

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline of the run."""
        return self.context.pipeline

    @property
    def ledger(self) -> Ledger:
        """The ledger that records the run."""
        return self.context.ledger

    @property
    def scope(self) -> str:
        """The scope of the run's lease; see :class:`~sluice.ledger.Lease`."""
        return ""

    def preview(self) -> Any:
        """Return what the run would change, ready for JSON; nothing is changed. Only some kinds of runs know that."""
        raise NotImplementedError(self.kind)

    def execute(self) -> dict[str, Any]:
        """Execute the run; return its account.

        Raises
        ------
        SluiceError
            By type, after the run was closed as ``failed`` in the ledger.
        LeaseHeldError
            If another driver holds the lease or came first; the run is not closed in the ledger then.
        HeldError
            If the pipeline is held; the ledger has the run only if it landed records.
        ConfigError
            Also, without any record of it, if the run id is that of a run of another kind, which has a verdict.
        """
        began = time.monotonic()
        name = self.pipeline.name
        with self.context.resources, self.ledger.acquire(name, self.context.run_id, scope=self.scope) as lease:
            self._refuse_another_kind()
            try:
                verdict = self._drive(lease)
            except LeaseHeldError:
                raise  # fenced: the driver that took over writes the ledger now
            except HeldError as held:
                if self._planned:
                    self._close_failed(lease, held, time.monotonic() - began)
                raise  # each hour's refusal is no run, unless it landed records
            except SluiceError as error:
                error.next_step = commands_for(error.next_step, self.pipeline)
                self._close_failed(lease, error, time.monotonic() - began)
                raise
            except Exception as error:
                unknown = SluiceError(
                    described(error),
                    state="committed batches are in the sink; the next run reads the open batch again",
                    next_step="read the traceback above; run again when the cause is fixed",
                )
                self._close_failed(lease, unknown, time.monotonic() - began)
                raise
            self.ledger.record(
                lease,
                RunClosed(
                    state="done",
                    seconds=round(time.monotonic() - began, 3),
                    verdict=verdict,
                    engine=self.context.engine,
                ),
            )
        logger.info("seconds: %s (query holds ledger, batches and commits)", self.context.watch)
        return self.ledger.runs.account(name, self.context.run_id)

    def _refuse_another_kind(self) -> None:
        """Refuse the id of a run of another kind: it would be taken for another attempt, and lose its verdict.

        Raises
        ------
        ConfigError
            If the ledger has such a run, with a verdict.
        """
        known = self.ledger.runs.find(self.pipeline.name, self.context.run_id)
        if known is not None and known.kind != self.kind and known.verdict is not None:
            raise ConfigError(
                f"{known.run!r} is the id of another run of {self.pipeline.name!r}, of the kind {known.kind}: this one "
                f"is of the kind {self.kind}",
                state="nothing was read or written; that run stays as it is",
                next_step="choose another run id",
            )

    @abstractmethod
    def _drive(self, lease: Lease) -> str | None:
        """Do the work; return the verdict."""

    # --- what every kind of run does -------------------------------------------------------------------------------

    def _reconciled(self, lease: Lease) -> Tables:
        """Return the tables of the present epoch, after reconciling the ledger with them."""
        redriven = self.context.redriven()
        while True:
            tables = self.context.tables(self.ledger.offsets.epoch(self.pipeline.name))
            self._examine(tables)
            reconcile(self.ledger, lease, tables, redriven, forgo=self.context.recovery.ignores)
            if self.ledger.offsets.epoch(self.pipeline.name) == tables.epoch:
                return tables

    def _examine(self, tables: Tables) -> None:
        """Check what others did to the tables; warnings are recorded in the ledger with the plan."""
        for found in examine(tables):
            if found not in self._found:
                logger.warning("%s", found)
                self._found.append(found)
        refuse_restored(self.ledger, self.pipeline.name, tables)

    def _plan(
        self, lease: Lease, ranges: Sequence[OffsetRange], states: Sequence[TopicState], *, epoch: int, **more: Any
    ) -> None:
        known = self.ledger.runs.topic_ids(self.pipeline.name)
        self.ledger.record(
            lease,
            RunPlanned(
                kind=self.kind,
                recovery=self.context.recovery.value,
                epoch=epoch,
                ranges=ranges,
                topic_ids=joined_ids(known, states),
                token=lease.token,
                leaders=self._leaders(states),
                reason=self.context.reason,
                gated=self.context.gate.judge is not None,
                **more,
            ),
        )
        self._planned = True
        for found in self._found:
            self.ledger.record(lease, Degraded(note=found))
        point("run-planned")
        # what a retraction or a redrive of the quarantine takes has other offsets than those of the source
        to_read = f": {sum(map(len, ranges))} offsets to read" if ranges or self.kind == "live" else ""
        logger.info("run %s of %s%s", self.context.run_id, self.pipeline.name, to_read)

    def _leaders(self, states: Sequence[TopicState]) -> list[tuple[str, int, int, int]]:
        """Return the leader epochs that a plan records: those that are seen now, and the known ones of others."""
        if self.kind != "live":
            return []
        known = {key: (*key, *of) for key, of in self.ledger.runs.leaders(self.pipeline.name).items()}
        return list((known | {(t, p): (t, p, epoch, end) for t, p, epoch, end in leaders(states)}).values())

    def _judge(self, lease: Lease, sink: Sink) -> str | None:
        with self.context.watch.phase("judging"):
            runs = self._to_judge()
            if not any(self._did(run) for run in runs):
                idle = None if self.context.judge is None else self.context.judge.idle(self.ledger, self.context.run_id)
                verdict, told = (
                    ("empty", {}) if idle is None else (idle.verdict, idle.as_dict() if idle.history else {})
                )
                self.ledger.record(lease, Judged(verdict=verdict, judgement=told), run_id=self.context.run_id)
                logger.info("no new records: verdict %s", verdict)
                return verdict
            if self.context.judge is None:
                return None
            judgement = self._judgement(lease, self.context.judge, cast(ReadableSink, sink), runs)
            point("judged")
            if isinstance(sink, SettlingSink):
                sink.settled()
            return judgement.verdict

    def _did(self, run: str) -> bool:
        """Return whether a run read records, or emitted what earlier runs had read."""
        ledger, name = self.ledger, self.pipeline.name
        return bool(
            ledger.offsets.accounts(name, run) or any(isinstance(f, Windows) for f in ledger.facts.of_run(name, run))
        )

    def _judgement(self, lease: Lease, judge: Judge, sink: ReadableSink, runs: Sequence[str]) -> Judgement:
        """Judge runs, the last of which is this one, and record it; return the verdict of this one."""
        name, own = self.pipeline.name, self.context.run_id
        gated = [run for run in runs if run == own or self.ledger.verdicts.is_gated(name, run)]
        whole = self.context.gate.summary(gated)
        rest = list(runs) if whole is None else [run for run in runs if run not in gated]
        behind = judge.settle(self.ledger, self.context.open_session, sink, rest) if rest else None
        if behind is not None:
            for run in rest:
                self.ledger.record(lease, Judged(verdict=behind.verdict, judgement=behind.as_dict()), run_id=run)
        if whole is None:
            return cast(Judgement, behind)
        if behind is not None:
            whole = whole.after(behind)
        for run in gated:
            self.ledger.record(lease, Judged(verdict=whole.verdict, judgement=whole.as_dict()), run_id=run)
        return whole

    def _to_judge(self) -> list[str]:
        # rows of a run whose driver died before judging are judged with this run
        return [*self.ledger.verdicts.unjudged(self.pipeline.name, self.kind), self.context.run_id]

    def _close_failed(self, lease: Lease, error: SluiceError, seconds: float) -> None:
        """Record that the run failed. The verdict of an attempt before stays, if this one never began."""
        report = {
            "type": type(error).__name__, "exit_code": int(error.exit_code), "what": error.what, "state": error.state,
            "next": error.next_step,
        }  # fmt: skip
        try:
            known = self.ledger.runs.find(self.pipeline.name, self.context.run_id)
            if not self._planned and known is not None and known.verdict not in (None, "empty"):
                # an attempt on record would take the verdict away, and with it what the verdict holds
                logger.warning("run %s keeps its verdict %s", known.run, known.verdict)
                self.ledger.record(lease, RunClosed(state="failed", error=report))
                return
            if not self._planned and not self.ledger.runs.newest(self.pipeline.name, limit=1):
                return  # a first run that was refused makes no pipeline
            if not self._planned:
                self._plan(lease, [], [], epoch=self.ledger.offsets.epoch(self.pipeline.name).number)
            self.ledger.record(
                lease, RunClosed(state="failed", seconds=round(seconds, 3), error=report, engine=self.context.engine)
            )
        except SluiceError as second:
            logger.warning("the failure could not be recorded in the ledger: %s", second.what)


def commands_for(step: str, pipeline: Pipeline) -> str:
    """Return a next step whose commands find the pipeline: whoever raised the error knew its name at most."""
    step = step.replace("PIPELINE", pipeline.name)
    named = rf"(sluice [a-z-]+ ){re.escape(pipeline.name)}(?![\w.-])"
    return re.sub(named, lambda found: found[1] + pipeline.called, step)
