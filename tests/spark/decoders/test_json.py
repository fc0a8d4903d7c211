"""JSON: the documented values, and records at random against Python's own reader, on both paths."""

from __future__ import annotations

import json
import math
import random
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from tests.fixtures.decoding import Record, Refused, decoded, frame_of, pipeline_for
from tests.spark.decoders.conftest import FIVE_MB, XML, table

from sluice.sources.files import parquet
from sluice.sources.files.json_text import UnfitError
from sluice_spark.decoders.base import COLUMN, DATA, RULE, decode

pytestmark = pytest.mark.spark

# value → the fields that are not null, or the rule that it breaks; the rest is in the contract and on the page
JSON: list[tuple[bytes, dict[str, Any] | str]] = [
    (b" ", "json"), (b"null", "json"), (b"1", "json"), (b'"x"', "json"), (b"[]", "json"), (b"\x00", "json"),
    (b'[{"i": 1}, {"i": 2}]', "json"), (b'{"i": 1 /* c */}', "json"), (b'// c\n{"i": 1}', "json"),
    (b' \n\t{"i": 1} ', {"i": 1}), (b'{"i": 1}}', "json"), ('{"i": 1}'.encode("utf-16-le"), "json"),
    (b'{"s": "\xed\xa0\x80"}', "utf8"), (b'{"s": "\xc0\x80"}', "utf8"), (b'{"i": 1} \xff', "utf8"),
    (b'{"": 1}', {}), (b'{"i": 1, "i": "x"}', "json"), (b'{"i": "x", "i": 1}', "json"), (b'{"i": 1, "z": tru}', "json"),
    (b'{"z": 1e999999999, "i": 1}', {"i": 1}), (b'{"__sluice_corrupt": "x", "i": 1}', {"i": 1}),
    (b'{"l": ' + b"9" * 2000 + b"}", "json"), (b'{"i": -0}', {"i": 0}), (b'{"s": "\\u00e4\\n"}', {"s": "ä\n"}),
    (b'{"s": "\\u0000"}', {"s": "\x00"}), (f'{{"s": "{FIVE_MB}"}}'.encode(), {"s": FIVE_MB}),
    (b'{"d": 1}', {"d": 1.0}), (b'{"n": 1e999999999}', "type"), (b'{"n": 999.999}', "digits"),
    (b'{"t": "2013-01-01T25:00:00"}', "time"), (b'{"t": ""}', "time"), (b'{"y": "01/02/2013"}', "time"),
    (b'{"t": "9999-12-31T23:00:00-01:00"}', "time"), (b'{"t": "0001-01-01T00:59:59+01:00"}', "time"),
    (b'{"t": "9999-12-31T22:59:59.999999-01:00"}', {"t": datetime(9999, 12, 31, 23, 59, 59, 999999)}),
    (b'{"o": {}}', {"o": {"x": None}}), (b'{"o": "{}"}', "type"), (b'{"a": [1,]}', "json"), (b'{"m": []}', "type"),
    (b'{"m": {"k": "v"}}', "type"), (b'{"m": {"k": null}}', {"m": {"k": None}}),
    (b'{"z": ' + b"[" * 900 + b"]" * 900 + b', "i": 1}', {"i": 1}),
    (b'{"i": 1, "s": "x", "d": 1.5, "t": "2013-01-01T05:00:00Z", "b": true, "n": 12.34, "m": {"k": 1}}',
     {"i": 1, "s": "x", "d": 1.5, "t": datetime(2013, 1, 1, 5), "b": True, "n": Decimal("12.34"), "m": {"k": 1}}),
]  # fmt: skip
VALUES_DDL = (
    "i INT, s STRING, d DOUBLE, t TIMESTAMP, b BOOLEAN, o STRUCT<x: INT>, a ARRAY<INT>, n DECIMAL(5,2), y DATE, "
    "m MAP<STRING, INT>, l BIGINT"
)


def test_json_values_decode_as_documented_and_as_from_json_reads_them(spark: SparkSession) -> None:
    found = decoded(spark, {"json": {"schema": VALUES_DDL}}, [value for value, _ in JSON]).brief
    wrong = [(str(v)[:99], str(e)[:99], str(f)[:99]) for (v, e), f in zip(JSON, found, strict=True) if f != e]
    assert wrong == []
    good = [(n, value) for n, (value, expected) in enumerate(JSON) if isinstance(expected, dict)]
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "corrupt"}
    parsed = F.from_json(F.col("value").cast("string"), f"{VALUES_DDL}, corrupt STRING", options)
    for number, row in spark.createDataFrame(good, "n INT, value BINARY").select("n", parsed).collect():
        assert {k: v for k, v in row.asDict(True).items() if v is not None} == found[number]


