"""Looks at the rows that break an expectation: which values they have, how often, and which records they come from."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from sluice.ledger.strict_json import plain
from sluice.run.verdict import MASKED

__all__ = ["evidence_of", "fails_on", "hide", "hush", "look", "short", "shows"]

_SEEN = 100
"""How many of the rows that break an expectation are looked at."""

_SHOWN = 10
_ERROR_CLASS = re.compile(r"\[[A-Z0-9_.]+\] ")
_LONGEST = 1000
"""Maximum length in characters of a value that is recorded."""

_RECORD = ("_topic", "_partition", "_offset")
_COUNTS = (
    "element_count", "unexpected_count", "unexpected_percent", "unexpected_percent_total",
    "unexpected_percent_nonmissing", "missing_count", "missing_percent",
)  # fmt: skip


def look(batch: Any, result: Any, columns: Collection[str]) -> Any:
    """Evaluate an expectation that failed once more, for its first rows; return the new result.

    Parameters
    ----------
    batch
        Great Expectations' batch of the rows.
    result
        The result without rows.
    columns
        The rows' columns; where a row tells its record, the result has it.
    """
    told: dict[str, Any] = {
        "result_format": "SUMMARY",
        "partial_unexpected_count": _SEEN,
        "return_unexpected_index_query": False,
    }
    if set(_RECORD) <= set(columns):
        told["unexpected_index_column_names"] = list(_RECORD)
    found = batch.validate(result.expectation_config.to_domain_obj(), result_format=told)
    rows = found.result.get("partial_unexpected_index_list")
    if rows:  # Data Docs show the records only under this name, which is for results that have all of them
        found.result["unexpected_index_list"] = rows
        found.result["unexpected_list"] = found.result.get("partial_unexpected_list")
    return found


def shows(kwargs: Mapping[str, Any], masked: Collection[str]) -> bool:
    """Return whether results of an expectation with these arguments show values of a masked column.

    A query is taken to show them: what it selects is unknown.
    """
    if not masked:
        return False
    hidden = {name.lower() for name in masked}
    named = [kwargs[key] for key in ("column", "column_A", "column_B") if kwargs.get(key)]
    named += kwargs.get("column_list") or []
    names = [str(name).replace("`", "").lower() for name in named]  # Spark ignores case, and quotes with backticks
    return any("query" in key and value for key, value in kwargs.items()) or any(
        name in hidden or name.partition(".")[0] in hidden for name in names
    )


def fails_on(kwargs: Mapping[str, Any], masked: Collection[str]) -> bool:
    """Return whether an error of an expectation may show a value of a masked column, by its condition on rows."""
    condition = str(kwargs.get("row_condition") or "").lower()
    return any(name.lower() in condition for name in masked)


def hush(info: Any) -> Any:
    """Return what Great Expectations tells of an exception without its message, which may have values."""
    if not isinstance(info, Mapping):
        return info
    if "raised_exception" not in info:
        return {key: hush(value) for key, value in info.items()}
    if not info["raised_exception"]:
        return dict(info)
    kind = _ERROR_CLASS.match(str(info.get("exception_message")))
    return {**info, "exception_message": f"{kind[0] if kind else ''}(masked)", "exception_traceback": "(masked)"}


def hide(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a result tells without values: its counts, and the records of its rows."""
    rows = [{name: row[name] for name in _RECORD} for row in result.get("partial_unexpected_index_list") or []]
    kept = {name: result[name] for name in _COUNTS if name in result}
    if "observed_value" in result:
        kept["observed_value"] = MASKED
    return {**kept, "partial_unexpected_index_list": rows} if rows else kept


def evidence_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a result tells of the rows that broke its expectation, in a form that the ledger can keep.

    Returns
    -------
    dict
        ``examples``: distinct values, the most frequent first; ``values``: the same with their counts among ``seen``
        rows; ``records``: topic, partition and offset of the first of them.
    """
    rows = result.get("partial_unexpected_index_list") or []
    values = result.get("partial_unexpected_list") or []
    counts: Counter[str] = Counter()
    first: dict[str, Any] = {}
    for value in map(short, values):
        key = json.dumps(value, sort_keys=True, default=str)
        first.setdefault(key, value)
        counts[key] += 1
    found = [{"value": first[key], "count": count} for key, count in counts.most_common(_SHOWN)]
    return {
        "examples": [item["value"] for item in found],
        "values": found,
        "seen": len(values),
        "records": [
            {"topic": row["_topic"], "partition": row["_partition"], "offset": row["_offset"]} for row in rows[:_SHOWN]
        ],
    }


def short(value: Any) -> Any:
    """Return a value in a form that the ledger can keep; long text is cut."""
    found = plain(value)
    if isinstance(found, dict):
        return {name: short(part) for name, part in found.items()}
    return found[:_LONGEST] if isinstance(found, str) else found
