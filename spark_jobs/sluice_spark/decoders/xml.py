"""One XML document per record.

Spark's ``from_xml`` does the parsing, and nothing else: each element is read as text, and as often as it occurs. What
Spark's types would round, drop or guess is judged here. It reads no further than the root's end tag, so a last element
is added there, which is found only if the document reaches to the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from sluice.decoders.xml import TEXT_OF, XmlDecode
from sluice_spark.decoders.fields import RAW, Read, finish, is_text, quoted, text_problems, text_value

__all__ = ["Xml"]

_CORRUPT = "__sluice_corrupt"
_END = "__sluice_end"
_OWN = "__sluice"
_ATTRIBUTE = "@"
"""What attributes begin with while they are parsed: no element can."""
_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _CORRUPT,
    "attributePrefix": _ATTRIBUTE,
    "valueTag": TEXT_OF,
    "wildcardColName": "__sluice_any",
    "ignoreSurroundingSpaces": "false",
}
_BLANKS = " \t\r\n"

# Possessive quantifiers (*+) throughout: a group that may backtrack uses a stack frame per repetition.
_PROLOG = r"\x{FEFF}?(?:[ \t\r\n]++|<\?.*?\?>|<!--.*?-->)*+"
_VALUE = r"(?:\"[^\"<]*+\"|'[^'<]*+')"
_PAIR = rf"\s++[^\s=<>\"'/]++\s*+=\s*+{_VALUE}"
_TAG = r"<[^\s<>/!?]++"


@dataclass(frozen=True)
class Xml:
    """The decoder of ``decode: {xml: ...}``."""

    config: XmlDecode

    def decode(self, records: DataFrame) -> DataFrame:
        """Decode one document per record, strictly."""
        return _xml(records, self.config)


def _xml(records: DataFrame, spec: XmlDecode) -> DataFrame:
    fields = T.StructType.fromDDL(spec.ddl).fields
    raw, value = F.col(RAW), F.col("value")
    text = value.cast("string")
    trimmed = F.rtrim(text, F.lit(_BLANKS))
    empty = trimmed.rlike(rf"(?s)^{_PROLOG}{_TAG}(?:{_PAIR})*+\s*+/>\z")
    marked = F.regexp_replace(trimmed, r"</([^<>]*+)>\z", f"<{_END}>0</{_END}></$1>")
    document = F.when(F.is_valid_utf8(text), F.when(empty, trimmed).otherwise(marked))
    parsed = F.from_xml(document, _schema(fields, spec, "STRING"), _options(spec))

    broken = raw.isNull() | raw.getField(_CORRUPT).isNotNull() | (~empty & raw.getField(_END).isNull())
    # entities are not resolved, and nothing is fetched; but a DTD may also give attributes that are not in the text
    typed = text.rlike(rf"(?s)^{_PROLOG}<!DOCTYPE")
    there = value.isNotNull()  # what a record without a value becomes is up to the file
    rule = F.when(~there & (spec.tombstone == "quarantine"), "null_value")
    rule = rule.when(there & (~F.is_valid_utf8(text) | _encoded_otherwise(text)), "utf8")
    rule = rule.when(there & (broken | typed | text.contains(_OWN)), "xml")
    if spec.root is not None:
        name = F.regexp_extract(text, rf"(?s)^{_PROLOG}<([^\s<>/!?]++)", 1)
        own = F.substring_index(name, ":", -1) if spec.ignore_namespace else name
        rule = rule.when(own != spec.root, "root")
    twice = [_twice(text, name, spec) for name in sorted(set(_attributes(fields, spec)))]
    if twice:
        rule = rule.when(reduce(or_, twice), "duplicate")
    if not any(f.name == TEXT_OF for f in fields):
        rule = rule.when(raw.getField(TEXT_OF).isNotNull(), "type")

    again = F.from_xml(document, _schema(fields, spec, f"STRUCT<{TEXT_OF}: ARRAY<STRING>>"), _options(spec))
    reads = [_field(f, raw, again, spec) for f in fields]
    if spec.deletes:
        for read in reads:
            read.problems = [(name, there & broken) for name, broken in read.problems]
    return finish(records.withColumn(RAW, parsed), reads, rule, F.lit(None).cast("string")).drop(RAW)


def _options(spec: XmlDecode) -> dict[str, str]:
    return {**_OPTIONS, "ignoreNamespace": str(spec.ignore_namespace).lower()}


def _encoded_otherwise(text: Column) -> Column:
    """Whether a document says that it has another encoding than UTF-8, as which it is read."""
    said = F.regexp_extract(text, r"^\x{FEFF}?<\?xml\s[^>]*?\sencoding\s*=\s*[\"']([^\"'>]*)", 1)
    return ~F.lower(said).isin("", "utf-8", "utf8", "us-ascii", "ascii")


def _twice(text: Column, name: str, spec: XmlDecode) -> Column:
    """Whether a tag has two attributes that Spark takes for one, of which it would keep the last.

    It ignores case, and with ``ignoreNamespace`` takes a declaration of a prefix for an attribute as well.
    """
    prefix = r"(?:[^\s=<>\"'/:]++:)?" if spec.ignore_namespace else ""
    own = rf"\s++{prefix}{re.escape(name)}\s*+="
    others = rf"(?:(?!{own}){_PAIR})*+"
    found = text.rlike(rf"(?isu){_TAG}{others}{own}\s*+{_VALUE}{others}{own}")
    if not spec.ignore_namespace:
        return found
    declared = rf"\s++xmlns:{re.escape(name)}\s*+="
    return found | text.rlike(rf"(?isu){_TAG}(?:(?!{declared}){_PAIR})*+{declared}")


def _attributes(fields: list[T.StructField], spec: XmlDecode) -> Iterator[str]:
    """Yield the names of the attributes of all elements."""
    for f in fields:
        if spec.is_attribute(f.name):
            yield f.name.removeprefix(spec.attribute_prefix)
        kind = f.dataType.elementType if isinstance(f.dataType, T.ArrayType) else f.dataType
        if isinstance(kind, T.StructType):
            yield from _attributes(kind.fields, spec)


def _schema(fields: list[T.StructField], spec: XmlDecode, leaf: str) -> str:
    """Return what a document is parsed with.

    Parameters
    ----------
    leaf
        The type of an element without other elements.
    """
    return f"{_members(fields, spec, leaf, ' ')}, {_END} STRING, {_CORRUPT} STRING"


def _members(fields: list[T.StructField], spec: XmlDecode, leaf: str, colon: str) -> str:
    found = [f"{quoted(_name(f.name, spec))}{colon}{_parsed(f, spec, leaf)}" for f in fields]
    if not any(f.name == TEXT_OF for f in fields):
        found.append(f"{TEXT_OF}{colon}ARRAY<STRING>")
    return ", ".join(found)


def _name(name: str, spec: XmlDecode) -> str:
    """Return the name by which Spark's parser finds a column or field."""
    return _ATTRIBUTE + name.removeprefix(spec.attribute_prefix) if spec.is_attribute(name) else name


