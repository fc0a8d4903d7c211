"""The documented contract of decoding JSON, value by value; and against Spark's and Python's own readers."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tests.spark.decoders.conftest import FIVE_MB, PAGE, check, fields_of, outcomes, records, table

import sluice.decoders
import sluice_spark.decoders as decoders
from sluice.pipeline.sections import Decode
from sluice_spark.decoders.base import COLUMN, DATA, RULE, decode

pytestmark = pytest.mark.spark

# value → the fields that are not null, or the rule that it breaks
JSON: list[tuple[bytes | None, dict[str, Any] | str]] = [
    (
        b'{"i": 1, "s": "x", "d": 1.5, "t": "2013-01-01T05:00:00Z", "b": true, "o": {"x": 1}, "a": [1, 2], '
        b'"n": 12.34, "y": "2013-01-01", "m": {"k": 1}, "l": 5}',
        {"i": 1, "s": "x", "d": 1.5, "t": datetime(2013, 1, 1, 5), "b": True, "o": {"x": 1}, "a": [1, 2],
         "n": Decimal("12.34"), "y": date(2013, 1, 1), "m": {"k": 1}, "l": 5},
    ),
    # one object, and what is around it
    (None, "null_value"), (b"", "json"), (b" ", "json"), (b"null", "json"), (b"1", "json"), (b'"x"', "json"),
    (b"[]", "json"), (b'[{"i": 1}]', "json"), (b'[{"i": 1}, {"i": 2}]', "json"), (b"nonsense", "json"),
    (b"\x00", "json"), (b"{", "json"), (b'{"i"', "json"), (b'{"i": 1', "json"), (b'{"i": 1,}', "json"),
    (b'{"i" 1}', "json"), (b"{i: 1}", "json"), (b'{"i": 1 /* c */}', "json"), (b'// c\n{"i": 1}', "json"),
    (b' \n\t{"i": 1} ', {"i": 1}), (b'{"i": 1} trailing', "json"), (b'{"i": 1}{"i": 2}', "json"),
    (b'{"i": 1}}', "json"), (b"{'i': 1, 's': 'x'}", "json"),
    # encodings
    (b'\xef\xbb\xbf{"i": 1}', "json"), ('{"i": 1}'.encode("utf-16"), "utf8"), ('{"i": 1}'.encode("utf-16-le"), "json"),
    (b'{"s": "\xff"}', "utf8"), (b'{"s": "\xed\xa0\x80"}', "utf8"), (b'{"s": "\xc0\x80"}', "utf8"),
    (b'{"i": 1} \xff', "utf8"),
    # fields: missing, null, unknown, doubled, names
    (b"{}", {}), (b'{"i": null}', {}), (b'{"z": 1, "i": 2}', {"i": 2}), (b'{"I": 1}', {}), (b'{"": 1}', {}),
    (b'{"i": 1, "i": 2}', {"i": 2}), (b'{"i": 1, "i": "x"}', "json"), (b'{"i": "x", "i": 1}', "json"),
    (b'{"i": 1, "z": tru}', "json"), (b'{"z": 1e999999999, "i": 1}', {"i": 1}),
    (b'{"__sluice_corrupt": "x", "i": 1}', {"i": 1}),
    # integers
    (b'{"i": "1"}', "type"), (b'{"i": 1.0}', "type"), (b'{"i": 1.5}', "type"), (b'{"i": 1e2}', "type"),
    (b'{"i": 2147483647}', {"i": 2147483647}), (b'{"i": 2147483648}', "type"), (b'{"i": -2147483649}', "type"),
    (b'{"l": 9223372036854775807}', {"l": 9223372036854775807}), (b'{"l": 9223372036854775808}', "type"),
    (b'{"l": ' + b"9" * 2000 + b"}", "json"),
    (b'{"i": true}', "type"), (b'{"i": [1]}', "type"), (b'{"i": {}}', "type"), (b'{"i": ""}', "type"),
    (b'{"i": 01}', "json"), (b'{"i": +1}', "json"), (b'{"i": 0x10}', "json"), (b'{"i": NaN}', "json"),
    (b'{"i": -0}', {"i": 0}),
    # text
    (b'{"s": 1}', {"s": "1"}), (b'{"s": 1.50}', "type"), (b'{"s": true}', {"s": "true"}), (b'{"s": null}', {}),
    (b'{"s": {"x": [1, "y"]}}', "type"), (b'{"s": ""}', {"s": ""}), (b'{"s": x}', "json"),
    (b'{"s": "\\u00e4\\n"}', {"s": "ä\n"}), (b'{"s": "\\ud83d\\ude00"}', {"s": "😀"}),
    (b'{"s": "\\ud800"}', "surrogate"),
    ('{"s": "😀ä"}'.encode(), {"s": "😀ä"}), (b'{"s": "a\nb"}', "json"), (b'{"s": "a\x00b"}', "json"),
    (b'{"s": "\\u0000"}', {"s": "\x00"}), (b'{"s": "\\x"}', "json"),
    (f'{{"s": "{FIVE_MB}"}}'.encode(), {"s": FIVE_MB}),
    # floats
    (b'{"d": 1}', {"d": 1.0}), (b'{"d": 1e400}', "type"), (b'{"d": NaN}', "json"),
    (b'{"d": "NaN"}', "type"), (b'{"d": Infinity}', "json"), (b'{"d": "-Infinity"}', "type"),
    (b'{"d": "1.5"}', "type"), (b'{"d": .5}', "json"), (b'{"d": 5.}', "json"), (b'{"d": true}', "type"),
    # booleans
    (b'{"b": false}', {"b": False}), (b'{"b": "true"}', "type"), (b'{"b": 1}', "type"), (b'{"b": True}', "json"),
    # times
    (b'{"t": "2013-01-01"}', {"t": datetime(2013, 1, 1)}), (b'{"t": 1356998400}', "time"),
    (b'{"t": "2013-01-01 05:00:00"}', {"t": datetime(2013, 1, 1, 5)}),
    (b'{"t": "2013-01-01T05:00:00+02:00"}', {"t": datetime(2013, 1, 1, 3)}),
    (b'{"t": "2013-01-01T05:00:00.123456789Z"}', {"t": datetime(2013, 1, 1, 5, 0, 0, 123456)}),
    (b'{"t": 1356998400.5}', "time"), (b'{"t": "1356998400"}', "time"), (b'{"t": "yesterday"}', "time"),
    (b'{"t": "2013-02-30T00:00:00Z"}', "time"), (b'{"t": ""}', "time"), (b'{"t": "2013-01-01T25:00:00"}', "time"),
    (b'{"y": "2013-02-30"}', "time"), (b'{"y": "01/02/2013"}', "time"), (b'{"y": 1}', "time"),
    # decimals
    (b'{"n": 999.99}', {"n": Decimal("999.99")}), (b'{"n": 123.456}', "digits"),
    (b'{"n": 1234.5}', "type"), (b'{"n": 999.999}', "digits"), (b'{"n": 1e2}', {"n": Decimal("100.00")}),
    (b'{"n": "1.5"}', {"n": Decimal("1.50")}), (b'{"n": 1e999999999}', "type"),
    # nested: one bad field refuses the record
    (b'{"o": {"x": "1"}, "i": 1}', "type"), (b'{"o": {}}', {"o": {"x": None}}), (b'{"o": []}', "type"),
    (b'{"o": {"y": 2}}', {"o": {"x": None}}), (b'{"o": [{"x": 1}]}', "type"), (b'{"o": "{}"}', "type"),
    (b'{"a": []}', {"a": []}), (b'{"a": [1, null]}', {"a": [1, None]}), (b'{"a": [1, "x"]}', "type"),
    (b'{"a": 1}', "type"), (b'{"a": [1,]}', "json"), (b'{"m": {"k": "v"}}', "type"),
    (b'{"m": {"k": null}}', {"m": {"k": None}}), (b'{"m": []}', "type"), (b'{"m": {"k": 1, "k": 2}}', "duplicate"),
    (b'{"z": ' + b"[" * 900 + b"]" * 900 + b', "i": 1}', {"i": 1}),
    (b'{"z": ' + b"[" * 5000 + b"]" * 5000 + b"}", "json"),
]  # fmt: skip

DDL = (
    "i INT, s STRING, d DOUBLE, t TIMESTAMP, b BOOLEAN, o STRUCT<x: INT>, a ARRAY<INT>, n DECIMAL(5,2), y DATE, "
    "m MAP<STRING, INT>, l BIGINT"
)


def test_a_part_of_the_wrong_type_names_its_column(spark: SparkSession) -> None:
    """Spark leaves the parts that fit, so the column is not null; the record was refused, and no column named."""
    values = [b'{"o": {"x": "1"}}', b'{"i": 1, "a": [1, "x"]}', b'{"m": {"k": "v"}}', b'{"o": [], "a": []}',
              b'{"o": {"x": 1}, "a": [1], "i": "x"}']  # fmt: skip
    found = decode(records(spark, values), Decode(json={"schema": DDL})).select(RULE, COLUMN).collect()
    assert [tuple(row) for row in found] == [("type", name) for name in ("o", "a", "m", "o", "i")]


def test_the_json_contract_value_by_value(spark: SparkSession) -> None:
    found = outcomes(decode(records(spark, [v for v, _ in JSON]), Decode(json={"schema": DDL})))
    wrong = [
        (str(value)[:100], str(expected)[:200], str(outcome)[:200])
        for (value, expected), outcome in zip(JSON, found, strict=True)
        if outcome != expected
    ]
    assert wrong == []
    assert len(found) == len(JSON)


def test_what_decodes_is_what_from_json_reads(spark: SparkSession) -> None:
    """Whatever code decodes, now or later: where it takes a record, it agrees with Spark's own."""
    values = [v for v, expected in JSON if isinstance(expected, dict)]
    found = outcomes(decode(records(spark, values), Decode(json={"schema": DDL})))
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "corrupt"}
    parsed = F.from_json(F.col("value").cast("string"), f"{DDL}, corrupt STRING", options)
    rows = records(spark, values).select("offset", parsed).collect()
    assert found == [
        {k: v for k, v in row.asDict(True).items() if v is not None} for _, row in sorted(rows, key=lambda r: r[0])
    ]


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_says_what_a_json_record_decodes_to(spark: SparkSession) -> None:
    rows = table("JSON: the record")
    spec = Decode(json={"schema": "i INT, s STRING, m MAP<STRING, INT>, o STRUCT<x: INT>"})
    assert check(decode(records(spark, [r[0].encode() for r in rows]), spec), fields_of, rows) == []


