"""The request for a live or interval run: one value that travels from UI, CLI or schedule to the run."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from sluice.errors import BEGIN_ANEW, ConfigError
from sluice.pipeline import Pipeline
from sluice.recovery import Recovery
from sluice.run.interval import Interval
from sluice.text import checked_run, storable

__all__ = ["LONGEST_REASON", "RunRequest", "interval_recovery", "reason_option"]

_UNTOUCHED = "nothing was read or written"

LONGEST_REASON = 2000
"""Characters of the reason for a run."""


def reason_option(reason: str) -> str:
    """Return a reason as an argument of a main.

    Raises
    ------
    ConfigError
        If it is longer than :data:`LONGEST_REASON`.
    """
    if len(reason) > LONGEST_REASON:
        raise ConfigError(
            f"the reason has {len(reason):,} characters",
            state=_UNTOUCHED,
            next_step=f"say it in at most {LONGEST_REASON:,}",
        )
    return f"--reason={storable(reason)}"


@dataclass(frozen=True)
class RunRequest:
    """A request for a run. It travels in argv: :meth:`arguments` writes it and :meth:`parse` reads it.

    Parameters
    ----------
    run_id
        The run id; a retry of the same run uses the same id.
    recovery
        The strategy; None means the pipeline file's.
    max_records_per_batch
        Overrides the pipeline file's approximate limit of records in a batch. Not for an interval.
    interval
        The interval of record time to replace in the sink; None means what is available now.
    reason
        The user's reason, recorded in the ledger.
    validate
        Whether the run is validated after its last batch.
    """

    run_id: str
    recovery: Recovery | None = None
    max_records_per_batch: int | None = None
    interval: Interval | None = None
    reason: str | None = None
    validate: bool = True

    @classmethod
    def of(
        cls,
        pipeline: Pipeline,
        run_id: str,
        *,
        recovery: str | None = None,
        max_records_per_batch: int | None = None,
        start: str | None = None,
        end: str | None = None,
        reason: str | None = None,
        validate: bool = True,
    ) -> RunRequest:
        """Return a request from a user's input, validated against the pipeline.

        Parameters
        ----------
        start, end
            Of an interval, in ISO 8601, UTC without a zone; None or empty means what is available now.

        Raises
        ------
        ConfigError
            If it is invalid: a bad run id, only one end of an interval, an interval of a pipeline without intervals, a
            strategy that the run cannot have, or a limit of records for an interval.
        """
        interval, strategy = _interval(pipeline, start, end), Recovery(recovery) if recovery else None
        if interval is None:
            refusal = pipeline.refusal(strategy or pipeline.recovery)
        else:
            strategy = strategy or interval_recovery(pipeline, pipeline.recovery)
            refusal = _refusal_of_interval(pipeline, strategy)
        if refusal is not None:
            raise ConfigError(refusal, state=_UNTOUCHED, next_step="choose another strategy with --recovery")
        if interval is not None and max_records_per_batch is not None:
            raise ConfigError(
                "max_records_per_batch is for live runs: an interval is replaced in one transaction",
                state=_UNTOUCHED,
                next_step="leave it out, or choose a shorter interval",
            )
        if max_records_per_batch is not None and not 0 < max_records_per_batch < 1 << 63:
            raise ConfigError(
                f"--max-records-per-batch must be at least 1, and of 64 bits: it is {max_records_per_batch}",
                state=_UNTOUCHED,
                next_step="give a positive number",
            )
        return cls(checked_run(run_id), strategy, max_records_per_batch, interval, reason, validate)

    def arguments(self) -> list[str]:
        """Return the request as command-line arguments."""
        words = [f"--run={checked_run(self.run_id)}"]
        if self.recovery is not None:
            words += ["--recovery", self.recovery.value]
        if self.max_records_per_batch is not None:
            words += ["--max-records-per-batch", str(self.max_records_per_batch)]
        if self.interval is not None:
            start, end = self.interval.key.split("/")
            words += ["--start", start, "--end", end]
        if self.reason:
            words.append(reason_option(self.reason))
        if not self.validate:
            words += ["--no-validate"]
        return words

    @staticmethod
    def add_to(parser: argparse.ArgumentParser) -> None:
        """Add these arguments to a parser."""
        add = parser.add_argument
        add("--run", required=True, help="the run id; a retry uses the same one")
        add("--recovery", choices=[r.value for r in Recovery], help="overrides the pipeline file's strategy")
        add("--max-records-per-batch", type=int, metavar="N", help="overrides the pipeline file's limit")
        add("--start", metavar="TS", help="with --end: the interval of record time to replace (ISO 8601)")
        add("--end", metavar="TS")
        add("--reason", help="the reason for the run, recorded in the ledger")
        add("--no-validate", action="store_true", help="skip the validation; the run gets no verdict")

    @classmethod
    def parse(cls, args: argparse.Namespace, pipeline: Pipeline) -> RunRequest:
        """Return the request from parsed arguments; validated as by :meth:`of`."""
        return cls.of(
            pipeline,
            args.run,
            recovery=args.recovery,
            max_records_per_batch=args.max_records_per_batch,
            start=args.start,
            end=args.end,
            reason=args.reason,
            validate=not args.no_validate,
        )


def interval_recovery(pipeline: Pipeline, live: Recovery) -> Recovery:
    """Return the strategy of an interval for which none was chosen: that of live runs, or ``replay`` if it has none."""
    return Recovery.REPLAY if _refusal_of_interval(pipeline, live) else live


def _refusal_of_interval(pipeline: Pipeline, recovery: Recovery) -> str | None:
    """Return why an interval cannot be replaced by this strategy; None if it can."""
    if recovery is Recovery.IGNORE_BATCH:
        return f"an interval replaces existing rows: strategy {recovery} would skip all of them"
    return pipeline.refusal(recovery)


def _interval(pipeline: Pipeline, start: str | None, end: str | None) -> Interval | None:
    if not start and not end:
        return None
    if not start or not end:
        raise ConfigError(
            f"the interval has no {'end' if start else 'start'}",
            state=_UNTOUCHED,
            next_step="give start and end, or neither of them for what is available now",
        )
    if (why := pipeline.no_intervals) is not None:
        raise ConfigError(
            why, state=_UNTOUCHED, next_step=f"run it without an interval; to reprocess all of it, {BEGIN_ANEW}"
        )
    return Interval.parse(start, end)