def _parsed(f: T.StructField, spec: XmlDecode, leaf: str) -> str:
    if spec.is_attribute(f.name):
        return "STRING"
    if f.name == TEXT_OF:
        return "ARRAY<STRING>"
    kind = f.dataType.elementType if isinstance(f.dataType, T.ArrayType) else f.dataType
    return (
        f"ARRAY<STRUCT<{_members(kind.fields, spec, leaf, ': ')}>>"
        if isinstance(kind, T.StructType)
        else f"ARRAY<{leaf}>"
    )


def _field(f: T.StructField, raw: Column, again: Column, spec: XmlDecode) -> Read:
    name = _name(f.name, spec)
    read = Read(f.name, "", _value(raw.getField(name), f, spec), _problems(raw.getField(name), f, spec))
    if _has_texts(f, spec):
        texts, other = (
            _texts(parsed.getField(name), f.dataType, spec, again=parsed is again) for parsed in (raw, again)
        )
        suspect = F.exists(texts, lambda x: F.coalesce(x.contains("<"), F.lit(False)))
        differ = F.zip_with(texts, other, lambda x, y: F.coalesce(x.contains("<") & (x != y), F.lit(False)))
        read.problems.insert(0, ("type", suspect & F.exists(differ, lambda x: x)))
    if not f.nullable:
        read.problems.append(("not_null", read.value.isNull()))
    return read


