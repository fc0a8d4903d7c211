"""Compares the columns of a pipeline's rows with those of a table, adds what the table lacks, widens its types; pure.

Columns are added, and fields of structs at any depth. A type becomes a wider one that holds each of its values exactly.
A column that only the table has may be one that was renamed, and another type may lose values. Both are reported, never
guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NumericType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

__all__ = ["Added", "Changed", "Difference", "difference", "merged", "nullable", "told", "ways_out", "widened"]

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EXAMPLES = 3
_WIDER = ([ByteType, ShortType, IntegerType, LongType], [FloatType, DoubleType])
_STORED = (BinaryType, BooleanType, DateType, NumericType, StringType, TimestampType)


@dataclass(frozen=True)
class Added:
    """A column or field that only the pipeline has; ``name`` is its path, as SQL writes it."""

    name: str
    kind: DataType

    @property
    def sql(self) -> str:
        """The column as a statement of Spark SQL defines it."""
        return f"{self.name} {_sql(self.kind)}"

    def as_dict(self) -> dict[str, str]:
        """Return a JSON-ready form."""
        return {"column": self.name, "type": self.kind.simpleString()}


@dataclass(frozen=True)
class Changed:
    """A column or field that both have, with different types."""

    name: str
    there: DataType
    ours: DataType

    @property
    def widens(self) -> bool:
        """Whether the pipeline's type holds each value of the table's exactly, and can take its place."""
        return _widens(self.there, self.ours)

    def as_dict(self) -> dict[str, str]:
        """Return a JSON-ready form, of a column that was widened."""
        return {"column": self.name, "type": self.ours.simpleString(), "was": self.there.simpleString()}


@dataclass(frozen=True)
class Difference:
    """What the pipeline's rows and the table do not have in common.

    Attributes
    ----------
    added
        Only the pipeline has these.
    missing
        Only the table has these.
    clashing
        Those of ``added`` that the table has in other letters: ``ID`` beside ``id``.
    impossible
        Those of ``added`` with a type that needs a feature of the table, or that no table can have.
    """

    added: tuple[Added, ...] = ()
    missing: tuple[Added, ...] = ()
    changed: tuple[Changed, ...] = ()
    clashing: tuple[str, ...] = ()
    impossible: tuple[str, ...] = ()

    def fits(self, evolve: str) -> bool:
        """Return whether rows with this difference can be written with ``sink.delta.evolve``."""
        changed = [c for c in self.changed if not (evolve == "widen" and c.widens)]
        return not (self.missing or changed or self.clashing or self.impossible or (self.added and evolve == "refuse"))


def difference(there: StructType, ours: StructType) -> Difference:
    """Compare the columns of a table with those of a pipeline's rows. Nullability and order are no difference."""
    added: list[Added] = []
    missing: list[Added] = []
    changed: list[Changed] = []
    clashing: list[str] = []
    impossible: list[str] = []

    def walk(left: DataType, right: DataType, above: tuple[str, ...]) -> None:
        if isinstance(left, StructType) and isinstance(right, StructType):
            known, folded = set(left.names), {name.lower() for name in left.names}
            for field in left.fields:
                if field.name not in right.names:
                    missing.append(Added(_path(above, field.name), field.dataType))
            for field in right.fields:
                name = _path(above, field.name)
                if field.name in known:
                    walk(left[field.name].dataType, field.dataType, (*above, field.name))
                    continue
                added.append(Added(name, nullable(field.dataType)))
                if field.name.lower() in folded:
                    clashing.append(name)
                elif not _can_be_stored(field.dataType):
                    impossible.append(name)
        elif isinstance(left, ArrayType) and isinstance(right, ArrayType):
            walk(left.elementType, right.elementType, (*above, "element"))
        elif isinstance(left, MapType) and isinstance(right, MapType):
            if nullable(left.keyType) != nullable(right.keyType):  # fields of a key cannot be added
                changed.append(Changed(_path(above), left, right))
            else:
                walk(left.valueType, right.valueType, (*above, "value"))
        elif nullable(left) != nullable(right):
            changed.append(Changed(_path(above), left, right))

    walk(there, ours, ())
    return Difference(tuple(added), tuple(missing), tuple(changed), tuple(clashing), tuple(impossible))


def told(found: Difference) -> list[str]:
    """Return the differences in words, for a message."""
    return [
        *(f"{column.name}: only in the table" for column in found.missing),
        *(f"{column.name}: only in the pipeline" for column in found.added),
        *(f"{name}: the table has this name in other letters" for name in found.clashing),
        *(
            f"{c.name}: {c.there.simpleString()} in the table, {c.ours.simpleString()} in the pipeline"
            for c in found.changed
        ),
    ]


