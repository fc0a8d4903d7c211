"""The formats of the contract of decoders: sound records, by writers of others, and records that are refused."""

from __future__ import annotations

import base64
import itertools
import json
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from xml.sax.saxutils import escape

from tests.fixtures.decoding import Record
from tests.fixtures.registry import StandIn
from tests.fixtures.wire import IMPORTS, STAMP, classes, file, framed, logical, message, nested, record, written

Row = Mapping[str, Any]
Bad = tuple[Record | bytes | None, str]

TYPES = {
    "i": "INT", "l": "BIGINT NOT NULL", "s": "STRING", "d": "DOUBLE", "b": "BOOLEAN", "c": "DECIMAL(12,3)",
    "dt": "DATE", "ts": "TIMESTAMP", "a": "ARRAY<BIGINT>", "o": "STRUCT<x: INT NOT NULL, z: STRING>",
}  # fmt: skip
"""The types that both paths have."""
OTHERS = {"t": "TINYINT", "f": "FLOAT", "y": "BINARY", "n": "TIMESTAMP_NTZ", "m": "MAP<STRING, INT>"}
"""The types that Spark alone decodes in one format or another."""

VALUES: dict[str, list[Any]] = {
    "i": [None, 0, -1, 2**31 - 1, -(2**31)],
    "l": [0, 7, 2**63 - 1, -(2**63)],
    "s": [None, "", "x", "é😀", 'a"b', "a,b", "a\nb", "\\", "null", " x ", "<b>&amp;", "1"],
    "d": [None, 0.0, -0.0, 0.1, -2.5, 1e300, 5e-324, 1e22],
    "b": [None, True, False],
    "c": [None, *map(Decimal, ("0.000", "-12.340", "999999999.999", "0.001"))],
    "dt": [None, date(1970, 1, 1), date(2024, 2, 29), date(9999, 12, 31), date(1969, 12, 31)],
    "ts": [None, datetime(1970, 1, 1), datetime(2013, 1, 1, 5, 0, 0, 5), datetime(9999, 12, 31, 23, 59, 59, 999_999),
           datetime(1969, 12, 31, 23, 59, 59, 999_999)],
    "a": [None, [], [1], [2**62, None, -1]],
    "o": [None, {"x": 1, "z": None}, {"x": -5, "z": "é"}],
    "t": [None, 127, -128],
    "f": [None, 0.5, -3.0, 16777216.0],
    "y": [None, b"a", b"ab\xff\x00"],
    "n": [None, datetime(1970, 1, 1), datetime(2013, 1, 1, 5, 0, 0, 123456)],
    "m": [None, {}, {"k": 1}, {"": 0, "é": -1}],
}  # fmt: skip