PAGES: dict[str, dict[str, Any]] = {
    "JSON: the record": {"json": {"schema": "i INT, s STRING, m MAP<STRING, INT>, o STRUCT<x: INT>"}},
    "CSV": {"csv": {"schema": "i INT, s STRING, d DOUBLE"}},
    "XML": {"xml": {"schema": XML, "root": "r"}},
}


def shown(found: dict[str, Any] | Refused) -> str:
    """Return what a record decodes to as the page shows it: without nulls."""

    def plain(row: dict[str, Any]) -> dict[str, Any]:
        return {k: plain(v) if isinstance(v, dict) else v for k, v in row.items() if v is not None}

    return f"refused: `{found.rule}" if isinstance(found, Refused) else json.dumps(plain(found), ensure_ascii=False)


@pytest.mark.parametrize("heading", PAGES)
def test_decoder_page_says_what_a_record_decodes_to(spark: SparkSession, heading: str) -> None:
    rows = table(heading)
    found = decoded(spark, PAGES[heading], [row[0].replace("↵", "\n").encode() for row in rows]).found
    assert [(row, now) for row, now in zip(rows, map(shown, found), strict=True) if row[1] != now] == []


def test_json_page_says_what_a_value_decodes_to(spark: SparkSession) -> None:
    rows = table("JSON: values")
    kinds = {kind: f"x{n}" for n, kind in enumerate(dict.fromkeys(row[0] for row in rows))}
    values = [(n, b'{"%s": %s}' % (kinds[row[0]].encode(), row[1].encode())) for n, row in enumerate(rows)]
    own = ("CAST(NULL AS BINARY) AS key", "value", "'t' AS topic", "0 AS partition", "offset", "now() AS timestamp")
    records = spark.createDataFrame(values, "offset LONG, value BINARY").selectExpr(*own)
    ddl = ", ".join(f"{name} {kind}" for kind, name in kinds.items())
    frame = decode(records, pipeline_for({"json": {"schema": ddl}}).decode)

    def text_of(kind: str, name: str) -> Any:
        value = F.col(DATA).getField(name)
        return F.to_json(value) if kind.startswith(("ARRAY", "STRUCT", "MAP")) else value.cast("string")

    texts = F.coalesce(*(text_of(kind, name) for kind, name in kinds.items())).alias("text")
    for (kind, _, wanted, _), row in zip(
        rows, frame.orderBy("offset").select(RULE, COLUMN, texts).collect(), strict=True
    ):
        assert wanted == (f"refused: `{row[RULE]}" if row[RULE] else row["text"])
        assert row[COLUMN] == (kinds[kind] if row[RULE] else None)