ROWS = table("JSON: values")


@pytest.mark.parametrize("kind", list(dict.fromkeys(row[0] for row in ROWS)))
def test_the_page_says_what_a_json_value_decodes_to(spark: SparkSession, kind: str) -> None:
    rows = [row for row in ROWS if row[0] == kind]
    values: list[bytes | None] = [b'{"x": %s}' % row[1].encode() for row in rows]
    frame = decode(records(spark, values), Decode(json={"schema": f"x {kind}"}))
    value = F.col(DATA).getField("x")
    nested = kind.startswith(("ARRAY", "STRUCT", "MAP"))
    shown = F.struct((F.to_json(value) if nested else value.cast("string")).alias("x"))
    assert check(frame.withColumn(DATA, shown), lambda row: str(row[0]), rows) == []
    refused = [r[COLUMN] for r in frame.where(F.col(RULE).isNotNull()).select(COLUMN).collect()]
    assert set(refused) <= {"x"}


def test_the_page_names_every_rule(spark: SparkSession) -> None:
    rules = set(re.findall(r"^\| `([a-z0-9_]+)` \|", PAGE.split("## JSON")[0], re.MULTILINE))
    folders = [Path(str(package.__file__)).parent for package in (decoders, sluice.decoders)]
    source = "".join(file.read_text() for folder in folders for file in folder.glob("*.py"))
    assert rules == set(re.findall(r'"([a-z0-9_]+)"', source)) & rules
    assert rules >= {expected for _, expected in JSON if isinstance(expected, str)}


