"""The fields of a JSON object that the schema does not have, as they were written.

Spark parses no field without rewriting it, so the text is divided into its tokens. ``sluice_spark.arrow.rescued`` does
the same in Python; this is Spark's own, because an executor's Python need not have this package.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

__all__ = ["TOKEN", "names_of", "rescued"]

TOKEN = r'(?s)"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}:,]|[^\[\]{}:,"]++'
"""A text, a mark, or what stands between them: a number, a word, blanks. Possessive, so that no text is too long."""
_BLANKS = " \t\r\n"
_START = "struct<depth int, at int, start int, name string, members array<struct<given string, raw string>>>"


def rescued(text: Column, fields: Sequence[T.StructField]) -> Column:
    """Return an object of the members that the schema does not have; null if there are none.

    Parameters
    ----------
    text
        Exactly one JSON object, or ``null``.
    fields
        The schema. In columns of the type ``STRUCT`` unknown members are found, too.
    """
    known = [f.name for f in fields]
    inner = [f for f in fields if isinstance(f.dataType, T.StructType)]

    def found(members: Column) -> Column:
        own = F.transform(_distinct(F.filter(members, lambda m: ~m["name"].isin(*known))), _written)
        nested = [_of_struct(members, f) for f in inner]
        every = F.array_compact(F.concat(own, F.array(*nested))) if nested else own
        return F.when(F.size(every) > 0, F.concat(F.lit("{"), F.array_join(every, ","), F.lit("}")))

    # bound to a variable, or Spark would look for the members wherever they are used
    whole = F.transform(F.array(_members(text)), found)[0]
    if inner:
        return whole
    keys = names_of(text)
    none = F.size(F.array_except(keys, F.array(*map(F.lit, known)))) == 0
    return F.when(~F.coalesce(none, F.lit(False)), whole)


def names_of(text: Column) -> Column:
    """Return the names of an object's members."""
    return F.call_function("json_object_keys", text)


def _of_struct(members: Column, field: T.StructField) -> Column:
    """Return ``"name":{...}`` of a column's unknown members; null if there are none."""
    assert isinstance(field.dataType, T.StructType)
    own = F.try_element_at(F.filter(members, lambda m: m["name"] == field.name), F.lit(-1))
    kept = rescued(own["raw"], field.dataType.fields)
    return F.concat(F.lit(json.dumps(field.name, ensure_ascii=False) + ":"), kept)


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
    start = F.from_json(F.lit('{"depth":0,"at":0,"start":0,"members":[]}'), _START)

    def step(at: Column, token: Column) -> Column:
        depth, here, name = at["depth"], at["at"], at["name"]
        top = depth == 1
        ends = top & token.isin(",", "}") & name.isNotNull()
        raw = F.btrim(F.substring(text, at["start"] + 1, here - at["start"]), F.lit(_BLANKS))
        member = F.struct(name.alias("given"), raw.alias("raw"))
        after = here + F.char_length(token)
        return F.struct(
            (depth + F.when(token.isin("{", "["), 1).when(token.isin("}", "]"), -1).otherwise(0)).alias("depth"),
            after.alias("at"),
            F.when(top & (token == ":"), after).otherwise(at["start"]).alias("start"),
            F.when(ends, F.lit(None))
            .when(top & name.isNull() & token.startswith('"'), token)
            .otherwise(name)
            .alias("name"),
            F.when(ends, F.array_append(at["members"], member)).otherwise(at["members"]).alias("members"),
        )

    found = F.aggregate(F.regexp_extract_all(text, F.lit(TOKEN), F.lit(0)), start, step, lambda at: at["members"])

    def named(member: Column) -> Column:
        given = member["given"]
        plain = F.substring(given, F.lit(2), F.char_length(given) - 2)
        name = F.when(given.contains("\\"), names_of(F.concat(F.lit("{"), given, F.lit(":0}")))[0]).otherwise(plain)
        return F.struct(name.alias("name"), given.alias("given"), member["raw"].alias("raw"))

    return F.transform(found, named)
