"""What the models of the pipeline file share: the strict base class, durations, the metadata columns."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict

__all__ = ["METADATA_COLUMNS", "Duration", "Strict", "given", "one_of"]

METADATA_COLUMNS = ("_topic", "_partition", "_offset", "_timestamp", "_run")
"""Metadata columns, which Sluice adds to every sink row."""

_DURATION = re.compile(r"^(\d+)\s*(s|m|h|d)$")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Strict(BaseModel):
    """Base of the models: it refuses unknown keys, and instances are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, use_attribute_docstrings=True)


def _duration(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return timedelta(seconds=value)  # as code writes it
    match = _DURATION.match(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a duration: write 30s, 15m, 2h or 7d")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


Duration = Annotated[timedelta, BeforeValidator(_duration)]
"""A duration such as ``15m``, ``2h``, ``7d``; a number means seconds."""


def given(model: BaseModel) -> list[str]:
    """Return the keys that the file sets, of a model whose keys are alternatives."""
    fields = type(model).model_fields
    return [field.alias or name for name, field in fields.items() if getattr(model, name) is not None]


def one_of(model: BaseModel, what: str) -> None:
    """Refuse a model unless exactly one of its keys is set.

    Raises
    ------
    ValueError
        With the names of the keys.
    """
    if len(given(model)) != 1:
        names = ", ".join(field.alias or name for name, field in type(model).model_fields.items())
        raise ValueError(f"{what} needs exactly one of: {names}")
