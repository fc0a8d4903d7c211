"""The fields of a JSON object that the schema does not have, as they were written.

Spark parses no field without rewriting it, so the text is divided into its tokens. ``sluice_spark.arrow.rescued`` does
the same in Python; this is Spark's own, because an executor's Python need not have this package.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

__all__ = ["TOKEN", "has_objects", "names_of", "rescued"]

TOKEN = r'(?s)"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}:,]|[^\[\]{}:,"]++'
"""A text, a mark, or what stands between them: a number, a word, blanks. Possessive, so that no text is too long."""
_BLANKS = " \t\r\n"
_LONGEST = 32_768
"""Bytes of an array or a map that is taken apart: Spark copies all parts for each token, so the time grows with the
square of their number. The Arrow path takes no longer records."""
_START = "struct<depth int, at int, start int, name string, parts array<struct<given string, start int, count int>>>"


def rescued(text: Column, fields: Sequence[T.StructField]) -> Column:
    """Return an object of the members that the schema does not have; null if there are none.

    Parameters
    ----------
    text
        Exactly one JSON object, or ``null``.
    fields
        The schema. Unknown members of objects within a column are found, too, at any depth. An array or a map that is
        longer than the Arrow path takes records, and has any, is kept as a whole.
    """
    known = [f.name for f in fields]
    inner = [f for f in fields if has_objects(f.dataType)]

    def found(members: Column) -> Column:
        own = F.transform(_distinct(F.filter(members, lambda m: ~m["name"].isin(*known))), _written)
        nested = [_of_column(members, f) for f in inner]
        every = F.array_compact(F.concat(own, F.array(*nested))) if nested else own
        return F.when(F.size(every) > 0, F.concat(F.lit("{"), F.array_join(every, ","), F.lit("}")))

    whole = _once(_members(text), found)
    if inner:
        return whole
    keys = names_of(text)
    none = F.size(F.array_except(keys, F.array(*map(F.lit, known)))) == 0
    return F.when(~F.coalesce(none, F.lit(False)), whole)


def has_objects(kind: T.DataType) -> bool:
    """Return whether values of a type hold objects whose fields the schema names."""
    if isinstance(kind, T.ArrayType):
        return has_objects(kind.elementType)
    return has_objects(kind.valueType) if isinstance(kind, T.MapType) else isinstance(kind, T.StructType)


def names_of(text: Column) -> Column:
    """Return the names of an object's members."""
    return F.call_function("json_object_keys", text)


def _of_column(members: Column, field: T.StructField) -> Column:
    """Return ``"name":...`` of a column's unknown members; null if there are none."""
    own = F.try_element_at(F.filter(members, lambda m: m["name"] == field.name), F.lit(-1))
    kept = _unknown(own["raw"], field.dataType)
    return F.concat(F.lit(json.dumps(field.name, ensure_ascii=False) + ":"), kept)


def _unknown(raw: Column, kind: T.DataType) -> Column:
    """Return the unknown members within a value, in its own shape; null if there are none."""
    if isinstance(kind, T.StructType):
        return rescued(raw, kind.fields)
    if isinstance(kind, T.ArrayType):
        inner = kind.elementType
        each = F.transform(_parts(raw, named=False), lambda part: _unknown(part["raw"], inner))

        def listed(found: Column) -> Column:
            shown = F.concat(F.lit("["), F.array_join(found, ",", "null"), F.lit("]"))
            return F.when(F.exists(found, lambda one: one.isNotNull()), shown)

        return _taken_apart(raw, kind, _once(each, listed))
    assert isinstance(kind, T.MapType)
    held = kind.valueType
    pairs = F.transform(_members(raw), lambda m: F.concat(m["given"], F.lit(":"), _unknown(m["raw"], held)))
    kept = _once(
        F.array_compact(pairs),
        lambda found: F.when(F.size(found) > 0, F.concat(F.lit("{"), F.array_join(found, ","), F.lit("}"))),
    )
    return _taken_apart(raw, kind, kept)


def _taken_apart(raw: Column, kind: T.DataType, unknown: Column) -> Column:
    """Return the unknown members within an array or a map; of a long one that has any, all of it, as it was written."""
    whole = F.when(_has_unknown(raw, kind), raw)
    return F.when(F.octet_length(raw) <= _LONGEST, unknown).otherwise(whole)


