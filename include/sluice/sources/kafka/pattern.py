"""Patterns of topic names: regular expressions of RE2, which takes time in proportion to a name, whatever the pattern.

Spark is never given a pattern, so one rule holds everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["matches", "problem_of"]


def problem_of(pattern: str) -> str | None:
    """Return what is wrong with a pattern, as RE2 says it, or None."""
    import pyarrow as pa

    try:
        _matching(pattern, [""])  # as it is: what only its surroundings make whole, such as a)|(b, is a mistake
    except pa.ArrowInvalid as error:
        told = str(error).removeprefix("Invalid regular expression: ")
        return (
            f"{pattern!r} is not a regular expression of RE2, which has neither look-ahead nor back references: {told}"
        )
    return None


def matches(pattern: str, names: Sequence[str]) -> list[str]:
    """Return the names that a pattern matches from their first to their last character."""
    return _matching(f"^(?:{pattern})$", names)


def _matching(expression: str, names: Sequence[str]) -> list[str]:
    import pyarrow as pa
    import pyarrow.compute as pc

    hits = pc.match_substring_regex(pa.array(names, pa.string()), pattern=expression)
    return [name for name, hit in zip(names, hits.to_pylist(), strict=True) if hit]
