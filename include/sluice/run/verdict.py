"""Tells what the ledger has of a verdict: each expectation, which values broke it, how often, in which records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from sluice.ledger.verdicts import Decision

__all__ = ["MASKED", "WARNS", "accepted_faults", "causes", "faults", "headed", "line", "title", "told", "worse"]

MASKED = "(masked)"
"""What stands for a value that may not be shown."""

_NOTHING = 1e-12
"""A smaller number is what sums of floating-point numbers leave of zero."""

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
        How many values and how many records are returned.
    """
    phrases = [result["expected"]] if result.get("expected") else []
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


def accepted_faults(decisions: Iterable[Decision]) -> dict[str, int | None]:
    """Return the :func:`faults` with which a user accepted some batches; numbers are added up."""
    found: dict[str, int | None] = {}
    for decision in decisions:
        known = decision.faults if decision.event == "VerdictAccepted" else None
        for what, count in (known or {}).items():
            found[what] = None if count is None else (found.get(what) or 0) + count
    return found


def faults(judgement: Mapping[str, Any]) -> dict[str, int | None]:
    """Return what made a verdict fail: each expectation and limit, with its number of unexpected values if it has one.

    An expectation with other arguments is another fault. What has no number has what was observed in its name, to nine
    digits, so that another value is another fault. An expectation that could not be evaluated is a fault of its own. If
    the judgement says by which keys the rows were made (``made_by``, :attr:`sluice.pipeline.Pipeline.making`), rows
    that others make are a fault, too: as many may be wrong, and not the same ones.

    Parameters
    ----------
    judgement
        A verdict's reasons, in the form that the ledger keeps.
    """
    found: dict[str, int | None] = {}
    if judgement.get("error") is not None:
        found[f"error: {str(judgement['error']).partition(': ')[0]}"] = None
    for item in judgement.get("results") or []:
        raised, counts = item.get("exception"), [item.get("unexpected_count"), item.get("missing_count")]
        if item["success"] or (not raised and item.get("severity", "critical") != "critical"):
            continue
        name = f"{item['expectation']} on {item.get('column')} ({item.get('scope')})"
        name += f" with arguments {item['arguments']}" if item.get("arguments") else ""
        if raised:
            found[f"{name}: raised an exception"] = None
        elif counts == [None, None]:
            found[f"{name}: {_observed(item.get('observed'))}"] = None
        else:  # one may be there twice: all of them count
            found[name] = (found.get(name) or 0) + sum(count or 0 for count in counts)
    figures = {_named(check): check["value"] for check in (judgement.get("history") or {}).get("checks") or []}
    for item in judgement.get("excesses") or []:
        if item["verdict"] == "failed":
            value, count = figures.get(item["limit"]), item.get("count")
            if count is not None:
                found[item["limit"]] = count
                continue
            # the baseline may be another one by now, and sums of numbers differ by their order
            found[f"{item['limit']}: {item['why'] if value is None else f'{value:.9g}'}"] = None
    if found and judgement.get("made_by"):
        found[f"rows made by another decode, rules or transform ({judgement['made_by']})"] = None
    return found


def worse(known: Mapping[str, int | None], found: Mapping[str, int | None]) -> list[str]:
    """Return which faults were not known, or are more than were known."""
    return [what for what, count in found.items() if what not in known or (count or 0) > (known[what] or 0)]


def _observed(value: Any) -> str:
    """Return a value that was observed as text, without the digits in which a sum differs by its order."""
    return json.dumps(_rounded(value), sort_keys=True, default=str)


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _rounded(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(part) for part in value]
    if isinstance(value, float):
        return f"{value:.9g}" if abs(value) > _NOTHING else "0"
    return value


def _named(check: Mapping[str, Any]) -> str:
    """Return the limit by which a figure of a run's history is judged."""
    return f"history.{check['figure']}" + (f"({check['column']})" if check.get("column") else "")
