"""Actions: one application of Spark carries out one action, a value that travels as JSON in argv.

A new action is a class here, in :data:`ACTIONS`, which names what carries it out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import TypeAdapter, ValidationError

from sluice.errors import START_OVER, ConfigError
from sluice.pipeline import Pipeline
from sluice.ranges import OffsetRange
from sluice.recovery import Recovery
from sluice.run.interval import Interval
from sluice.text import checked_reason, checked_run

__all__ = [
    "ACTIONS",
    "Action",
    "AuditWindows",
    "Check",
    "Failover",
    "Need",
    "PlannedAction",
    "Preview",
    "ReadState",
    "Redrive",
    "Reset",
    "Retract",
    "RunAction",
    "RunRequest",
    "TryQuarantined",
    "Validate",
    "interval_recovery",
    "parsed",
]

_UNTOUCHED = "nothing was read or written"

_WORD = 30_000
"""Characters of a word in argv: Linux takes 128 KiB, and a character has at most 4 bytes."""

Need = Literal["source", "sink", "decoder"]


@dataclass(frozen=True)
class Action:
    """The task of one application of Spark.

    Attributes
    ----------
    name
        Its word in argv.
    by
        Who carries it out, as ``package.module:name``: a function of pipeline, action and the session's opener, which
        returns what it found, ready for JSON.
    needs
        The parts of the pipeline whose connections it may get.
    writes
        Whether home, sink and quarantine must be writable: that is tried before Spark starts.
    small
        Whether the JVM's optimizing compiler would not pay off.
    """

    name: ClassVar[str]
    by: ClassVar[str]
    needs: ClassVar[tuple[Need, ...]] = ()
    writes: ClassVar[bool] = False
    small: ClassVar[bool] = True

    @property
    def needed(self) -> tuple[Need, ...]:
        """The parts of the pipeline whose connections it gets."""
        return self.needs

    def arguments(self) -> list[str]:
        """Return the action as words of a command line; :func:`parsed` reads them."""
        text = TypeAdapter(type(self)).dump_json(self, exclude_defaults=True).decode()
        return [self.name, *(text[at : at + _WORD] for at in range(0, len(text), _WORD))]


@dataclass(frozen=True)
class RunAction(Action):
    """An action that is a run of the ledger: ``by`` names its class, or a function of context and action that makes it.

    Parameters
    ----------
    run_id
        The run id; another attempt has the same one.

    Raises
    ------
    ConfigError
        If the id is not valid, or the reason is blank or too long.
    """

    writes: ClassVar[bool] = True

    run_id: str

    def __post_init__(self) -> None:
        checked_run(self.run_id)
        reason: str | None = getattr(self, "reason", None)
        if reason:
            object.__setattr__(self, "reason", checked_reason(reason))


@dataclass(frozen=True)
class RunRequest(RunAction):
    """A live run, or a run of an interval.

    Parameters
    ----------
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

    name: ClassVar[str] = "run"
    by: ClassVar[str] = "sluice_spark.runs.factory:requested"
    needs: ClassVar[tuple[Need, ...]] = ("source", "sink", "decoder")

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
        """Return a request from a user's input, checked against the pipeline.

        Parameters
        ----------
        start, end
            The interval's ends, in ISO 8601, UTC without a zone; None or empty means what is available now.

        Raises
        ------
        ConfigError
            As :meth:`check`; also for a bad run id, only one end of an interval, or a text that is no time.
        """
        interval, strategy = _interval(start, end), Recovery(recovery) if recovery else None
        if interval is not None and strategy is None and pipeline.no_intervals is None:
            strategy = interval_recovery(pipeline, pipeline.recovery)
        request = cls(run_id, strategy, max_records_per_batch, interval, reason, validate)
        request.check(pipeline)
        return request

    def check(self, pipeline: Pipeline) -> None:
        """Refuse what this pipeline cannot do.

        Raises
        ------
        ConfigError
            For an interval of a pipeline without intervals, a strategy that the run cannot have, or a limit of records
            that is none, or for an interval.
        """
        strategy, limit = self.recovery or pipeline.recovery, self.max_records_per_batch
        if self.interval is not None and (why := pipeline.no_intervals) is not None:
            raise ConfigError(
                why, state=_UNTOUCHED, next_step=f"run it without an interval; to reprocess all of it, {START_OVER}"
            )
        live = self.interval is None
        refusal = pipeline.refusal(strategy) if live else _refusal_of_interval(pipeline, strategy)
        if refusal is not None:
            raise ConfigError(
                refusal, state=_UNTOUCHED, next_step="choose another strategy: --recovery, or the param recovery"
            )
        if limit is not None and not live:
            raise ConfigError(
                "max_records_per_batch is for live runs: an interval is replaced in one transaction",
                state=_UNTOUCHED,
                next_step="leave it out, or choose a shorter interval",
            )
        if limit is not None and not 0 < limit < 1 << 63:
            raise ConfigError(
                f"--max-records-per-batch must be at least 1, and of 64 bits: it is {limit}",
                state=_UNTOUCHED,
                next_step="give a positive number",
            )


