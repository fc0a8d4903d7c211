"""Checks what operators are given: when Airflow reads the DAG, and a template once it is rendered."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar

from sluice.errors import ConfigError
from sluice.fields import duration
from sluice.pipeline.suite import nearest
from sluice.ranges import OffsetRange

__all__ = [
    "choice_of",
    "count_of",
    "duration_of",
    "flag_of",
    "is_known",
    "is_unset",
    "ranges_of",
    "refused",
    "refused_ranges",
]

_Choice = TypeVar("_Choice", bound=StrEnum)


def is_known(value: Any) -> bool:
    """Return whether a value is what it says, and not a template, or what another task will return."""
    return not hasattr(value, "resolve") and not (isinstance(value, str) and ("{{" in value or "{%" in value))


def is_unset(value: Any) -> bool:
    """Return whether nothing is asked for: None, or a template that rendered to nothing, or to the text ``None``."""
    return value is None or str(value).strip() in ("", "None")


def duration_of(name: str, value: Any) -> timedelta | None:
    """Return a duration, given as one or as in a pipeline file; None if nothing is asked for.

    Raises
    ------
    ConfigError
        If it is anything else.
    """
    if is_unset(value):
        return None
    try:
        return duration(value.strip() if isinstance(value, str) else value)
    except ValueError as error:
        raise refused(name, f"{error}; or a timedelta") from None


def choice_of(name: str, value: Any, choices: type[_Choice]) -> _Choice | None:
    """Return the member of an enumeration; None if nothing is asked for.

    Raises
    ------
    ConfigError
        If there is none of this name; with the nearest.
    """
    if is_unset(value):
        return None
    try:
        return choices(str(value).strip())
    except ValueError:
        raise refused(
            name, f"{value!r}: {nearest(str(value), [c.value for c in choices], 'it may be one of')}"
        ) from None


def count_of(name: str, value: Any) -> int | None:
    """Return a whole number of at least 1; None if nothing is asked for.

    Raises
    ------
    ConfigError
        If it is anything else.
    """
    if is_unset(value):
        return None
    try:
        number = int(value if isinstance(value, float) and value.is_integer() else str(value))
    except ValueError:
        number = 0
    if not 0 < number < 1 << 63 or isinstance(value, bool):
        raise refused(name, f"{value!r} is not a whole number of at least 1 that a database can hold")
    return number


def flag_of(name: str, value: Any) -> bool:
    """Return a yes or no, given as one or as the text of one; no if nothing is asked for.

    Raises
    ------
    ConfigError
        If it is anything else.
    """
    if is_unset(value):
        return False
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise refused(name, f"{value!r} is neither true nor false")
    return text == "true"


def ranges_of(name: str, value: Any) -> list[OffsetRange]:
    """Return ranges, given as a list of texts or as one text with spaces between.

    Raises
    ------
    ConfigError
        If one is no range.
    """
    try:
        return [OffsetRange.parse(str(text)) for text in (value.split() if isinstance(value, str) else value)]
    except ValueError as error:
        raise refused(name, str(error)) from None


def refused_ranges(name: str, value: Any) -> None:
    """Raise a :class:`~sluice.errors.ConfigError` for what is no range in a list that holds no template there."""
    for text in value if not isinstance(value, str) and is_known(value) else ():
        if is_known(text):
            ranges_of(name, [text])


def refused(name: str, why: str) -> ConfigError:
    """Return the error for an argument."""
    return ConfigError(
        f"the task's argument {name}: {why}",
        state="nothing was read or written",
        next_step="fix it in the DAG's file, or in what the template is rendered from",
    )
