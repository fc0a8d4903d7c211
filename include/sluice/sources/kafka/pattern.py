"""Patterns of topic names: regular expressions of RE2, which takes time in proportion to a name, whatever the pattern.

Python's ``re`` says where a mistake is. What it knows and RE2 does not (look-ahead, back references) is refused.
Spark is never given a pattern, so one rule holds everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from sluice.errors import ConfigError

__all__ = ["matches", "problem_of"]

_NOT_RE2 = {
    "ASSERT": "look-ahead and look-behind",
    "ASSERT_NOT": "look-ahead and look-behind",
    "GROUPREF": "back references",
    "GROUPREF_EXISTS": "conditional groups",
    "ATOMIC_GROUP": "atomic groups",
    "POSSESSIVE_REPEAT": "possessive quantifiers",
}
_MOST = 1000
"""How often RE2 repeats something by a counted quantifier."""


def problem_of(pattern: str) -> str | None:
    """Return what is wrong with a pattern, or None."""
    try:
        parsed = re._parser.parse(pattern)  # type: ignore[attr-defined]
    except re.error as error:
        return f"{pattern!r} is not a regular expression: {error.msg} at position {error.pos}"
    except (OverflowError, RecursionError) as error:
        return f"{pattern!r} is not a regular expression: {error}"
    if parsed.state.flags & ~(re.IGNORECASE | re.DOTALL | re.MULTILINE | re.UNICODE):
        return f"{pattern!r} sets a flag that RE2 does not have: of the flags, use only i, m and s"
    for name, value in _operations(parsed):
        if name in _NOT_RE2:
            return f"{pattern!r} uses {_NOT_RE2[name]}, which RE2 does not have: write the pattern without"
        if name == "AT" and str(value) == "AT_END_STRING":
            return f"{pattern!r} uses \\Z, which RE2 does not have: leave it out, a pattern matches whole names"
        if name in ("MAX_REPEAT", "MIN_REPEAT"):
            counts = [int(n) for n in value[:2] if str(n) != "MAXREPEAT"]
            if max(counts) > _MOST:
                return f"{pattern!r} repeats something {max(counts)} times, and RE2 does so at most {_MOST} times"
    return None


def _operations(parsed: Any) -> Iterator[tuple[str, Any]]:
    """Return all operations of a parsed pattern with their arguments."""
    pending = [parsed]
    while pending:
        item = pending.pop()
        if hasattr(item, "data"):
            for operation, value in item.data:
                yield str(operation), value
                pending.append(value)
        elif isinstance(item, tuple | list):
            pending.extend(item)


def matches(pattern: str, names: Sequence[str]) -> list[str]:
    """Return the names that a pattern matches from their first to their last character.

    Raises
    ------
    ConfigError
        If RE2 does not take the pattern.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        hits = pc.match_substring_regex(pa.array(names, pa.string()), pattern=f"^(?:{pattern})$")
    except pa.ArrowInvalid as error:
        raise ConfigError(
            f"source.kafka.pattern: {pattern!r} is not a regular expression of RE2: {error}",
            state="nothing was read or written",
            next_step="correct source.kafka.pattern; the syntax is that of RE2, without look-ahead and back references",
        ) from None
    return [name for name, hit in zip(names, hits.to_pylist(), strict=True) if hit]
