"""Tells what the ledger has of a verdict: each expectation, which values broke it, how often, in which records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

__all__ = ["WARNS", "causes", "headed", "line", "title", "told"]

WARNS = ", which only warns"
"""The end of a reason that alone would not make a verdict fail; it stands behind those that do."""


def causes(reasons: Iterable[str]) -> list[str]:
    """Return the reasons that made a verdict what it is, without those that only warn beside them."""
    return [why for why in reasons if not why.endswith(WARNS)]


def headed(verdict: str, reasons: Iterable[str]) -> Iterator[str]:
    """Yield each reason behind the verdict that it alone would make."""
    for why in reasons:
        yield f"{'warned' if why.endswith(WARNS) else verdict}: {why.removesuffix(WARNS)}"


def title(result: Mapping[str, Any]) -> str:
    """Return an expectation's name, with its column."""
    return f"{result['expectation']}({result['column']})" if result.get("column") else str(result["expectation"])


def line(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of a table of results."""
    percent = result.get("unexpected_percent")
    return {
        **{key: result.get(key) for key in ("expectation", "column", "severity", "scope")},
        "result": "ok" if result.get("success") else "error" if result.get("exception") else "FAILED",
        "unexpected": result.get("unexpected_count"),
        "percent": None if percent is None else f"{percent:.2f}",
    }


def told(result: Mapping[str, Any], most: int = 10) -> list[str]:
    """Return phrases for a failed result of a judgement, in the form that the ledger keeps; none if nothing is known.

    Parameters
    ----------
    most
        How many values and how many records are told.
    """
    phrases = []
    values = result.get("values") or [{"value": v, "count": None} for v in result.get("examples") or []]
    if values:
        listed = ", ".join(_value(item) for item in values[:most])
        seen, count = result.get("seen") or 0, result.get("unexpected_count") or 0
        among = f" (the first {seen:,} rows of {count:,})" if 0 < seen < count else ""
        phrases.append(f"values: {listed}{', …' if len(values) > most else ''}{among}")
    records = (result.get("records") or [])[:most]
    if records:
        parts = [
            f"{topic}-{partition} {', '.join(str(r['offset']) for r in group)}"
            for (topic, partition), group in groupby(
                sorted(records, key=_place), key=lambda r: (r["topic"], r["partition"])
            )
        ]
        more = ", …" if (result.get("unexpected_count") or 0) > len(records) else ""
        phrases.append(f"offsets: {'; '.join(parts)}{more}")
    return phrases


def _place(record: Mapping[str, Any]) -> tuple[str, int, int]:
    return str(record["topic"]), int(record["partition"]), int(record["offset"])


def _value(item: Mapping[str, Any]) -> str:
    times = f" × {item['count']:,}" if (item.get("count") or 1) > 1 else ""
    return f"{'null' if item['value'] is None else repr(item['value'])}{times}"
