"""Judges batches before they are committed: nothing of a batch whose verdict fails is published."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice.errors import QualityError
from sluice.facts import Profile
from sluice.faults import point
from sluice.fields import TAKES_AWAY
from sluice.ledger import Lease, Ledger
from sluice.ledger.events import Judged
from sluice.pipeline import Pipeline
from sluice.ranges import Counts, LostRange, OffsetRange
from sluice.run.circuit_breaker import FAILED
from sluice.run.verdict import causes, faults, worse
from sluice_spark.batch.writer import BatchWriter, PreparedBatch
from sluice_spark.engine.failures import ask_engine
from sluice_spark.engine.logs import logger
from sluice_spark.quality.history import with_past
from sluice_spark.quality.judge import Judge
from sluice_spark.quality.judgement import Judgement
from sluice_spark.quality.limits import Excess

__all__ = ["Gate"]

_ON_RECORD = "nothing of this batch is in the sink or in the quarantine"


@dataclass
class Gate:
    """Stands between the files of a batch and its commit; write, audit, publish.

    What a user decided of a batch that waited counts in every run, also in one that judges nothing.

    Parameters
    ----------
    judge
        None if batches are judged behind their commit, or not at all.

    Notes
    -----
    If a driver dies behind it, the next run prepares and judges the batch again: what was found here is only in memory,
    but for a verdict that failed.
    """

    pipeline: Pipeline
    run_id: str
    ledger: Ledger
    judge: Judge | None
    _judgements: list[Judgement] = field(default_factory=list)
    _decided: list[Excess] = field(default_factory=list)
    _done: set[tuple[int, int]] = field(default_factory=set)
    _before: tuple[int, int] = (0, 0)

    def given_up(
        self, writer: BatchWriter, batch: tuple[int, int], ranges: Sequence[OffsetRange]
    ) -> PreparedBatch | None:
        """Return the batch without its rows if a user gave it up; None if it is to be prepared.

        Parameters
        ----------
        batch
            Epoch and number.
        ranges
            Its planned ranges.
        """
        self._done.add(batch)
        if self.ledger.verdicts.decision(self.pipeline.name, *batch) is None:
            return None
        found = self.ledger.verdicts.decision(self.pipeline.name, *batch, of=ranges)
        if found is None:
            logger.warning(
                "batch %d has other records than the one that a user decided on: that does not count", batch[1]
            )
        if found is None or found.event != "BatchGivenUp":
            return None
        lost = [LostRange(item, f"retracted: {found.reason}") for item in ranges if len(item)]
        count = sum(len(item.range) for item in lost)
        self._decide("retracted", f"batch {batch[1]} was given up, with {count:,} offsets: {found.reason}")
        return writer.give_up(ranges, lost)

    def admit(
        self,
        lease: Lease,
        spark: SparkSession,
        writer: BatchWriter,
        prepared: PreparedBatch,
        batch: tuple[int, int] | None = None,
    ) -> None:
        """Judge a batch that is ready to be committed, if this run judges.

        Parameters
        ----------
        batch
            Epoch and number of a live run's batch, which a user may accept; None if the run can simply be repeated.

        Raises
        ------
        QualityError
            If its verdict is ``failed`` or ``error`` and it was not accepted, or more is wrong with it than was
            accepted: it must not be committed. The ledger has the verdict then.
        EngineError
            If Spark ended while the batch was judged. That is no verdict: the next run judges it.
        """
        self._before = len(self._judgements), len(self._decided)
        if self.judge is None:
            return
        counts = sum((account.counts for account in prepared.accounts), Counts())
        staged = prepared.staged

        def rows() -> DataFrame:
            found = writer.sink.staged_rows(spark, staged, writer.schema)
            return found.where(~F.coalesce(F.col(TAKES_AWAY), F.lit(False))).drop(TAKES_AWAY) if deletes else found

        deletes = self.pipeline.decode.deletes
        judgement = self.judge.inspect(rows, rows().count() if deletes else staged.rows, counts)
        judgement = with_past(
            judgement, self.pipeline, self.ledger, [self.run_id], prepared.fact(Profile), of=["parts"]
        )
        if judgement.verdict in FAILED:
            if judgement.error is not None or any(result.exception for result in judgement.results):
                ask_engine(spark)
            told = judgement.as_dict() | {"made_by": self.pipeline.making}
            ranges = [account.range for account in prepared.accounts]
            reason, more = (None, []) if batch is None else self._accepted(batch, ranges, told)
            if batch is not None and reason is not None:
                self._decide("accepted", f"batch {batch[1]} was published although its verdict failed: {reason}")
                self._judgements.append(judgement.accepted())
                return
            waits = {} if batch is None else {"waits": list(batch)}
            told |= waits
            self.ledger.record(lease, Judged(verdict=judgement.verdict, judgement=told), run_id=self.run_id)
            point("judged")
            raise self._refused(judgement, batch, more)
        self._judgements.append(judgement)

    def forget(self) -> None:
        """Forget the batch that was admitted last: its sink refused rows, and it is prepared again without them."""
        judged, decided_on = self._before
        del self._judgements[judged:], self._decided[decided_on:]

    def summary(self, runs: Sequence[str]) -> Judgement | None:
        """Return the verdict of a run whose batches were all let through; None if none was judged here."""
        decided = [*self._decided, *self._earlier(runs)]
        if self.judge is None or not (self._judgements or decided):
            return None
        found = self._judgements
        last = found[-1] if found else Judgement(self.judge.name, 0)
        excesses = [*decided, *(e for judgement in found for e in judgement.excesses)]
        lost = sum(
            account.counts.lost for run in runs for account in self.ledger.offsets.accounts(self.pipeline.name, run)
        )
        if lost and not {"retracted", "max_lost"} & {e.limit for e in excesses}:  # by an attempt that did not end
            excesses.append(Excess("max_lost", "warned", f"{lost:,} offsets are lost, by an earlier attempt"))
        broken = [r for judgement in found[:-1] for r in judgement.results if not r.success]
        whole = Judgement(
            last.suite,
            sum(judgement.rows for judgement in found),
            (*broken, *last.results),
            data_docs=last.data_docs,
            runs=tuple(runs),
            excesses=tuple(excesses),
            wrote=any(judgement.wrote for judgement in found),
            history=last.history,
        )
        return with_past(whole, self.pipeline, self.ledger, runs, of=["volume", "freshness"])

    def _accepted(
        self, batch: tuple[int, int], ranges: Sequence[OffsetRange], told: Mapping[str, Any]
    ) -> tuple[str | None, list[str]]:
        """Return why a user accepted a batch, and what is wrong beyond that; no reason if there is any such thing.

        The transform, the suite or the limits may have changed since.
        """
        found = self.ledger.verdicts.decision(self.pipeline.name, *batch, of=ranges)
        if found is None or found.event != "VerdictAccepted":
            return None, []
        if found.faults is None:
            return found.reason, []  # accepted by an earlier version, which did not record them
        more = worse(found.faults, faults(told))
        if more:
            logger.warning("batch %d was accepted, but more is wrong with it now: %s", batch[1], "; ".join(more))
        return None if more else found.reason, more

    def _earlier(self, runs: Sequence[str]) -> list[Excess]:
        """Return what was decided of batches that an attempt before this one committed, before it died."""
        if self.judge is None:
            return []
        settled = self.ledger.verdicts.settled_of(self.pipeline.name, runs)
        words = {"VerdictAccepted": ("accepted", "accepted"), "BatchGivenUp": ("retracted", "given up")}
        found = [
            Excess(words[each.event][0], "warned", f"batch {each.batch[1]} was {words[each.event][1]}: {each.reason}")
            for each in settled
            if each.batch is not None and each.batch not in self._done
        ]
        name, called = self.pipeline.name, self.pipeline.called
        for late in self.ledger.verdicts.too_late(name, runs):
            (limit, decided_on), named = words[late.event], shlex.quote(late.run)
            done, way = (
                (
                    "published",
                    f"it is in the sink; to take it back: sluice retract {called} {named} --reason TEXT",
                )
                if late.event == "BatchGivenUp"
                else ("left out", f"its offsets are lost; to write them after all: sluice redrive {called}")
            )
            when = f"batch {late.batch[1]} had been {done} by run {late.run} when it was {decided_on}"
            found.append(Excess(limit, "warned", f"{when} ({late.reason}): {way}"))
        return found

    def _decide(self, what: str, why: str) -> None:
        logger.warning("%s", why)
        self._decided.append(Excess(what, "warned", why))

    def _refused(self, judgement: Judgement, batch: tuple[int, int] | None, more: Sequence[str]) -> QualityError:
        name, run = self.pipeline.name, self.run_id
        called, named = self.pipeline.called, shlex.quote(run)
        which = f"run {run!r} of {name!r}" if batch is None else f"batch {batch[1]} of run {run!r} of {name!r}"
        state, ways = (
            f"{_ON_RECORD}; what was there before stays",
            "fix the cause, or publish it unjudged, with --no-validate",
        )
        if batch is not None:
            state = f"{_ON_RECORD}; earlier batches stay, and the next run reads the same offsets again"
            ways = (
                f"fix the transform, the suite or the limits, and run it again (--run {named}, or clear its task); "
                f"or publish the batch as it is: sluice accept {called} {named} --reason TEXT; or give it up: sluice "
                f"retract {called} {named} --reason TEXT"
            )
        beyond = ""
        if more:
            beyond = f". It was accepted, but not with this: {'; '.join(more[:3])}"
            ways += f"; or publish it unjudged, once: sluice run {called} --run {named} --no-validate"
        return QualityError(
            f"{which} is judged {judgement.verdict} before it is published: {'; '.join(causes(judgement.reasons)[:5])}"
            f"{beyond}",
            state=state,
            next_step=ways,
        )