# --- against Python's own readers -------------------------------------------------------------------------------------


NASTY = [
    "1", "-0", "0", "127", "128", "-129", "200", "2147483648", "9007199254740993", "9223372036854775808", "1.0", "1.50",
    "12.345", "0.1", "1e2", "1E-2", "1e400", "123456789012345678901234567890", "99999999999999999999.5", "01", "+1",
    "null", "true", "false", "NaN", "-Infinity", "nul", '"NaN"', '"1"', '"1.5"', '"1,234"', '"1,2,3"', '"1’2"', '"x"',
    '""', '"?"', '"a\\"b"', '"\\u00e4"', '"\\ud83d\\ude00"', '"\\ud83d"', '"\\\\ud83d?"', '"}"',
    "{}", '"{\\"x\\":1.5}"',
    '{"x": 1.50, "y": 2}', '{"x": "1.50"}', '{"y": 1e400}', "[]", "[1, 2]", "[1.5]", '["x", 1]', '["1.50"]',
    '{"k": 1}', '{"k": 1, "k": 2}', '{"k": "1"}', '{"k": null}', "[null]", "'x'", "{",
]  # fmt: skip

FIELDS = "i INT, z TINYINT, l BIGINT, s STRING, d DOUBLE, n DECIMAL(5,2), b BOOLEAN, w DECIMAL(38,3)"

PARTS = "a ARRAY<INT>, t ARRAY<STRING>, m MAP<STRING, INT>, o STRUCT<x: STRING, y: DOUBLE>"

FINE = {"i": "1", "z": "-128", "l": "9223372036854775807", "s": '"?1.5"', "d": "0.1", "n": "-12.30", "b": "true",
        "w": '"1.5"', "a": "[1, null]", "t": '["1.5"]', "m": '{"k": 1}', "o": '{"x": "{", "y": 1e300}'}  # fmt: skip

