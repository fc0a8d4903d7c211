"""What a live run, or the run of an interval, is asked to do: one value from UI, CLI or schedule to the run."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from sluice.errors import BEGIN_ANEW, ConfigError
from sluice.pipeline import Pipeline
from sluice.recovery import Recovery
from sluice.run.interval import Interval
from sluice.text import checked_run, storable

__all__ = ["RunRequest"]

_UNTOUCHED = "nothing was read or written"


@dataclass(frozen=True)
class RunRequest:
    """A run that was asked for. It travels in argv: :meth:`arguments` writes what :meth:`parse` reads.

    Parameters
    ----------
    run
        The run's id; another attempt of the same run uses the same id.
    recovery
        The strategy, instead of the pipeline file's.
    max_records_per_batch
        About how many records a batch reads at most, instead of the pipeline file's.
    interval
        Of record time, to be replaced in the sink; None means what is available now.
    reason
        Why somebody asked for it; kept in the ledger.
    validate
        Whether the run is judged after its last batch.
    """

    run: str
    recovery: Recovery | None = None
    max_records_per_batch: int | None = None
    interval: Interval | None = None
    reason: str | None = None
    validate: bool = True

    @classmethod
    def of(
        cls,
        pipeline: Pipeline,
        run: str,
        *,
        recovery: str | None = None,
        max_records_per_batch: int | None = None,
        start: str | None = None,
        end: str | None = None,
        reason: str | None = None,
        validate: bool = True,
    ) -> RunRequest:
        """Return a request as people make it, when the pipeline can do what it asks for.

        Parameters
        ----------
        start, end
            Of an interval, in ISO 8601, UTC without a zone; None or empty for what is available now.

        Raises
        ------
        ConfigError
            When it cannot be meant: an id that can be none, one end of an interval without the other, an interval of a
            pipeline that has none, a strategy that the pipeline cannot have or that would give up rows of an interval.
        """
        strategy = Recovery(recovery) if recovery else None
        interval = _interval(pipeline, start, end, strategy)
        if interval is None and (refusal := pipeline.refusal(strategy or pipeline.recovery)):
            raise ConfigError(refusal, state=_UNTOUCHED, next_step="choose another strategy with --recovery")
        if max_records_per_batch is not None and max_records_per_batch < 1:
            raise ConfigError(
                "--max-records-per-batch must be at least 1", state=_UNTOUCHED, next_step="give a positive number"
            )
        return cls(checked_run(run), strategy, max_records_per_batch, interval, reason, validate)

    def arguments(self) -> list[str]:
        """Return the request as words of a command line."""
        words = ["--run", checked_run(self.run)]
        if self.recovery is not None:
            words += ["--recovery", self.recovery.value]
        if self.max_records_per_batch is not None:
            words += ["--max-records-per-batch", str(self.max_records_per_batch)]
        if self.interval is not None:
            start, end = self.interval.key.split("/")
            words += ["--start", start, "--end", end]
        if self.reason:
            words.append(f"--reason={storable(self.reason)}")
        if not self.validate:
            words += ["--no-validate"]
        return words

    @staticmethod
    def add_to(parser: argparse.ArgumentParser) -> None:
        """Let a parser take these words."""
        add = parser.add_argument
        add("--run", required=True, help="the run's id; another attempt uses the same")
        add("--recovery", choices=[r.value for r in Recovery], help="instead of the pipeline file's strategy")
        add("--max-records-per-batch", type=int, metavar="N", help="instead of the pipeline file's")
        add("--start", metavar="TS", help="with --end: the interval of record time to replace (ISO 8601)")
        add("--end", metavar="TS")
        add("--reason", help="why; kept in the ledger")
        add("--no-validate", action="store_true", help="leave the run without a verdict")

    @classmethod
    def parse(cls, args: argparse.Namespace, pipeline: Pipeline) -> RunRequest:
        """Return the request that a parser read, as :meth:`of` does."""
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


def _interval(pipeline: Pipeline, start: str | None, end: str | None, recovery: Recovery | None) -> Interval | None:
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
    if recovery is not None and recovery.ignores:
        raise ConfigError(
            f"an interval replaces rows that are there: strategy {recovery} would give some of them up",
            state=_UNTOUCHED,
            next_step="leave the strategy out: a run of an interval replaces all of it, or changes nothing",
        )
    return Interval.parse(start, end)
