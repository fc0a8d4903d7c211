"""Makes text from users and other programs safe for databases, files and command lines."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from sluice.errors import ConfigError

__all__ = [
    "LONGEST_REASON",
    "LONGEST_RUN",
    "checked_reason",
    "checked_run",
    "instant",
    "length",
    "moment",
    "run_of_interval",
    "storable",
]

LONGEST_RUN = 250
"""Maximum length of a run id in characters: Airflow's limit, and the width of the ledger's column."""

LONGEST_REASON = 2000
"""Maximum length of a user's reason in characters."""

_YEAR = 31_556_952_000_000
"""Microseconds of an average year."""

_OF_INTERVAL = "__interval"


def checked_run(run_id: str) -> str:
    """Return a run id if it is valid.

    Raises
    ------
    ConfigError
        If it is empty, too long, contains a character that is not printable, or begins with a hyphen: to commands it
        would be an option.
    """
    if not run_id.isprintable():
        what = "has characters that are not printable"
    elif not run_id.strip():
        what = "is blank"
    elif len(run_id) > LONGEST_RUN:
        what = f"has {len(run_id)} characters"
    elif run_id.startswith("-"):
        what = "begins with a hyphen"
    else:
        return run_id
    raise ConfigError(
        f"the run id {run_id[:80]!a}{'…' if len(run_id) > 80 else ''} {what}",
        state="nothing was read or written",
        next_step=f"give it an id of 1 to {LONGEST_RUN} printable characters, of which the first is no hyphen",
    )


def checked_reason(reason: str) -> str:
    """Return a user's reason as any database can store it.

    Raises
    ------
    ConfigError
        If it is empty or too long.
    """
    if not reason.strip():
        raise ConfigError("the reason is empty", state="nothing was changed", next_step="say why, in a few words")
    if len(reason) > LONGEST_REASON:
        raise ConfigError(
            f"the reason has {len(reason):,} characters",
            state="nothing was changed",
            next_step=f"say it in at most {LONGEST_REASON:,}",
        )
    return str(storable(reason))


def instant(microseconds: int) -> str:
    """Return a time, in microseconds since 1970, in ISO 8601; of one that Python does not have, such as that of a
    producer that counts in another unit, the year.
    """
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)).isoformat()
    except OverflowError:
        return f"the year {1970 + microseconds // _YEAR}"


def moment(milliseconds: int) -> str:
    """Return a time, in milliseconds since 1970, in ISO 8601."""
    return instant(milliseconds // 1000 * 1_000_000).replace("+00:00", "Z")


def length(seconds: float) -> str:
    """Return a length of time as people say it."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 1 or seconds == 0 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    larger, smaller = next(
        pair
        for pair in (((days, "d"), (hours, "h")), ((hours, "h"), (minutes, "min")), ((minutes, "min"), (rest, "s")))
        if pair[0][0]
    )
    return f"{larger[0]:,} {larger[1]}" + (f" {smaller[0]} {smaller[1]}" if smaller[0] else "")


def run_of_interval(run_id: str) -> str:
    """Derive the id of an interval run from another run's id; deterministic.

    An id that would be too long is cut, and a digest of the whole keeps it unique.
    """
    if len(run_id) + len(_OF_INTERVAL) <= LONGEST_RUN:
        return f"{run_id}{_OF_INTERVAL}"
    digest = hashlib.sha256(run_id.encode("utf-8", "backslashreplace")).hexdigest()[:16]
    return f"{run_id[: LONGEST_RUN - len(_OF_INTERVAL) - len(digest) - 1]}~{digest}{_OF_INTERVAL}"


def storable(value: Any) -> Any:
    """Return a value whose strings any database can store: NULs and lone surrogates are escaped."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")
    if isinstance(value, Mapping):
        return {storable(key): storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    return value
