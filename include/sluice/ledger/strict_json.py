"""Converts the observed values of a validation into strict JSON, which every database and parser accepts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import date, time
from enum import Enum
from typing import Any

__all__ = ["plain"]

_DEEPEST = 50
_WIDEST_NUMBER = 1024
"""In bits. Python refuses to format much longer integers as decimal text."""


def plain(value: Any) -> Any:
    """Return a value as strict JSON; never raises.

    - NaN and infinities become text (``"NaN"``, ``"Infinity"``, ``"-Infinity"``): JSON has no such numbers, and
      PostgreSQL refuses them.
    - In text and keys, NULs and lone surrogates are escaped (``\\x00``, ``\\ud800``); PostgreSQL and UTF-8 lack them.
    - Times become ISO 8601, sets and tuples become lists, numpy scalars and arrays become Python values, and everything
      else (decimals, bytes) becomes text.
    """
    return _plain(value, 0)


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _WIDEST_NUMBER else hex(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _NAMES.get(float(value), "NaN")
    if depth >= _DEEPEST:
        return _said(value)
    try:
        return _compound(value, depth)
    except Exception:
        return _said(value)


_NAMES = {math.inf: "Infinity", -math.inf: "-Infinity"}


def _compound(value: Any, depth: int) -> Any:
    as_dict = getattr(value, "asDict", None)  # Spark's Row, which is also a tuple
    if callable(as_dict):
        value = as_dict()
    if isinstance(value, Mapping):
        return {_key(k): _plain(v, depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v, depth + 1) for v in value]
    if isinstance(value, date | time):
        return _text(value.isoformat())
    if type(value).__module__.partition(".")[0] == "numpy":
        inner = value.tolist()
        return _said(value) if type(inner) is type(value) else _plain(inner, depth + 1)
    return _said(value)


def _key(key: Any) -> str:
    found = _plain(key, _DEEPEST)
    return found if isinstance(found, str) else json.dumps(found)


def _said(value: Any) -> str:
    try:
        return _text(str(value))
    except Exception:
        return f"<{type(value).__name__}>"


def _text(text: str) -> str:
    return text.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")
