"""Checks a Spark DDL schema without a JVM, so that any machine can parse a DAG file."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from functools import lru_cache

__all__ = ["check_ddl", "first_of", "types_of"]

_NAMES = {
    "BOOLEAN": "BOOLEAN", "TINYINT": "BYTE", "SMALLINT": "SHORT", "INT": "INT", "BIGINT": "LONG", "FLOAT": "FLOAT",
    "DOUBLE": "DOUBLE", "DECIMAL": "DECIMAL", "TEXT": "STRING", "VARCHAR": "STRING", "CHAR": "STRING",
    "BINARY": "BINARY", "VARBINARY": "BINARY", "DATE": "DATE", "TIMESTAMP": "TIMESTAMP", "TIMESTAMPTZ": "TIMESTAMP",
    "TIMESTAMPLTZ": "TIMESTAMP", "TIMESTAMPNTZ": "TIMESTAMP_NTZ", "STRUCT": "STRUCT", "ARRAY": "ARRAY", "MAP": "MAP",
    "VARIANT": "VARIANT",
}  # fmt: skip

_SHOWN = {"BYTE": "TINYINT", "SHORT": "SMALLINT", "LONG": "BIGINT"}


def first_of(types: Collection[str], ddl: str) -> str | None:
    """Return the first of these types that a valid DDL schema has, at any depth; None if it has none of them."""
    from sqlglot import exp, parse_one

    found = parse_one(f"CREATE TABLE t ({ddl})", dialect="spark").find_all(exp.DataType, bfs=False)
    return next((part.this.name for part in found if part.this.name in types), None)


def types_of(ddl: str) -> dict[str, str]:
    """Return the columns of a valid DDL schema with their types, written alike if they are the same to a table.

    Limits of texts and ``NOT NULL`` do not count.
    """
    from sqlglot import exp, parse_one

    def written(kind: exp.DataType) -> str:
        parts = [
            f"{part.name}: {written(part.args['kind'])}" if isinstance(part, exp.ColumnDef) else written(part)
            for part in kind.expressions
            if isinstance(part, exp.ColumnDef | exp.DataType)
        ]
        name = _NAMES[kind.this.name]
        if name == "DECIMAL":
            digits = [part.name for part in kind.expressions]
            return f"DECIMAL({','.join([*digits, '0'][:2] if digits else ['10', '0'])})"
        return f"{_SHOWN.get(name, name)}<{', '.join(parts)}>" if parts else _SHOWN.get(name, name)

    tree = parse_one(f"CREATE TABLE t ({ddl})", dialect="spark").this
    return {c.name: written(c.args["kind"]) for c in tree.expressions if isinstance(c, exp.ColumnDef)}


def _meant(word: str) -> str:
    """Return a hint to the type that a misspelt word stands for; an empty text for other words."""
    known = {*_NAMES, *_NAMES.values(), *_SHOWN.values()}
    near = difflib.get_close_matches(word.upper(), sorted(known), n=1, cutoff=0.8)
    return f": did you mean {near[0]}?" if near and near[0] != word.upper() else ""


@lru_cache(maxsize=4096)
def _checked(ddl: str) -> tuple[str, ...]:
    return tuple(_names_in(ddl))


def check_ddl(ddl: str) -> list[str]:
    """Return the column names of a DDL schema such as ``"carrier STRING, flight INT"``.

    Raises
    ------
    ValueError
        With the column whose type Spark does not know, or the place that does not parse.
    """
    return [*_checked(ddl)]


def _names_in(ddl: str) -> list[str]:
    from sqlglot import exp, parse_one
    from sqlglot.errors import SqlglotError

    try:
        tree = parse_one(f"CREATE TABLE t ({ddl})", dialect="spark")
    except SqlglotError as error:
        detail: dict[str, str] = next(iter(getattr(error, "errors", [])), {})
        place = detail.get("highlight") or ""
        meant = next((f"; {word}{near}" for word in re.findall(r"\w{3,}", ddl) if (near := _meant(word))), "")
        raise ValueError(f"not a Spark DDL schema{f', near {place!r}' if place else ''}{meant}") from None
    columns = list(tree.find_all(exp.ColumnDef)) if isinstance(tree, exp.Create) else []
    if not columns or not isinstance(tree.this, exp.Schema):
        raise ValueError("not a Spark DDL schema: expected `name TYPE, name TYPE`")
    top = [c for c in tree.this.expressions if isinstance(c, exp.ColumnDef)]
    if len(top) != len(tree.this.expressions):
        raise ValueError("not a Spark DDL schema: every column needs a type")
    for column in columns:
        if not column.name.strip():
            raise ValueError("a column, or a field of one, has no name")
        kind = column.args.get("kind")
        if kind is None:
            raise ValueError(f"column {column.name!r} has no type")
        for part in kind.find_all(exp.DataType):
            if part.this.name not in _NAMES:
                raise ValueError(
                    f"column {column.name!r} has the type {part.sql('spark')!r}, which Spark does not know"
                    f"{_meant(part.sql('spark'))}"
                )
            if part.this.name == "MAP" and part.expressions and part.expressions[0].this.name != "TEXT":
                raise ValueError(f"column {column.name!r} has a map whose keys are no STRING: no decoder makes one")
            parts = [p.name.lower() for p in part.expressions if isinstance(p, exp.ColumnDef)]
            if len(set(parts)) < len(parts):
                twice = next(p for p in parts if parts.count(p) > 1)
                raise ValueError(f"column {column.name!r} has two fields {twice!r} (Spark ignores case)")
    names = [c.name for c in top]
    doubled = sorted({n for n in names if [m.lower() for m in names].count(n.lower()) > 1})
    if doubled:
        raise ValueError(f"column {doubled[0]!r} is declared twice (Spark ignores case)")
    return names
