"""Operators that keep state from run to run: the base of their sections of a pipeline file, and their kinds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from sluice.fields import METADATA_COLUMNS, Strict
from sluice.kinds import kind_of
from sluice.pipeline.hold import Hold

__all__ = ["OperatorKind", "StateOperator", "check_columns", "operator_of"]


class StateOperator(Strict):
    """A section of the pipeline file because of which Spark's checkpoint keeps state from run to run.

    A new one is a subclass with its :class:`OperatorKind`, and a writer of its batches
    (:class:`sluice_spark.batch.stateful.StatefulWriter`). One that is built in is also listed in :mod:`sluice.kinds`
    and a field of :class:`~sluice.pipeline.Pipeline`.
    """

    key: ClassVar[str]
    """Its key in the file, and in the definition that a checkpoint has."""
    said: ClassVar[str]
    """Its name in a sentence."""
    holding: ClassVar[str]
    """A predicate for messages: that an epoch has state of it."""
    unredrivable: ClassVar[str]
    """Why a pipeline that has it cannot redrive records."""
    combines: ClassVar[bool] = True
    """Whether its rows cannot be traced to single records."""
    moving: ClassVar[tuple[str, ...]] = ("hold",)
    """Keys that decide when the watermark moves, not what is made."""

    unretractable: ClassVar[str] = ""
    """Why rows of it cannot be taken back; empty if they can, or if :attr:`combines` says why not."""
    measures: ClassVar[bool] = True
    """Whether each batch goes through the whole state, and so measures it."""
    counted: ClassVar[str] = "{keys:,} keys are kept"
    """How many of its keys the state has, in a sentence."""
    ends: ClassVar[str] = ""
    """When the state of a key ends."""
    dropped: ClassVar[str] = ""
    """The loss that a reset names when it drops absorbed records; empty if there is none."""
    begins: ClassVar[str] = ""
    """Another effect of an epoch that begins without its state, as a reset names it; empty if there is none."""

    if TYPE_CHECKING:  # fields of most

        @property
        def time(self) -> str:
            """The column with the event time."""

        @property
        def hold(self) -> Hold | None:
            """Which partition holds the watermark."""

    @property
    def grouping(self) -> tuple[str, ...]:
        """The columns of the transform's result by whose values state is kept."""
        raise NotImplementedError

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that tell one row of ``output: update`` from another."""
        raise NotImplementedError

    @property
    def writes(self) -> str:
        """Spark's output mode: what a batch writes."""
        return "append"

    @property
    def delay(self) -> timedelta:
        """How far the watermark is behind the latest event time."""
        raise NotImplementedError

    @property
    def kept(self) -> timedelta | None:
        """For how much event time state is to be kept, at most; None if that is not known."""
        return None

    @property
    def definition(self) -> dict[str, Any]:
        """The settings that may not change while there is state."""
        raise NotImplementedError


@dataclass(frozen=True)
class OperatorKind:
    """A kind of operator. What Spark needs is named as ``package.module:name``, since the core imports no Spark.

    Attributes
    ----------
    config
        Its section of the pipeline file.
    writer
        The :class:`sluice_spark.batch.stateful.StatefulWriter` of its batches.
    check
        A function of the pipeline, the section and the transform's rows, as a frame without any: it checks that the
        operator can take them, and returns its own.
    held
        A function that returns what is kept after a batch: :func:`sluice_spark.windows.state.open_windows` and its
        like.
    of_key
        A function that returns what is kept of a key.
    flush
        A function of the run's context, its lease, its tables and the epoch's number, which a run without records
        calls: it may plan a batch that emits what no record would. Empty if there is none.
    """

    config: type[StateOperator]
    writer: str
    check: str
    held: str
    of_key: str = "sluice_spark.windows.state:of_key"
    flush: str = ""


def check_columns(key: str, names: Sequence[str], reserved: Sequence[str] = ()) -> None:
    """Refuse columns of an operator's rows that Sluice adds itself, or that are called the same.

    Raises
    ------
    ValueError
        With the first one.
    """
    lowered = [name.lower() for name in names]
    if taken := [name for name in names if name.lower() in (*reserved, *METADATA_COLUMNS)]:
        raise ValueError(f"{key}: {taken[0]} is a column that Sluice adds itself: choose another name")
    if doubled := [name for name in names if lowered.count(name.lower()) > 1]:
        raise ValueError(f"{key}: two columns of the sink would be called {doubled[0]}: choose another name")


def operator_of(key: str | None) -> type[StateOperator] | None:
    """Return the section of a key; None without one, or if its package is not installed."""
    kind = None if key is None else kind_of("operators", key)
    return None if kind is None else kind.config
