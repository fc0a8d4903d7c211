"""Types of a schema's fields, as the columns that take them; pure."""

from __future__ import annotations

from typing import Any

from sluice.draft.infer import quoted

__all__ = ["DEEPEST", "Kind", "NoColumnError", "ddl", "merged"]

Kind = str | tuple[str, Any] | dict[str, Any]
"""A type: a word; ``ARRAY`` or ``MAP`` and what it holds; or a struct's fields."""
DEEPEST = 50
"""Levels of a type."""

_WIDER = {frozenset({"INT", "BIGINT"}): "BIGINT", frozenset({"FLOAT", "DOUBLE"}): "DOUBLE"}


class NoColumnError(Exception):
    """No column takes a type; the message says why."""


def merged(one: Kind, other: Kind) -> Kind:
    """Return the type that takes the values of two; raises :class:`NoColumnError` if there is none."""
    if one == other:
        return one
    if isinstance(one, dict) and isinstance(other, dict):
        both = {n: merged(one[n], other[n]) if n in one and n in other else one.get(n, other.get(n)) for n in other}
        return one | both
    if isinstance(one, tuple) and isinstance(other, tuple) and one[0] == other[0]:
        return one[0], merged(one[1], other[1])
    wider = _WIDER.get(frozenset({one, other})) if isinstance(one, str) and isinstance(other, str) else None
    if wider is None:
        raise NoColumnError
    return wider


def ddl(kind: Kind) -> str:
    """Return a type as DDL."""
    if isinstance(kind, dict):
        return f"STRUCT<{', '.join(f'{quoted(n)}: {ddl(part)}' for n, part in kind.items())}>"
    if isinstance(kind, tuple):
        name, held = kind
        return f"MAP<STRING, {ddl(held)}>" if name == "MAP" else f"ARRAY<{ddl(held)}>"
    return kind