@dataclass(frozen=True)
class Redrive(RunAction):
    """Redrive lost ranges or quarantined records.

    Parameters
    ----------
    ranges
        Only these offsets; empty means all.
    of_run
        Only what the run with this id lost or quarantined.
    quarantined
        Redrive quarantined records instead of lost ranges.
    dropping
        With ``quarantined``: take the records out, and write none of them; they count as filtered.
    rule
        Only quarantined records that broke this rule.
    before
        Only quarantined records of an earlier record time, or of none; aware.
    reason
        Why they are dropped.
    validate
        Whether the run is validated.
    """

    name: ClassVar[str] = "redrive"
    by: ClassVar[str] = "sluice_spark.runs.redrive:RedriveRun"
    needs: ClassVar[tuple[Need, ...]] = ("source", "sink", "decoder")

    ranges: tuple[OffsetRange, ...] = ()
    of_run: str | None = None
    quarantined: bool = False
    dropping: bool = False
    rule: str | None = None
    before: datetime | None = None
    reason: str | None = None
    validate: bool = True

    @property
    def needed(self) -> tuple[Need, ...]:
        """Not the decoder's, if no record is decoded."""
        return ("source", "sink") if self.dropping else self.needs


@dataclass(frozen=True)
class PlannedAction(RunAction):
    """A run that can tell what it would do.

    Parameters
    ----------
    result
        If given, nothing is changed: the file to which it writes, as JSON, what would be done.
    """

    result: Path | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Retract(PlannedAction):
    """Take rows out of the sink, and open their offsets as lost.

    Parameters
    ----------
    reason
        Why; recorded in the ledger.
    of_run, ranges
        The rows that one run wrote, or those of some offsets: one of the two.
    """

    name: ClassVar[str] = "retract"
    by: ClassVar[str] = "sluice_spark.runs.retract:RetractRun"
    needs: ClassVar[tuple[Need, ...]] = ("sink",)

    reason: str
    of_run: str | None = None
    ranges: tuple[OffsetRange, ...] = ()


@dataclass(frozen=True)
class Reset(PlannedAction):
    """Begin a pipeline in a new epoch, with a fresh checkpoint.

    Parameters
    ----------
    reason
        Why; recorded in the ledger.
    begin
        ``earliest``, ``latest``, a time in ISO 8601, or None for the position.
    truncate
        Whether all rows that the pipeline wrote leave the sink and the quarantine.
    agreed
        Whether the user agrees to what does not come back.
    rebuild
        Whether the new epoch goes on with the state of this one, which its first run makes again.
    """

    name: ClassVar[str] = "reset"
    by: ClassVar[str] = "sluice_spark.runs.reset:ResetRun"
    needs: ClassVar[tuple[Need, ...]] = ("source", "sink")

    reason: str
    begin: str | None = None
    truncate: bool = False
    agreed: bool = False
    rebuild: bool = False


@dataclass(frozen=True)
class Failover(PlannedAction):
    """Let a pipeline go on with another cluster.

    Parameters
    ----------
    to
        The connection of that cluster.
    reason
        Why; recorded in the ledger.
    """

    name: ClassVar[str] = "failover"
    by: ClassVar[str] = "sluice_spark.runs.failover:FailoverRun"
    needs: ClassVar[tuple[Need, ...]] = ("source", "sink")

    to: str
    reason: str


@dataclass(frozen=True)
class Validate(Action):
    """Validate a run of the ledger again; no data changes.

    Parameters
    ----------
    run_id
        The id of that run.
    """

    name: ClassVar[str] = "validate"
    by: ClassVar[str] = "sluice_spark.runs.validate:validate"
    needs: ClassVar[tuple[Need, ...]] = ("source", "sink")

    run_id: str