def ways_out(found: Difference, path: str, evolve: str) -> list[str]:
    """Return what the user can do about the differences, with the statements to copy."""
    steps = []
    addable = [c for c in found.added if c.name not in (*found.clashing, *found.impossible)]
    if addable and evolve == "refuse":
        columns = ", ".join(column.sql for column in addable)
        steps.append(
            f"sink.delta.evolve: add in the pipeline file adds {_names(addable)} with the next batch; or in Spark SQL: "
            f"ALTER TABLE delta.`{path}` ADD COLUMNS ({columns})"
        )
    if found.clashing:
        steps.append(f"name {', '.join(found.clashing)} in the transform as the table does")
    for name in found.impossible:
        kind = next(c.kind for c in found.added if c.name == name).simpleString()
        steps.append(f"cast {name} in the transform: a column of type {kind} is not added to a table that has none")
    top = [c for c in found.missing if "." not in c.name]
    if found.missing:
        how = ", ".join(f"CAST(NULL AS {_sql(c.kind)}) AS {c.name}" for c in top[:_EXAMPLES])
        lacking = found.missing[0]
        alike = [c.name for c in addable if c.kind == lacking.kind]  # another type cannot be the same column renamed
        renamed = f"{alike[0] if alike else 'new_name'} AS {lacking.name}"
        steps.append(
            f"if {lacking.name} was renamed, give it its old name in the transform: {renamed}; "
            + (f"if it is gone, write nulls: {how}" if how else "if it is gone, rebuild its struct with a null in it")
        )
    wider = [c for c in found.changed if c.widens]
    if wider and evolve != "widen":
        names = ", ".join(f"{c.name} to {c.ours.simpleString().upper()}" for c in wider[:_EXAMPLES])
        steps.append(
            f"sink.delta.evolve: widen in the pipeline file widens {names}: the table's files are rewritten once"
        )
    for column in [c for c in found.changed if not (c.widens and evolve == "widen")][:_EXAMPLES]:
        if isinstance(column.there, StructType | ArrayType | MapType):
            steps.append(f"write {column.name} under a new name")
        elif not {"element", "key", "value"}.isdisjoint(column.name.split(".")[1:]):  # no expression casts these alone
            whole = column.name.partition(".")[0]
            steps.append(
                f"build {whole} again in the transform, with {column.name} as {column.there.simpleString()}; or write "
                f"{whole} under a new name"
            )
        else:
            cast, (whole, dot, _) = f"CAST({column.name} AS {_sql(column.there)})", column.name.partition(".")
            how = (
                f"build {whole} again in the transform, with {cast}"
                if dot
                else f"cast {whole} in the transform: {cast}"
            )
            steps.append(f"{how}; or write {whole} under a new name")
    return steps


def _names(columns: Iterable[Added]) -> str:
    return ", ".join(column.name for column in columns)


def merged(there: StructType, ours: StructType) -> StructType:
    """Return the table's columns and, after them, those that only the pipeline has; these allow nulls.

    What the table says of its own columns stays: order, nullability and metadata, such as comments.
    """
    found = _merged(there, ours)
    assert isinstance(found, StructType)
    return found


def _merged(there: DataType, ours: DataType) -> DataType:
    if isinstance(there, StructType) and isinstance(ours, StructType):
        own = {f.name: f for f in ours.fields}
        fields = [
            StructField(f.name, _merged(f.dataType, own[f.name].dataType), f.nullable, f.metadata)
            if f.name in own
            else f
            for f in there.fields
        ]
        new = [StructField(f.name, nullable(f.dataType), True) for f in ours.fields if f.name not in there.names]
        return StructType([*fields, *new])
    if isinstance(there, ArrayType) and isinstance(ours, ArrayType):
        return ArrayType(_merged(there.elementType, ours.elementType), there.containsNull)
    if isinstance(there, MapType) and isinstance(ours, MapType):
        return MapType(there.keyType, _merged(there.valueType, ours.valueType), there.valueContainsNull)
    return there


def widened(there: Any, ours: Any) -> Any:
    """Return the table's type with the pipeline's types where these are wider ones; nothing is added."""
    if isinstance(there, StructType) and isinstance(ours, StructType):
        own = {f.name: f.dataType for f in ours.fields}
        return StructType(
            [StructField(f.name, widened(f.dataType, own.get(f.name)), f.nullable, f.metadata) for f in there.fields]
        )
    if isinstance(there, ArrayType) and isinstance(ours, ArrayType):
        return ArrayType(widened(there.elementType, ours.elementType), there.containsNull)
    if isinstance(there, MapType) and isinstance(ours, MapType):
        return MapType(there.keyType, widened(there.valueType, ours.valueType), there.valueContainsNull)
    return ours if _widens(there, ours) else there


def _widens(there: Any, ours: Any) -> bool:
    if isinstance(there, DecimalType) and isinstance(ours, DecimalType):
        before = ours.precision - ours.scale >= there.precision - there.scale
        return bool(there != ours and ours.scale >= there.scale and before)
    for kinds in _WIDER:
        if type(there) in kinds and type(ours) in kinds:
            return bool(kinds.index(type(there)) < kinds.index(type(ours)))
    return False


def nullable(kind: Any) -> Any:
    """Return a type that allows nulls at every level, because one plan's nullability must not restrict the table."""
    if isinstance(kind, StructType):
        return StructType([StructField(f.name, nullable(f.dataType), True) for f in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(nullable(kind.elementType), True)
    if isinstance(kind, MapType):
        return MapType(nullable(kind.keyType), nullable(kind.valueType), True)
    return kind


def _quoted(name: str) -> str:
    """Return a name as SQL writes it."""
    return name if _WORD.fullmatch(name) else f"`{name.replace('`', '``')}`"


def _sql(kind: DataType) -> str:
    """Return a type as SQL writes it; Spark's own text of a struct does not quote the names of its fields."""
    if isinstance(kind, StructType):
        return f"struct<{','.join(f'{_quoted(f.name)}:{_sql(f.dataType)}' for f in kind.fields)}>"
    if isinstance(kind, ArrayType):
        return f"array<{_sql(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{_sql(kind.keyType)},{_sql(kind.valueType)}>"
    return str(kind.simpleString())


def _path(above: Iterable[str], *names: str) -> str:
    return ".".join(map(_quoted, (*above, *names)))


def _can_be_stored(kind: DataType) -> bool:
    """Return whether any Delta table can have a column of this type, without a feature that it may lack."""
    if isinstance(kind, StructType):
        return bool(kind.fields) and all(_can_be_stored(f.dataType) for f in kind.fields)
    if isinstance(kind, ArrayType):
        return _can_be_stored(kind.elementType)
    if isinstance(kind, MapType):
        return _can_be_stored(kind.keyType) and _can_be_stored(kind.valueType)
    return isinstance(kind, _STORED)
