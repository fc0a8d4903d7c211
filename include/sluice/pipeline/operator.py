"""The base of the sections of a pipeline file that keep state from run to run."""

from __future__ import annotations

from typing import ClassVar

from sluice.fields import Strict

__all__ = ["StateOperator"]


class StateOperator(Strict):
    """A section of the pipeline file because of which Spark's checkpoint keeps state from run to run.

    A new one is a subclass, a field of :class:`~sluice.pipeline.Pipeline`, a writer of its batches
    (``sluice_spark/batch/``), and a line in ``sluice_spark/windows/operators.py`` and ``sluice_spark/runs/context.py``.
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

    @property
    def grouping(self) -> tuple[str, ...]:
        """The columns of the transform's result by whose values state is kept."""
        raise NotImplementedError