DDL = (
    "i INT, l BIGINT, t TINYINT, h SMALLINT, s STRING, b BOOLEAN, d DOUBLE, c DECIMAL(12,2), w DECIMAL(28,10), "
    "ts TIMESTAMP, dt DATE, o STRUCT<x: INT, y: STRING, z: DOUBLE, at: TIMESTAMP>, a ARRAY<STRING>, "
    "aa ARRAY<STRUCT<k: BIGINT, at: DATE NOT NULL>>, n INT NOT NULL, os STRUCT<q: BOOLEAN NOT NULL>"
)
MAPS = (
    "n INT NOT NULL, d MAP<STRING, DOUBLE>, l MAP<STRING, BIGINT>, i MAP<STRING, INT>, s MAP<STRING, STRING>, "
    "b MAP<STRING, BOOLEAN>"
)
INTEGERS = [
    "0", "-0", "1", "-1", "127", "128", "-129", "32767", "32768", "2147483647", "2147483648", "-2147483648",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "12345678901234567890123", "1.0", "1e3",
    "1E0", "01", "+1", "1.", "--1", "0x1",
]  # fmt: skip
NUMBERS = [
    *INTEGERS, "0.1", "-0.0", "0e0", "-0e-5", "1e-400", "1e400", "-1e400", "4.9e-324", "2.2250738585072014e-308",
    "1.7976931348623157e308", "9007199254740991", "9007199254740992", "9007199254740993", "123456789.125",
    "0.30000000000000004", "1e22", "1e23", "NaN", "Infinity", "-Infinity", "Inf", "12.34", "12.3400", "12.345",
    "9999999999.99", "10000000000", "1e2", "1E+2", "12e-1", "1234567890123456789012345678901234567890.5",
    "0." + "1" * 40, "12345678901.5", "123456789012", "123456789012345678", "1234567890123456789.5",
    "9999999999999999999999999999", "99999999999.9", "1e9", "1e40", "-1e30", "1E38", "1" + "0" * 1100,
    "0." + "3" * 1100, ".5", "5.", "1_0",
]  # fmt: skip
TEXTS = [
    '""', '"x"', '"1"', '"true"', '"12.34"', '"+1"', '"1e2"', '".5"', '"5."', '" 5"', '"5 "', '"1,2"', '"1\u20192"',
    '"-.5"', '"NaN"', '"null"', '"\\u0041"', '"\\u0000"', '"\\ud83d\\ude00"', '"\\ud83d"', '"\\ude00"', '"\\\\ud83d"',
    '"?\\ud83d"', '"é😀"', '"a\\/b"', '"a\\"b"', '"a\\nb"', '"a\tb"', '"a\x01b"', '"a\x7fb"', '"a\\xb"', '"{"', '"}"',
    '"{\\"x\\":1}"', '"[1]"', '"Infinity"', "'x'", '"x', '"\\u2028"', '"\u2028"', '"x: NaN"', '"Info"',
    '"__sluice_end"', '"\\u00e9"', '"\\u0031e2"', '"\\u002b1"', '"1\\u002Ee1"', '"\\u0031"',
]  # fmt: skip
TIMES = [
    '"2013-01-01T05:00:00Z"', '"2013-01-01 05:00:00"', '"2013-01-01T05:00:00.1Z"', '"2013-01-01T05:00:00.123456Z"',
    '"2013-01-01T05:00:00.123456789Z"', '"2013-01-01T05:00:00.1234567"', '"2013-01-01 05:00:00+02:00"',
    '"2013-01-01T05:00:00-00:30"', '"2013-01-01T05:00:00+0200"', '"2013-01-01T05:00:00+02"',
    '"2013-01-01T05:00:00+17:59"', '"2013-01-01T05:00:00+18:00"', '"2013-02-30T00:00:00Z"', '"2013-02-29T00:00:00Z"',
    '"2012-02-29T23:59:59.999999Z"', '"2013-12-31T23:59:59Z"', '"2013-01-01T24:00:00Z"', '"2013-01-01T23:59:60Z"',
    '"2013-01-01T05:00Z"', '"2013-01-01T05:00"', '"2013-01-01"', '"2013"', '"2013-13-01T00:00:00Z"',
    '"2013-00-10T00:00:00Z"', '"2013-01-01t05:00:00z"', '"2013-01-01T05:00:00 Z"', '"0000-01-01T00:00:00Z"',
    '"0001-01-01T00:00:00Z"', '"1582-10-10T00:00:00Z"', '"1899-12-31T23:59:59Z"', '"1900-01-01T00:00:00Z"',
    '"1901-01-01T00:00:00+02:00"', '"9999-12-31T23:59:59.999999Z"', '"9999-12-31T23:59:59.999999-17:00"',
    '"10000-01-01T00:00:00Z"', '"2013-01-01T05:00:00.Z"', '"2013-01-01T05:00:00Z\\n"', '"2013-01-01\\n"',
    '"1969-12-31T23:59:59.999999Z"', '"1356998400"', '"2013-01-01T05:00:00 Europe/Berlin"', '" 2013-01-01"',
    '"2013-2-3"', '"2013-02-30"', '"2012-02-29"', '"1752-09-14"',
]  # fmt: skip
OTHERS = [
    "null", "true", "false", "True", "{}", "[]", '{"x":1}', "[1]", '["x",null,1,true]', '["a","b"]', "[[1]]", "nan",
    '{"x":1,"x":2}', '{"y":"\\ud83d"}', '{"x":2,"y":"é","z":1.5,"at":"2013-01-01T05:00:00Z","more":[1,{}]}',
    '{"z":-0.0}', '{"z":9007199254740993}', '{"x":"1"}', '{"at":"2013-02-30T00:00:00Z"}',
    '[{"k":1,"at":"2013-01-01"},null,{"k":null}]', '[{"k":1,"at":"2013-01-01"}]', '[{"k":1}]',
    '[{"at":"2013-02-30"}]', '{"q":true}', '{"q":null}', "", "undefined", "[" * 40 + "]" * 40, '{"\\u0078":5}',
    "/*c*/1", "1//c",
]  # fmt: skip
ANY = [*NUMBERS, *TEXTS, *TIMES, *OTHERS]
FITTING = {
    "i": INTEGERS, "l": INTEGERS, "t": INTEGERS, "h": INTEGERS, "s": TEXTS, "b": ["true", "false"], "d": NUMBERS,
    "c": NUMBERS, "w": NUMBERS, "ts": TIMES, "dt": TIMES, "o": OTHERS, "a": OTHERS, "aa": OTHERS, "n": INTEGERS,
    "os": OTHERS,
}  # fmt: skip
PLAIN = {
    "i": ["1", "-7"], "l": ["12345678901"], "t": ["5"], "h": ["300"], "s": ['"x"', '"é😀"', '"a\\nb"', '"Info"'],
    "b": ["true", "null"], "d": ["0.1", "1.5", "12"], "c": ["12.34", '"12.30"', "5", "0.10"],
    "w": ["0.5", "123456789.0123456789"], "ts": TIMES[:5], "dt": ['"2013-01-01"', '"2012-02-29"'],
    "o": ['{"x":2,"y":"é","z":1.5,"at":"2013-01-01T05:00:00Z","more":[1,{}]}', "{}", "null"],
    "a": ['["a",null,"b"]', "[]"], "aa": ['[{"k":1,"at":"2013-01-01"},null]', "null"], "n": ["1"],
    "os": ['{"q":true}', "null"],
}  # fmt: skip
ODD = [
    b'{"n":1} junk', b'{"n":1}{"n":2}', b'{"n":1}\n{"n":2}', b'[{"n":1}]', b' {"n":1}', b'{"n":1} ', b'{"n":1}\r',
    b'{"n":1}\x00', b"", b" ", b"\n", b"{", b"}", b'{"n":1', b'{"n":{"x":1}', b'{"s":"}', b'{","n":1}', b'{"n":1,}',
    b"{'n':1}", b"{n:1}", b"null", b'{"s":"\xff","n":1}', b'{"z":"\xff","n":1}', b'{"s":"\xed\xa0\x80","n":1}',
    b'\xef\xbb\xbf{"n":1}', b'{"n":1,"N":2}', b'{"\\u006e":1}', b'{"n":1,"__sluice_end":0}',
    b'{"n":1,"__sluice_corrupt":"x"}', b'{"n":1,"\\u005f_sluice_corrupt":"x"}', b'{"n":1,"z":NaN}',
    b'{"n":1,"z":[ Infinity]}', b'{"n":1,"z":-Inf}', b'{"n":1,"z":1' + b"0" * 1200 + b"}",
    b'{"n":1,"z":' + b"[" * 1100 + b"]" * 1100 + b"}", b'{"n":1,"z":"' + b"x" * 40_000 + b'"}',
    b'{"n":1,"' + b"k" * 60_000 + b'":1}', b'{"n":1,"z":"\\ud83d"}', b'{"n":1,"z":tru}', b'{"n":1}//c', b'{"n":1}}',
    b'{"n" :\t1\n}', b'{ }', b'{"n":1,"":2}', b'{"n":1,"n":2}', b'{"n":1,"z":1,"z":"2"}', b'{"n":1,"z":01}',
]  # fmt: skip