def _value(raw: Column, f: T.StructField, spec: XmlDecode) -> Column:
    """Return a column's or field's value from what was parsed."""
    kind = f.dataType
    if spec.is_attribute(f.name):
        return _scalar(raw, kind)
    if f.name == TEXT_OF:
        return _scalar(F.get(raw, 0), kind)
    if isinstance(kind, T.ArrayType):
        element = kind.elementType
        return F.transform(raw, lambda x: _one(x, element, spec))
    return _one(F.get(raw, 0), kind, spec)


def _one(raw: Column, kind: T.DataType, spec: XmlDecode) -> Column:
    """Return the value of one element."""
    if not isinstance(kind, T.StructType):
        return _scalar(raw, kind)
    members = [_value(raw.getField(_name(f.name, spec)), f, spec).alias(f.name) for f in kind.fields]
    return F.when(raw.isNotNull(), F.struct(*members))


def _scalar(text: Column, kind: T.DataType) -> Column:
    return text_value(_written(text, kind), kind)


def _written(text: Column, kind: T.DataType) -> Column:
    """Return a text as it is, or of another type without the blanks around it; nothing is null then."""
    return text if is_text(kind) else F.nullif(F.btrim(text, F.lit(_BLANKS)), F.lit(""))


def _problems(raw: Column, f: T.StructField, spec: XmlDecode) -> list[tuple[str, Column]]:
    """Return the rules for a column or field, including its parts."""
    kind = f.dataType
    if spec.is_attribute(f.name):
        return _of_scalar(raw, kind)
    if f.name == TEXT_OF:  # in several parts, it stands around other elements
        return [("type", F.size(raw) > 1), *_of_scalar(F.get(raw, 0), kind)]
    if isinstance(kind, T.ArrayType):
        element = kind.elementType
        rules = dict.fromkeys(rule for rule, _ in _of_one(raw, element, spec))
        return [(rule, F.exists(raw, _breaks(rule, element, spec))) for rule in rules]
    return [("duplicate", F.size(raw) > 1), *_of_one(F.get(raw, 0), kind, spec)]


def _breaks(rule: str, kind: T.DataType, spec: XmlDecode) -> Callable[[Column], Column]:
    def breaks(x: Column) -> Column:
        return reduce(or_, [F.coalesce(c, F.lit(False)) for r, c in _of_one(x, kind, spec) if r == rule])

    return breaks


def _of_one(raw: Column, kind: T.DataType, spec: XmlDecode) -> list[tuple[str, Column]]:
    if not isinstance(kind, T.StructType):
        return _of_scalar(raw, kind)
    found = []
    for f in kind.fields:
        own = raw.getField(_name(f.name, spec))
        found += _problems(own, f, spec)
        if not f.nullable:
            found.append(("not_null", raw.isNotNull() & _value(own, f, spec).isNull()))
    if not any(f.name == TEXT_OF for f in kind.fields):
        found.append(("type", raw.getField(TEXT_OF).isNotNull()))
    return found


def _of_scalar(text: Column, kind: T.DataType) -> list[tuple[str, Column]]:
    return text_problems(_written(text, kind), kind)


def _has_texts(f: T.StructField, spec: XmlDecode) -> bool:
    """Return whether a column or field has elements that are texts."""
    if spec.is_attribute(f.name) or f.name == TEXT_OF:
        return False
    kind = f.dataType.elementType if isinstance(f.dataType, T.ArrayType) else f.dataType
    return any(_has_texts(part, spec) for part in kind.fields) if isinstance(kind, T.StructType) else is_text(kind)


def _texts(raw: Column, kind: T.DataType, spec: XmlDecode, *, again: bool) -> Column:
    """Return the texts of the elements of a column that has some.

    Spark writes out as text what elements there are within. If they are parsed ``again``, it leaves that out.
    """
    element = kind.elementType if isinstance(kind, T.ArrayType) else kind
    none = F.array().cast("array<string>")
    if isinstance(element, T.StructType):
        inner = [f for f in element.fields if _has_texts(f, spec)]

        def within(x: Column) -> Column:
            return F.concat(*(_texts(x.getField(f.name), f.dataType, spec, again=again) for f in inner))

        return F.coalesce(F.flatten(F.transform(raw, within)), none)
    if again:
        joined = F.transform(raw, lambda x: F.coalesce(F.array_join(x.getField(TEXT_OF), ""), F.lit("")))
        return F.coalesce(joined, none)
    return F.coalesce(raw, none)
