"""The key ``quality.history`` of a pipeline file: what is expected of a run, by the runs before it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from sluice.fields import Duration, Strict

__all__ = ["Figure", "History"]

Figure = Literal["nulls", "min", "max", "mean", "distinct"]
"""A figure of a column's profile."""


class History(Strict):
    """What is expected of a live run, by the accepted runs before it: its figures stay near to their median."""

    runs: int = Field(default=20, ge=1, le=1000)
    """How many accepted runs are the baseline, the newest ones."""
    at_least: int = Field(default=10, ge=1, le=1000)
    """With fewer accepted runs nothing is judged by them; the verdict says so."""
    deviations: float = Field(default=3.0, gt=0, allow_inf_nan=False)
    """How many robust deviations (1.4826 times the median absolute deviation) a figure may be off the median."""
    severity: Literal["warning", "critical"] = "warning"
    """What breaks an expectation makes the verdict ``warned``, or with ``critical`` ``failed``."""
    volume: bool = False
    """Whether the number of rows is judged."""
    freshness: Duration | None = None
    """The newest row may not be older than this when the run is judged, by its ``_timestamp``; it needs no baseline."""
    columns: dict[str, tuple[Figure, ...]] = Field(default_factory=dict)
    """The columns that are judged, with the figures of each: ``nulls`` (their share), ``min``, ``max``, ``mean``,
    ``distinct`` (the number of distinct values)."""

    @property
    def measured(self) -> tuple[str, ...]:
        """The columns of which figures are needed that no footer has."""
        return tuple(name for name, figures in self.columns.items() if {"mean", "distinct"} & set(figures))

    @model_validator(mode="after")
    def _expects(self) -> History:
        if not (self.volume or self.freshness or self.columns):
            raise ValueError("it expects nothing: add volume: true, freshness: 2h, or columns: {NAME: [nulls]}")
        for name, figures in self.columns.items():
            if not figures:
                raise ValueError(f"columns: {name} has no figure: write [nulls], or [min, max, mean, distinct]")
        if self.at_least > self.runs:
            raise ValueError(f"at_least: {self.at_least} is more than the runs: {self.runs} of the baseline")
        return self