def made(chance: random.Random) -> bytes | None:
    """Return a record: often a good one, sometimes with one odd value, sometimes odd as a whole."""
    kind = chance.random()
    if kind < 0.02:
        return None
    if kind < 0.1:
        return chance.choice(ODD)
    names = [name for name in PLAIN if chance.random() < 0.8 or name == "n"]
    parts = {name: chance.choice(PLAIN[name]) for name in names}
    if kind < 0.7:
        name = chance.choice(names)
        parts[name] = chance.choice(FITTING[name] if chance.random() < 0.7 else ANY)
    fields = [f'"{name}":{value}' for name, value in parts.items()]
    if chance.random() < 0.1:
        fields.append(f'"extra":{chance.choice(ANY)}')
    if chance.random() < 0.05:
        fields.append(chance.choice(fields))
    chance.shuffle(fields)
    text = ("{" + chance.choice([",", ", ", ",\t"]).join(fields) + "}").encode("utf-8", "surrogatepass")
    if chance.random() < 0.03:
        at = chance.randrange(len(text))
        text = text[:at] + bytes([chance.randrange(256)]) + text[at + chance.randrange(2) :]
    return text


def each_in_each_column() -> list[bytes | None]:
    """Return a record for each odd value in each column."""
    return [
        ("{" + f'"{name}":{value}' + ("}" if name == "n" else ',"n":1}')).encode("utf-8", "surrogatepass")
        for name in FITTING
        for value in dict.fromkeys([*FITTING[name], *ANY])
    ]