@dataclass(frozen=True)
class Format:
    """A format, or a choice between formats.

    Attributes
    ----------
    spec
        ``decode`` as in the pipeline file, for these columns.
    write
        Returns a record of a row.
    columns
        Those that it has.
    bad
        Records that are refused, each with the rule and the column.
    arrow
        Whether the Arrow path decodes the columns of :data:`TYPES`.
    values
        Where it has others than :data:`VALUES`.
    expected
        Returns what a row becomes, if that is not the row.
    """

    spec: Callable[[str], dict[str, Any]]
    write: Callable[[Row], Record]
    columns: Sequence[str]
    bad: Sequence[Bad]
    arrow: bool = True
    values: Mapping[str, list[Any]] | None = None
    expected: Callable[[Row], dict[str, Any]] = dict

    def rows(self, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Return rows that have each value, beside others at random."""
        values = {**VALUES, **(self.values or {})}
        chance = random.Random(8)
        return [{name: chance.choice(values[name]) for name in columns} for _ in range(60)]

    def sound(self, columns: Sequence[str]) -> tuple[dict[str, Any], list[Record], list[dict[str, Any]]]:
        """Return ``decode``, records, and what they become."""
        own = [name for name in columns if name in self.columns]
        rows = self.rows(own)
        ddl = ", ".join(f"{name} {kind}" for name, kind in {**TYPES, **OTHERS}.items() if name in own)
        wanted = [{k: v for k, v in self.expected(row).items() if v is not None} for row in rows]
        return self.spec(ddl), [self.write(row) for row in rows], wanted


def text_of(value: Any) -> str:
    """Return a value as text formats have it."""
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if isinstance(value, date) else str(value)


# --- JSON ----------------------------------------------------------------------------------------------------------


def json_of(row: Row) -> Record:
    def known(value: Any) -> Any:
        return base64.b64encode(value).decode() if isinstance(value, bytes) else text_of(value)

    return Record(json.dumps(dict(row), ensure_ascii=False, default=known).encode())


JSON: list[Bad] = [
    (None, "null_value"), (b"", "json"), (b'{"l": 1', "json"), (b'{"l": 1}{"l": 2}', "json"),
    (b'{"l": 1, "s": "\xff"}', "utf8"), (b'{"l": 1, "d": NaN}', "json"), (b'\xef\xbb\xbf{"l": 1}', "json"),
    (b'{"l": 1, "i": "1"}', "type i"), (b'{"l": 1, "i": 2147483648}', "type i"), (b'{"l": 1, "d": 1e400}', "type d"),
    (b'{"l": 1, "d": 9007199254740993}', "digits d"), (b'{"l": 1, "ts": "05:00"}', "time ts"),
    (b'{"l": 1, "z": ' + b"[" * 5000 + b"]" * 5000 + b"}", "json"), (b'{"l": 1, "s": "\\ud800"}', "surrogate"),
    (b'{"l": 1, "o": {"x": "1"}}', "type o"), (b'{"l": 1, "a": [1, "x"]}', "type a"),
    (b'{"l": 1, "o": {}}', "not_null o"), (b'{"i": 1}', "not_null l"),
]  # fmt: skip

# --- CSV -----------------------------------------------------------------------------------------------------------

CSV_COLUMNS = ("i", "l", "s", "d", "b", "c", "dt", "ts", "t", "f", "n")


def csv_of(row: Row) -> Record:
    def field(value: Any) -> str:
        if isinstance(value, str):
            return '"' + value.replace('"', '""') + '"'
        return "" if value is None else text_of(value)

    return Record(",".join(map(field, row.values())).encode())


def line(**fields: str) -> bytes:
    """Return a record of the columns that both paths have, with other values in some."""
    usual = {"i": "1", "l": "2", "s": "x", "d": "0.5", "b": "true", "c": "1.5", "dt": "2020-01-01", "ts": "2020-01-01"}
    return ",".join((usual | fields).values()).encode()


CSV: list[Bad] = [
    (None, "null_value"), (b"", "empty"), (b"1,2", "fields"), (line() + b",1", "fields"),
    (line(ts='"2020-01-01'), "csv"), (line() + b"\n" + line(), "csv"), (line(s="?").replace(b"?", b"\xff"), "utf8"),
    (line(d="NaN"), "type d"), (line(i="x"), "type i"), (line(i="2147483648"), "type i"), (line(b="1"), "type b"),
    (line(i="\ufeff1"), "type i"), (line(d="1e400"), "type d"), (line(d="9007199254740993"), "digits d"),
    (line(c="0.0001"), "digits c"), (line(ts="05:00"), "time ts"), (line(l=""), "not_null l"),
]  # fmt: skip

# --- XML -----------------------------------------------------------------------------------------------------------

XML_COLUMNS = ("i", "l", "s", "d", "b", "c", "dt", "ts", "a", "o", "t", "f", "n")


def xml_of(row: Row) -> Record:
    def element(name: str, value: Any) -> str:
        if value is None:
            return ""
        if isinstance(value, list):
            return "".join(element(name, item) for item in value)
        parts = value.items() if isinstance(value, dict) else ()
        inner = "".join(element(*part) for part in parts) if parts else escape(text_of(value))
        return f"<{name}>{inner}</{name}>"

    return Record(f"<r>{''.join(element(*field) for field in row.items())}</r>".encode())


def xml(inner: str) -> bytes:
    return f"<r><l>1</l>{inner}</r>".encode()


XML: list[Bad] = [
    (None, "null_value"), (b"", "xml"), (b"<r><l>1</l>", "xml"), (xml("") * 2, "xml"), (b"<q><l>1</l></q>", "root"),
    (xml("<s>?</s>").replace(b"?", b"\xff"), "utf8"), (xml("<d>NaN</d>"), "type d"), (xml("<i>x</i>"), "type i"),
    (xml("<i>2147483648</i>"), "type i"), (xml("<d>9007199254740993</d>"), "digits d"), (xml("x"), "type"),
    (xml("<ts>05:00</ts>"), "time ts"), (b"<r/>", "not_null l"), (xml("<i>1</i><i>2</i>"), "duplicate i"),
    (xml("<z>" * 100_000 + "</z>" * 100_000), "xml"), (xml("<o>1</o>"), "not_null o"), (xml("<s><b/></s>"), "type s"),
    (b"<!DOCTYPE r [<!ENTITY e 'x'>]>" + xml("<s>&e;</s>"), "xml"),
]  # fmt: skip

# --- Avro ----------------------------------------------------------------------------------------------------------

AVRO_SCHEMA = record(
    i=["null", "int"], l="long", s=["null", "string"], d=["null", "double"], b=["null", "boolean"],
    c=["null", logical("bytes", "decimal", precision=12, scale=3)], dt=["null", logical("int", "date")],
    ts=["null", logical("long", "timestamp-micros")], a=["null", {"type": "array", "items": ["null", "long"]}],
    o=["null", nested(x="int", z=["null", "string"])],
    t=["null", "int"], f=["null", "float"], y=["null", "bytes"], n=["null", logical("long", "local-timestamp-micros")],
    m=["null", {"type": "map", "values": "int"}],
)  # fmt: skip
NOTHING = {field["name"]: None for field in AVRO_SCHEMA["fields"]} | {"l": 1}
STRICT, FAR = record(l="long", s="string"), record(l="long", ts=logical("long", "timestamp-millis"))
HEAD = struct.Struct(">bI")


def avro_of(row: Row) -> Record:
    known = {**row, "ts": row.get("ts") and row["ts"].replace(tzinfo=UTC)}
    return Record(written(1, AVRO_SCHEMA, {**NOTHING, **known}))


WHOLE = written(2, STRICT, {"l": 1, "s": "abc"})
AVRO: list[Bad] = [
    (None, "null_value"), (b"", "wire_format"), (b'{"l": 1}', "wire_format"), (WHOLE[:-1], "avro"), (WHOLE * 2, "avro"),
    (WHOLE.replace(b"abc", b"a\xffc"), "utf8"), (HEAD.pack(0, 99), "schema_id"), (HEAD.pack(0, 2**31), "schema_id"),
    (written(3, record(l="long", i="string"), {"l": 1, "i": "1"}), "type i"),
    (written(4, record(l="long", i="long"), {"l": 1, "i": 2**31}), "type i"),
    (written(5, record(l="long", d="long"), {"l": 1, "d": 2**53 + 1}), "digits d"),
    (written(6, FAR, {"l": 1, "ts": 2**62}), "time ts"), (written(7, record(i="int"), {"i": 1}), "not_null l"),
    (written(8, record(l="long", o=nested(z="string")), {"l": 1, "o": {"z": "a"}}), "not_null o.x"),
    (HEAD.pack(0, 9) + b"\2" * 100_000, "avro_schema"), (HEAD.pack(0, 10) + b"\2", "avro_schema"),
]  # fmt: skip

# --- Protobuf ------------------------------------------------------------------------------------------------------

PROTOBUF_COLUMNS = ("i", "l", "s", "d", "b", "ts", "a", "o", "t", "f", "y", "m")
PROTOBUF_FILE = file(
    message(
        "M", ("i", "optional int32"), ("l", "sint64"), ("s", "optional string"), ("d", "optional double"),
        ("b", "optional bool"), ("ts", STAMP), ("a", "repeated sint64"), ("o", ".p.In"), ("t", "optional int32"),
        ("f", "optional float"), ("y", "optional bytes"), ("m", "map int32"),
    ),
    message("In", ("x", "int32"), ("z", "optional string")),
    imports=IMPORTS,
)  # fmt: skip
MESSAGE = classes(PROTOBUF_FILE)["p.M"]
OTHER_FILE = file(message("M", ("l", "int64"), ("i", "int64"), ("d", "int64"), ("ts", STAMP)), imports=IMPORTS)
THIRD_FILE = file(message("M", ("l", "int64"), ("s", "int32")))
OTHER, THIRD = (classes(each)["p.M"] for each in (OTHER_FILE, THIRD_FILE))


def protobuf_of(row: Row) -> Record:
    given = {k: v for k, v in row.items() if v is not None}
    if "ts" in given:
        seconds, micros = divmod((given["ts"] - datetime(1970, 1, 1)) // (datetime.resolution), 10**6)
        given["ts"] = {"seconds": seconds, "nanos": micros * 1000}
    if "o" in given:
        given["o"] = {k: v for k, v in given["o"].items() if v is not None}
    return Record(framed(21, MESSAGE(**given).SerializeToString()))


def in_protobuf(row: Row) -> dict[str, Any]:
    """Repeated fields are empty where a record leaves them out."""
    empty = {name: kind for name, kind in (("a", []), ("m", {})) if name in row and row[name] is None}
    return {**row, **empty}


def other(**fields: Any) -> bytes:
    return framed(22, OTHER(**fields).SerializeToString())


ABC = framed(21, MESSAGE(l=1, s="abc").SerializeToString())
PROTOBUF: list[Bad] = [
    (None, "null_value"), (b"", "wire_format"), (b'{"l": 1}', "wire_format"), (ABC[:-1], "protobuf"),
    (ABC.replace(b"abc", b"a\xffc"), "protobuf"), (framed(21, b"", b"\x02\x08"), "protobuf"),
    (HEAD.pack(0, 99) + b"\0", "schema_id"), (HEAD.pack(0, 10) + b"\0", "protobuf_schema"),
    (other(l=1, i=2**31), "type i"), (other(l=1, d=2**53 + 1), "digits d"),
    (framed(23, THIRD(l=1, s=1).SerializeToString()), "type s"), (other(l=1, ts={"seconds": 2**60}), "time ts"),
]  # fmt: skip

# --- Others --------------------------------------------------------------------------------------------------------

PAIRS: list[Bad] = [
    (None, "null_value"), (b"a=1", "pairs b"), (b"", "pairs a"),
]  # fmt: skip


def chosen(kind: str) -> tuple[Callable[[str], dict[str, Any]], Callable[[Row], Record], list[Bad]]:
    """Return ``decode`` with a format for each record, a writer that takes one after the other, and what breaks it."""
    turns = itertools.cycle([("j", json_of), ("c", csv_of)])

    def placed(made: Record, which: str) -> Record:
        return made._replace(topic=which) if kind == "by_topic" else made._replace(headers=[("v", which.encode())])

    def spec(ddl: str) -> dict[str, Any]:
        formats = {"j": {"json": {"schema": ddl}}, "c": {"csv": {"schema": ddl}}}
        return {kind: {"formats": formats} | ({"name": "v"} if kind == "by_header" else {})}

    def write(row: Row) -> Record:
        which, writer = next(turns)
        return placed(writer(row), which)

    bad = [
        (placed(Record(value), which), why)  # type: ignore[arg-type]
        for which, table in (("j", JSON), ("c", CSV))
        for value, why in table
        if not why.endswith((" a", " o"))
    ]
    nothing = "format _topic" if kind == "by_topic" else "format v"
    return spec, write, [*bad, (Record(b"{}", "x", [("v", b"x")]), nothing), (Record(b"{}"), nothing)]


def _chosen(kind: str) -> Format:
    spec, write, bad = chosen(kind)
    return Format(spec, write, ("i", "l", "s", "d", "b", "c", "dt", "ts"), bad, arrow=False)


TEXTS = {"value": ["", "x", "é😀", "a\nb", "\0"]}
FORMATS: dict[str, Format] = {
    "json": Format(lambda ddl: {"json": {"schema": ddl}}, json_of, (*TYPES, *OTHERS), JSON),
    "csv": Format(lambda ddl: {"csv": {"schema": ddl}}, csv_of, CSV_COLUMNS, CSV),
    "xml": Format(
        lambda ddl: {"xml": {"schema": ddl, "root": "r"}}, xml_of, XML_COLUMNS, XML, arrow=False,
        values={"a": [None, [1], [2**62, -1]]},
    ),
    "avro": Format(
        lambda ddl: {"avro": {"schema": ddl}}, avro_of, (*TYPES, *OTHERS), AVRO,
        values={"d": [*VALUES["d"], float("nan"), float("inf")]},
        expected=lambda row: {**row, **({"d": "NaN"} if row.get("d") != row.get("d") else {})},
    ),
    "protobuf": Format(
        lambda ddl: {"protobuf": {"schema": ddl}}, protobuf_of, PROTOBUF_COLUMNS, PROTOBUF,
        values={"a": [None, [1], [2**62, -1]], "m": [None, {"k": 1}, {"": 0}]}, expected=in_protobuf,
    ),
    "text": Format(
        lambda _: {"text": {}}, lambda row: Record(row["value"].encode()), ("value",),
        [(None, "null_value"), (b"\xff", "utf8")], values=TEXTS,
    ),
    "bytes": Format(
        lambda _: {"bytes": {}}, lambda row: Record(row["value"]), ("value",), [],
        values={"value": [None, b"", b"x", b"\xff\x00", b"{"]}, expected=lambda row: {"key": b"k", **row},
    ),
    "by_topic": _chosen("by_topic"),
    "by_header": _chosen("by_header"),
    "pairs": Format(
        lambda _: {"pairs": {"fields": ["a", "b"]}}, lambda row: Record(f"a={row['a']};b={row['b']}".encode()),
        ("a", "b"), PAIRS, arrow=False, values={"a": ["", "x", "é"], "b": ["", "1", "a b"]},
    ),
}  # fmt: skip
"""By the key in the pipeline file."""


def register(registry: StandIn) -> None:
    """Give the registry the schemas of all records here."""
    looped = {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}
    others = [record(l="long", **more) for more in ({"i": "string"}, {"i": "long"}, {"d": "long"})]
    own = [AVRO_SCHEMA, STRICT, *others, FAR, record(i="int"), record(l="long", o=nested(z="string")), looped]
    for number, schema in enumerate(own, 1):
        registry.register(number, schema)
    registry.schemas[10] = {"schema": "{}", "schemaType": "JSON"}
    for number, made in ((21, PROTOBUF_FILE), (22, OTHER_FILE), (23, THIRD_FILE)):
        registry.register_protobuf(number, made.SerializeToString())
