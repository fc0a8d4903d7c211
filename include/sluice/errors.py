"""Typed errors of a run. Each has an exit code, a retry policy, and a message in three parts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import IntEnum
from typing import ClassVar, TypeVar

from sluice.ranges import OffsetRange

__all__ = [
    "START_OVER",
    "AuthorizationError",
    "CheckpointError",
    "ConfigError",
    "ExitCode",
    "HeldError",
    "LeaseHeldError",
    "OffsetsGoneError",
    "QualityError",
    "Retry",
    "SinkError",
    "SluiceError",
    "SourceUnreachableError",
    "TopicRecreatedError",
    "TopicsDeletedError",
    "begin_again",
    "described",
    "error_for_exit_code",
    "printable",
    "public",
    "quoted",
]

_Said = TypeVar("_Said")

START_OVER = "give the pipeline another name and its sink another path, both at once"
"""The next step when positions are no longer valid. The ledger keeps the old name bound to them and to its sink.

Changing only one of the two is refused: another path alone is exit 41. The new name begins at its ``starting_offsets``.
"""


def begin_again(pipeline: str, *, truncate: bool = False, rebuild: bool = False) -> str:
    """Return the command that opens a new epoch of a pipeline, with a fresh checkpoint.

    Parameters
    ----------
    truncate
        Whether the sink's rows have to leave, because the account of them is no longer true.
    rebuild
        Whether the epoch goes on with the state of the one before, made again.
    """
    options = " --truncate --from earliest" if truncate else " --rebuild-state" if rebuild else ""
    return f"sluice reset {pipeline} --reason TEXT{options}"


class ExitCode(IntEnum):
    """Exit codes of the Spark mains and ``sluice run``; a stable interface."""

    DONE = 0
    OTHER = 1
    CONFIG = 10
    SOURCE_UNREACHABLE = 20
    OFFSETS_GONE = 21
    TOPIC_RECREATED = 22
    NOT_AUTHORIZED = 23
    SINK_FAILED = 30
    LEASE_HELD = 40
    CHECKPOINT_MISFIT = 41
    QUALITY_FAILED = 50
    HELD = 51


class Retry(IntEnum):
    """Whether and how a task retries after an error."""

    NEVER = 0
    AS_THE_TASK_SAYS = 1
    BACKING_OFF = 2
    LATER = 3


class SluiceError(Exception):
    """A failure that a user can act on.

    Parameters
    ----------
    what
        What happened.
    state
        The state of the data now: unchanged, planned, or partly written and why that is safe.
    next_step
        The next command or edit.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.OTHER
    retry: ClassVar[Retry] = Retry.AS_THE_TASK_SAYS

    def __init__(self, what: str, *, state: str = "", next_step: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.state = state
        self.next_step = next_step

    def as_dict(self) -> dict[str, str]:
        """Return the error as commands with ``--json`` print it."""
        return {"type": type(self).__name__, "what": self.what, "state": self.state, "next": self.next_step}

    def __str__(self) -> str:
        lines = [self.what]
        if self.state:
            lines.append(f"  data: {self.state}")
        if self.next_step:
            lines.append(f"  next: {self.next_step}")
        return "\n".join(lines)


class ConfigError(SluiceError):
    """The configuration or the pipeline file is wrong."""

    exit_code = ExitCode.CONFIG
    retry = Retry.NEVER


class SourceUnreachableError(SluiceError):
    """No broker answered in time, or a partition has no leader."""

    exit_code = ExitCode.SOURCE_UNREACHABLE
    retry = Retry.BACKING_OFF


class OffsetsGoneError(SluiceError):
    """Planned offsets were removed by retention or truncation before they were read.

    Parameters
    ----------
    ranges
        The ranges that are gone, as far as they are known.
    """

    exit_code = ExitCode.OFFSETS_GONE
    retry = Retry.NEVER

    def __init__(self, what: str, *, state: str = "", next_step: str = "", ranges: Iterable[OffsetRange] = ()) -> None:
        super().__init__(what, state=state, next_step=next_step)
        self.ranges = tuple(ranges)


class TopicsDeletedError(OffsetsGoneError):
    """Topics that a pattern matched were deleted.

    Parameters
    ----------
    ranges
        What runs had seen of them and not read.
    topics
        Their names.
    """

    def __init__(
        self,
        what: str,
        *,
        state: str = "",
        next_step: str = "",
        ranges: Iterable[OffsetRange] = (),
        topics: Iterable[str] = (),
    ) -> None:
        super().__init__(what, state=state, next_step=next_step, ranges=ranges)
        self.topics = tuple(topics)


class TopicRecreatedError(SluiceError):
    """The topic was recreated since the position was committed, or the position is beyond its end."""

    exit_code = ExitCode.TOPIC_RECREATED
    retry = Retry.NEVER


class AuthorizationError(SluiceError):
    """The source or an object store refused the credentials, or a right is missing."""

    exit_code = ExitCode.NOT_AUTHORIZED
    retry = Retry.NEVER


class SinkError(SluiceError):
    """The sink could not be written."""

    exit_code = ExitCode.SINK_FAILED
    retry = Retry.AS_THE_TASK_SAYS


class LeaseHeldError(SluiceError):
    """Another driver holds the pipeline's lease."""

    exit_code = ExitCode.LEASE_HELD
    retry = Retry.LATER


class CheckpointError(SluiceError):
    """The checkpoint does not fit the query, the ledger or the sink."""

    exit_code = ExitCode.CHECKPOINT_MISFIT
    retry = Retry.NEVER


class QualityError(SluiceError):
    """The verdict is ``failed``."""

    exit_code = ExitCode.QUALITY_FAILED
    retry = Retry.NEVER


class HeldError(SluiceError):
    """The verdict of an earlier run failed, and the pipeline's file says that live runs wait until that is settled."""

    exit_code = ExitCode.HELD
    retry = Retry.NEVER


_BY_CODE: dict[int, type[SluiceError]] = {
    int(cls.exit_code): cls
    for cls in (
        ConfigError,
        SourceUnreachableError,
        OffsetsGoneError,
        TopicRecreatedError,
        AuthorizationError,
        SinkError,
        LeaseHeldError,
        CheckpointError,
        QualityError,
        HeldError,
    )
}


def printable(text: str) -> str:
    """Escape characters that databases or terminals cannot handle: PostgreSQL, for example, cannot store a NUL."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def quoted(text: str) -> str:
    """Return foreign text for an error's message: one line in quotation marks, by which :func:`public` finds it."""
    return f"«{printable(text).replace('«', '‹').replace('»', '›')[:800]}»"


def described(error: BaseException) -> str:
    """Return an exception's type, and the first line of its text as a quotation, with what the system said below."""
    first, *others = [line.strip(" ↳") for line in str(error).splitlines() if line.strip()] or [""]
    first = ": ".join([first, *(line for line in others if "(os error " in line)])
    return f"{type(error).__name__}: {quoted(first)}" if first else type(error).__name__


def public(said: _Said) -> _Said:
    """Return a message, or each text in a JSON-ready answer, without quotations: they may hold values or a secret.

    It is for those who may not read records and task logs: alerts, XComs, asset events, most of the page.
    """
    if isinstance(said, dict):
        return {key: public(value) for key, value in said.items()}  # type: ignore[return-value]
    if isinstance(said, list):
        return [*map(public, said)]  # type: ignore[return-value]
    return _without_quotations(said) if isinstance(said, str) else said  # type: ignore[return-value]


def _without_quotations(text: str) -> str:
    before = _QUERY_FAILED.match(text)  # ledgers have reasons that were written without quotation marks
    return before[1] if before and "«" not in text else _QUOTATION.sub("«…»", text)


_QUOTATION = re.compile("«[^»]*»?")  # a message that was cut has no end of it
_QUERY_FAILED = re.compile(r"(the query failed): .", re.DOTALL)


def error_for_exit_code(code: int) -> type[SluiceError]:
    """Return the error class of a main's exit code; :class:`SluiceError` for an unknown code."""
    return _BY_CODE.get(code, SluiceError)