def in_maps() -> list[bytes | None]:
    """Return a record for each odd value in a map of each type, and for odd maps."""
    odd = [
        '{"k":1,"k":1}', '{"k" :1,"k":2}', "{ }", '{"a:b":1}', '{"\\u0061":1,"a":2}', '{"":1}', '{"a":{"k":1}}',
        '{"a":1}x', "{",
    ]  # fmt: skip
    every = dict.fromkeys([*NUMBERS, *TEXTS, *OTHERS])
    forms = [form for v in every for form in (f'{{"k":{v}}}', f'{{"a":1,"k":{v},"é":null}}', v)]
    return [
        *(f'{{"n":1,"{name}":{form}}}'.encode("utf-8", "surrogatepass") for name in "dlisb" for form in [*forms, *odd]),
        b'{"n":1,"d":{"k":1},"d":{"k":2}}', b'{"n":1,"d":[1],"d":{"k":2}}', b'{"n":1,"d":null,"s":{"x":"\\"d\\":"}}',
        b'{"n":1,"\\u0064":{"k":1}}',
        b'{"n":1,"d":{"b":1,"a":2},"l":{"x":-5},"i":{},"s":{"y":"z"},"b":{"t":true,"f":false}}',
    ]  # fmt: skip


class Impossible(Exception):
    """Not what a record may hold."""


def stated(kind: T.DataType, value: Any, nullable: bool = True) -> Any:
    """Return what a value is in a column's type, if that is exactly what the text says; of times, anything."""
    if value is None:
        if not nullable:
            raise Impossible
        return None
    bits = {T.ByteType: 7, T.ShortType: 15, T.IntegerType: 31, T.LongType: 63}.get(type(kind))
    sound = {
        T.StringType: not isinstance(value, dict | list), T.BooleanType: type(value) is bool,
        T.DoubleType: type(value) in (int, Decimal), T.DecimalType: type(value) in (int, Decimal, str),
        T.StructType: isinstance(value, dict), T.MapType: isinstance(value, dict), T.ArrayType: isinstance(value, list),
    }  # fmt: skip
    if not (sound.get(type(kind), True) if bits is None else type(value) is int and -(1 << bits) <= value < 1 << bits):
        raise Impossible
    if isinstance(kind, T.StructType):
        return {f.name: stated(f.dataType, value.get(f.name), f.nullable) for f in kind.fields}
    if isinstance(kind, T.MapType):
        return {name: stated(kind.valueType, item) for name, item in value.items()}
    if isinstance(kind, T.ArrayType):
        return [stated(kind.elementType, item) for item in value]
    if isinstance(kind, T.StringType):
        if isinstance(value, Decimal):  # whose text is Spark's
            return mock.ANY
        text = value if isinstance(value, str) else json.dumps(value)
        text.encode()  # half a pair
        return text
    if isinstance(kind, T.DoubleType):
        if math.isinf(float(value)):
            raise Impossible
        return float(value)
    if isinstance(kind, T.DecimalType):
        exact = Decimal(value)
        return exact if exact.adjusted() > -300 else mock.ANY  # less than any double is zero
    return mock.ANY if isinstance(kind, T.TimestampType | T.DateType) else value


def read_by_python(kind: T.StructType, record: bytes | None) -> dict[str, Any]:
    """Return the columns that are not null; raises :class:`Impossible` where no record says that."""

    def constant(name: str) -> Any:
        raise Impossible(name)

    try:
        value = json.loads((record or b"").decode(), parse_float=Decimal, parse_constant=constant)
        return {name: item for name, item in stated(kind, value).items() if item is not None}
    except (ValueError, ArithmeticError, AttributeError) as error:
        raise Impossible from error