@dataclass(frozen=True)
class Preview(Action):
    """Decode the newest records of the source, and write none.

    Parameters
    ----------
    result
        The file to which it writes, as JSON, what it found.
    records
        How many records.
    """

    name: ClassVar[str] = "preview"
    by: ClassVar[str] = "sluice_spark.runs.preview:preview"
    needs: ClassVar[tuple[Need, ...]] = ("source", "decoder")

    result: Path
    records: int


@dataclass(frozen=True)
class TryQuarantined(Action):
    """Decode quarantined records, and write none; parameters as of :class:`Redrive` and :class:`Preview`."""

    name: ClassVar[str] = "try-quarantined"
    by: ClassVar[str] = "sluice_spark.runs.preview:still_refused"
    needs: ClassVar[tuple[Need, ...]] = ("decoder",)

    result: Path
    ranges: tuple[OffsetRange, ...] = ()
    of_run: str | None = None


@dataclass(frozen=True)
class Check(Action):
    """Check pipeline files by Spark and Great Expectations; no record is read.

    Parameters
    ----------
    result
        The file to which it writes, as JSON, what it found of each file.
    files
        The pipeline files.
    """

    name: ClassVar[str] = "check"
    by: ClassVar[str] = "sluice_spark.runs.checks:checked"

    result: Path
    files: tuple[str, ...]


@dataclass(frozen=True)
class ReadState(Action):
    """Read which windows are open, which keys are kept, or what is kept of one.

    Parameters
    ----------
    result
        The file to which it writes, as JSON, what it found.
    checkpoint, batch
        The checkpoint's path, and a batch that it has committed.
    keeps
        The operator whose state it is: ``window``, ``dedupe`` or ``processor``.
    panes
        If windows are made of panes: their size, their slide and the watermark, in milliseconds.
    of
        Only what is kept of a key: the names of all its columns, of some the values, as text; how many rows at most.
    """

    name: ClassVar[str] = "read-state"
    by: ClassVar[str] = "sluice_spark.windows.state:read_state"

    result: Path
    checkpoint: str
    batch: int
    keeps: str = "window"
    panes: tuple[int, int, int] | None = None
    of: tuple[Sequence[str], Mapping[str, str], int] | None = None


@dataclass(frozen=True)
class AuditWindows(Action):
    """Make windows once more from their records, and compare them with the table; nothing is written.

    Parameters
    ----------
    plan
        The file that says which, as JSON.
    result
        The file to which it writes, as JSON, what it found.
    """

    name: ClassVar[str] = "audit-windows"
    by: ClassVar[str] = "sluice_spark.runs.window_audit:audited"
    needs: ClassVar[tuple[Need, ...]] = ("source", "decoder")
    small: ClassVar[bool] = False

    plan: Path
    result: Path


ACTIONS: dict[str, type[Action]] = {
    kind.name: kind
    for kind in (
        RunRequest, Redrive, Retract, Reset, Failover, Validate, Preview, TryQuarantined, Check, ReadState,
        AuditWindows,
    )
}  # fmt: skip
"""All actions by their names."""


def parsed(words: Iterable[str]) -> Action:
    """Read :meth:`Action.arguments`.

    Raises
    ------
    ConfigError
        If they are of no action.
    """
    name, *rest = [*words, ""]
    kind = ACTIONS.get(name)
    try:
        if kind is None:
            raise ValueError(f"{name!r} is none of {', '.join(ACTIONS)}")
        return TypeAdapter(kind).validate_json("".join(rest))
    except (ValidationError, ValueError) as error:
        raise ConfigError(
            f"the arguments are of no action: {error}",
            state=_UNTOUCHED,
            next_step="start it by the command sluice, or by an operator of the same version",
        ) from None


def interval_recovery(pipeline: Pipeline, live: Recovery) -> Recovery:
    """Return the strategy of an interval for which none was chosen: that of live runs, or ``replay`` if it has none."""
    return Recovery.REPLAY if _refusal_of_interval(pipeline, live) else live


def _refusal_of_interval(pipeline: Pipeline, recovery: Recovery) -> str | None:
    """Return why an interval cannot be replaced by this strategy; None if it can."""
    if recovery is Recovery.IGNORE_BATCH:
        return f"an interval replaces existing rows: strategy {recovery} would skip all of them"
    return pipeline.refusal(recovery)


def _interval(start: str | None, end: str | None) -> Interval | None:
    if not start and not end:
        return None
    if not start or not end:
        raise ConfigError(
            f"the interval has no {'end' if start else 'start'}",
            state=_UNTOUCHED,
            next_step="give start and end, or neither of them for what is available now",
        )
    return Interval.parse(start, end)