BOUNDS = {"i": 31, "z": 7, "l": 63, "a": 31, "m": 31}


def texts(rng: random.Random, columns: str, count: int) -> Iterator[str]:
    names = re.findall(r"(?:^|, )([a-z]) ", columns)
    yield "{" + ", ".join(f'"{n}": {FINE[n]}' for n in names) + "}"
    for _ in range(count):
        chosen = [rng.choice([*names, "z", "unknown", "I"]) for _ in range(rng.choice([0, 1, 1, 1, 2, 3, 6]))]
        pairs = [f'"{n}":{rng.choice(["", " "])}{rng.choice([*NASTY, FINE.get(n, "1")])}' for n in chosen]
        text = (
            rng.choice(["", " ", "\n"])
            + "{"
            + ", ".join(pairs)
            + "}"
            + rng.choice(["", "", "", " ", " x", "}", "{}", "]"])
        )
        if rng.random() < 0.2:
            at = rng.randrange(len(text))
            text = text[:at] + rng.choice(['"', "{", "}", "[", "]", ",", ":", "\\", "1", "", "."]) + text[at + 1 :]
        yield text


class Impossible(Exception):
    """Not what a record may hold."""


def read_as_python_does(text: str) -> dict[str, Any]:
    def constant(name: str) -> Any:
        raise Impossible(name)

    try:
        value = json.loads(text, parse_float=Decimal, parse_constant=constant)
    except ValueError as error:
        raise Impossible from error
    if not isinstance(value, dict):
        raise Impossible
    return value


def as_declared(name: str, value: Any) -> Any:
    """Return what a value is in the column's type, when that is exactly what the text says."""
    if value is None:
        return None
    if name in ("i", "z", "l"):
        if type(value) is not int or not -(1 << BOUNDS[name]) <= value < 1 << BOUNDS[name]:
            raise Impossible
        return value
    if name == "s":
        if isinstance(value, (Decimal, dict, list)):
            raise Impossible
        text = value if isinstance(value, str) else json.dumps(value)
        text.encode()  # half a pair
        return text
    if name == "d":
        if type(value) not in (int, Decimal) or math.isinf(float(value)):
            raise Impossible
        return float(value)
    if name in ("n", "w"):
        if type(value) is bool or not isinstance(value, (int, Decimal, str)):
            raise Impossible
        try:
            return Decimal(value)
        except ArithmeticError as error:
            raise Impossible from error
    if name == "b":
        if type(value) is not bool:
            raise Impossible
        return value
    if name in ("a", "t"):
        if not isinstance(value, list):
            raise Impossible
        return [as_declared({"a": "i", "t": "s"}[name], v) for v in value]
    if not isinstance(value, dict):
        raise Impossible
    if name == "m":
        return {k: as_declared("i", v) for k, v in value.items()}
    return {"x": as_declared("s", value.get("x")), "y": as_declared("d", value.get("y"))}


@pytest.mark.parametrize("columns", [FIELDS, PARTS, f"{FIELDS}, {PARTS}"], ids=["flat", "nested", "all"])
def test_a_json_record_is_what_python_reads_or_refused(spark: SparkSession, columns: str) -> None:
    written = list(texts(random.Random(14), columns, 6000))
    values: list[bytes | None] = [text.encode() for text in written]
    found = outcomes(decode(records(spark, values), Decode(json={"schema": columns})))
    names = re.findall(r"(?:^|, )([a-z]) ", columns)
    wrong, taken = [], 0
    for text, outcome in zip(written, found, strict=True):
        if isinstance(outcome, str):
            continue
        taken += 1
        try:
            read = read_as_python_does(text)
            expected = {n: as_declared(n, read.get(n)) for n in names}
        except (Impossible, UnicodeEncodeError):
            wrong.append((text, outcome))
            continue
        if outcome != {n: v for n, v in expected.items() if v is not None}:
            wrong.append((text, outcome))
    assert wrong == []
    assert isinstance(found[0], dict)
    assert taken > 400


def test_an_object_has_as_many_texts_as_it_likes(spark: SparkSession) -> None:
    names = [f"t{n}" for n in range(600)]
    sound, halved = {name: "é" for name in names}, {names[-1]: "\ud800"}
    schema = ", ".join(f"{name} STRING" for name in names)
    values: list[bytes | None] = [json.dumps(sound).encode(), json.dumps(halved).encode()]
    assert outcomes(decode(records(spark, values), Decode(json={"schema": schema}))) == [sound, "surrogate"]