def _has_unknown(raw: Column, kind: T.DataType) -> Column:
    """Return whether a value has members that its type does not name.

    Spark's parser finds that out in one pass, but rewrites what it reads.
    """
    if not has_objects(kind):
        return F.lit(False)
    if isinstance(kind, T.ArrayType):
        inner = kind.elementType
        parts = F.from_json(raw, T.ArrayType(T.StringType()))
        return F.coalesce(F.exists(parts, lambda part: _has_unknown(part, inner)), F.lit(False))
    members = F.from_json(raw, T.MapType(T.StringType(), T.StringType()))
    if isinstance(kind, T.MapType):
        held = kind.valueType
        return F.coalesce(F.exists(F.map_values(members), lambda part: _has_unknown(part, held)), F.lit(False))
    assert isinstance(kind, T.StructType)
    known = [f.name for f in kind.fields]
    found = F.exists(F.map_keys(members), lambda name: ~name.isin(*known)) if known else F.size(members) > 0
    for field in kind.fields:
        found = found | _has_unknown(F.try_element_at(members, F.lit(field.name)), field.dataType)
    return F.coalesce(found, F.lit(False))


def _once(value: Column, made: Callable[[Column], Column]) -> Column:
    """Bind a value to a variable: Spark would compute it wherever it is used."""
    return F.transform(F.array(value), made)[0]


def _written(member: Column) -> Column:
    return F.concat(member["given"], F.lit(":"), member["raw"])


def _distinct(members: Column) -> Column:
    """Return each name once, where it stood first, with what stood last: as an object in JavaScript and Python."""
    names = F.transform(members, lambda m: m["name"])
    firsts = F.filter(members, lambda m, n: F.array_position(names, m["name"]) == n + 1)
    last = F.transform(
        firsts, lambda m: F.try_element_at(F.filter(members, lambda o: o["name"] == m["name"]), F.lit(-1))
    )
    return F.when(F.size(F.array_distinct(names)) < F.size(names), last).otherwise(members)


def _members(text: Column) -> Column:
    """Return the members of an object: name, the name as it is given, and the value as it is given."""

    def named(member: Column) -> Column:
        given = member["given"]
        plain = F.substring(given, F.lit(2), F.char_length(given) - 2)
        name = F.when(given.contains("\\"), names_of(F.concat(F.lit("{"), given, F.lit(":0}")))[0]).otherwise(plain)
        return F.struct(name.alias("name"), given.alias("given"), member["raw"].alias("raw"))

    return F.transform(_parts(text, named=True), named)


def _parts(value: Column, *, named: bool) -> Column:
    """Return the values of an object, with their names as they are given, or those of an array, as they are given."""
    return _once(value.cast("binary"), lambda text: _divided(text, named=named))


def _divided(text: Column, *, named: bool) -> Column:
    """Return the parts of a text. It is of bytes: the place of a character is found by counting from the beginning."""
    start = F.from_json(F.lit('{"depth":0,"at":1,"start":1,"parts":[]}'), _START)
    opens, ends_at = (":", ("}", ",")) if named else ("[", ("]", ","))

    def step(at: Column, token: Column) -> Column:
        depth, here, name = at["depth"], at["at"], at["name"]
        top = depth == 1
        ends = top & token.isin(*ends_at)
        ends = ends & name.isNotNull() if named else ends
        begins = top & (token == opens) if named else (top & (token == ",")) | ((depth == 0) & (token == opens))
        part = F.struct(name.alias("given"), at["start"].alias("start"), (here - at["start"]).alias("count"))
        own = F.when(top & name.isNull() & token.startswith('"'), token).otherwise(name) if named else name
        after = here + F.octet_length(token)
        return F.struct(
            (depth + F.when(token.isin("{", "["), 1).when(token.isin("}", "]"), -1).otherwise(0)).alias("depth"),
            after.alias("at"),
            F.when(begins, after).otherwise(at["start"]).alias("start"),
            F.when(~ends, own).alias("name"),
            F.when(ends, F.array_append(at["parts"], part)).otherwise(at["parts"]).alias("parts"),
        )

    def written(part: Column) -> Column:
        raw = F.btrim(F.substring(text, part["start"], part["count"]).cast("string"), F.lit(_BLANKS))
        return F.struct(part["given"].alias("given"), raw.alias("raw"))

    tokens = F.regexp_extract_all(text.cast("string"), F.lit(TOKEN), F.lit(0))
    found = F.transform(F.aggregate(tokens, start, step, lambda at: at["parts"]), written)
    return found if named else F.filter(found, lambda part: part["raw"] != "")  # of an array without elements