@pytest.mark.parametrize(
    ("ddl", "values", "least"), [(DDL, each_in_each_column, 400), (MAPS, in_maps, 200)], ids=["columns", "maps"]
)
def test_json_record_is_what_python_reads_or_is_refused(spark: SparkSession, ddl: str, values: Any, least: int) -> None:
    chance = random.Random(14)
    given = [*values(), *ODD, *(made(chance) for _ in range(3000))]
    found = decoded(spark, {"json": {"schema": ddl}}, given)
    kind, taken = T.StructType.fromDDL(ddl), 0
    for record, outcome in zip(given, found.found, strict=True):
        if isinstance(outcome, Refused):
            continue
        taken += 1
        try:
            expected = read_by_python(kind, record)
        except RecursionError:  # of Python's
            continue
        except Impossible:
            pytest.fail(f"{record!r} became {outcome}")
        assert outcome == expected, record
    assert taken > least
    assert len(found.kept) > least


@pytest.mark.long
def test_json_object_has_as_many_texts_as_it_likes(spark: SparkSession) -> None:
    names = [f"t{n}" for n in range(600)]
    sound, halved = {name: "é" for name in names}, {names[-1]: "\ud800"}
    spec = {"json": {"schema": ", ".join(f"{name} STRING" for name in names)}}
    assert decoded(spark, spec, [json.dumps(each).encode() for each in (sound, halved)]).brief == [sound, "surrogate"]


HOLDS: dict[str, tuple[dict[str, str], dict[str, bool]]] = {
    "variant": (
        {"VARIANT": "%s", "STRUCT<a: VARIANT>": '{"a": %s}', "ARRAY<VARIANT>": "[1, %s]"},
        {"12345678901234567890.1234567890123456789": False, "[0.12345678901234567890123456789012345678901]": False,
         "1e-400": False, '{"n": 123456789012345678901e-3}': False, "1.234567890123456789e5": False, "9" * 39: False,
         "9" * 38: True, "0.12345678901234567890123456789012345678": True, "1.2345678901234567e+19": True,
         "5e-324": True, "0e-400": True, "1e300": True, '{"k1e-999": "\\"1e-999, 0.' + "1" * 50 + '"}': True,
         "1e400": False, '"Infinity Pools"': True, '"Infinity"': True, '{"a": "-Infinity", "b": 1.5e3}': True},
    ),
    "float": (
        {"STRUCT<a: FLOAT>": '{"a": %s}', "ARRAY<FLOAT>": "[1, %s]", "MAP<STRING, ARRAY<FLOAT>>": '{"k": [%s]}'},
        {"16777216": True, "16777217": False, "-16777219": False, "20000000": True, "123456789": False,
         "1.6777217e7": False, "0.1": True, "1e30": True, "9007199254740993": False},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOLDS)
def test_json_type_rounds_no_number_of_more_digits_than_it_holds(spark: SparkSession, kind: str) -> None:
    forms, holds = HOLDS[kind]
    wanted = {number: None if held else "digits" for number, held in holds.items()}
    for schema, form in forms.items():
        records = [Record(f'{{"v": {form % number}, "s": "6ae2fa2e-5938 1e-999"}}'.encode()) for number in wanted]
        spec = pipeline_for({"json": {"schema": f"v {schema}, s STRING"}})
        rules = [row[RULE] for row in decode(frame_of(spark, records), spec.decode).select(RULE).collect()]
        assert dict(zip(wanted, rules, strict=True)) == wanted, schema


def test_json_null_of_a_variant_is_no_value(spark: SparkSession) -> None:
    spec = {"json": {"schema": "v VARIANT NOT NULL, w VARIANT, s STRUCT<a: VARIANT>, l ARRAY<VARIANT>"}}
    texts = [b'{"v": null}', b'{"v": {"a": null}, "w": null, "s": {"a": null}, "l": [null, 1]}']
    frame = decode(frame_of(spark, [Record(text) for text in texts]), pipeline_for(spec).decode)
    data = ("{}.w IS NULL", "{}.s.a IS NULL", "{}.l[0] IS NULL", "to_json({}.v)")
    found = frame.selectExpr(f"`{RULE}`", *(text.format("__sluice_data") for text in data)).collect()
    assert [tuple(row) for row in found][1] == (None, True, True, True, '{"a":null}')
    assert found[0][0] == "not_null"


def test_parquet_file_with_a_variant_is_left(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql("SELECT 1 AS id, parse_json('{\"a\": 1}') AS v").coalesce(1).write.parquet(str(tmp_path / "t"))
    (file,) = (tmp_path / "t").glob("*.parquet")
    with file.open("rb") as opened, pytest.raises(UnfitError, match="'v' is a VARIANT"):
        parquet.count(opened)
    assert "typed_value" not in str(pq.ParquetFile(file).schema), "Delta's protocol does not know it"
