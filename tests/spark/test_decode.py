"""The documented contract of decoding, value by value; JSON also against Spark's own ``from_json``."""

from __future__ import annotations

import math
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sluice.spec.model import Decode
from sluice_spark.decode import DATA, RULE, decode, source_columns

pytestmark = pytest.mark.spark

DDL = (
    "i INT, s STRING, d DOUBLE, t TIMESTAMP, b BOOLEAN, o STRUCT<x: INT>, a ARRAY<INT>, n DECIMAL(5,2), y DATE, "
    "m MAP<STRING, INT>, l BIGINT"
)
RECORDS = "key BINARY, value BINARY, topic STRING, partition INT, offset LONG, timestamp TIMESTAMP"
NOON = datetime(2020, 1, 1, 12)
FIVE_MB = "x" * 5_000_000
NAN = object()

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
    (b'{"i": 1, "i": 2}', {"i": 2}), (b'{"i": 1, "i": "x"}', "type"), (b'{"i": "x", "i": 1}', "type"),
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


def records(spark: SparkSession, values: list[bytes | None]) -> DataFrame:
    return spark.createDataFrame([(b"k", v, "t", 3, n, NOON) for n, v in enumerate(values)], RECORDS)


def plain(value: Any) -> Any:
    return NAN if isinstance(value, float) and math.isnan(value) else value


def outcomes(frame: DataFrame) -> list[dict[str, Any] | str]:
    rows = frame.select("offset", RULE, DATA).collect()
    return [
        row[1] or {k: plain(v) for k, v in row[2].asDict(True).items() if v is not None}
        for row in sorted(rows, key=lambda r: r[0])
    ]


def test_the_json_contract_value_by_value(spark: SparkSession) -> None:
    found = outcomes(decode(records(spark, [v for v, _ in JSON]), Decode(json={"schema": DDL})))
    wrong = [
        (str(value)[:100], str(expected)[:200], str(outcome)[:200])
        for (value, expected), outcome in zip(JSON, found, strict=True)
        if outcome != expected
    ]
    assert wrong == []
    assert len(found) == len(JSON)


def test_the_json_contract_is_that_of_from_json(spark: SparkSession) -> None:
    """Whatever code decodes, now or later: it agrees with Spark's own on all that is UTF-8."""
    values = [v for v, expected in JSON if expected not in ("utf8", "null_value")]
    found = outcomes(decode(records(spark, values), Decode(json={"schema": DDL})))
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "corrupt"}
    parsed = F.from_json(F.col("value").cast("string"), f"{DDL}, corrupt STRING", options)
    rows = records(spark, values).select("offset", parsed).collect()
    reference: list[dict[str, Any] | str] = []
    for _, row in sorted(rows, key=lambda r: r[0]):
        fields = None if row is None else row.asDict(True)
        bad = fields is None or fields["corrupt"] is not None
        reference.append("json" if bad else {k: plain(v) for k, v in fields.items() if v is not None})
    assert found == reference


def test_what_a_transform_sees(spark: SparkSession) -> None:
    frame = source_columns(decode(records(spark, [b'{"i": 1}']), Decode(json={"schema": "i INT, j STRING"})))
    assert frame.dtypes == [
        ("i", "int"), ("j", "string"), ("_topic", "string"), ("_partition", "int"), ("_offset", "bigint"),
        ("_timestamp", "timestamp"),
    ]  # fmt: skip
    assert [tuple(r) for r in frame.collect()] == [(1, None, "t", 3, 0, NOON)]


def test_csv(spark: SparkSession) -> None:
    cases: list[tuple[bytes | None, dict[str, Any] | str]] = [
        (b"1;x", {"i": 1, "s": "x"}), (b'1;"a;b"', {"i": 1, "s": "a;b"}), (b";", {}), (b"one;x", "csv"),
        (b"1;x;more", "csv"), (b"1", "csv"), (b"2147483648;x", "csv"), (b"1;\xff", "utf8"), (None, "null_value"),
        ("1;ä".encode(), {"i": 1, "s": "ä"}),
    ]  # fmt: skip
    spec = Decode(csv={"schema": "i INT, s STRING", "separator": ";"})
    assert outcomes(decode(records(spark, [v for v, _ in cases]), spec)) == [e for _, e in cases]


def test_text(spark: SparkSession) -> None:
    cases: list[tuple[bytes | None, dict[str, Any] | str]] = [
        (b"x", {"value": "x"}), (b"", {"value": ""}), ("ä\n\0".encode(), {"value": "ä\n\0"}), (b"\xff", "utf8"),
        (None, "null_value"),
    ]  # fmt: skip
    assert outcomes(decode(records(spark, [v for v, _ in cases]), Decode(text={}))) == [e for _, e in cases]


def test_bytes_take_anything_as_it_is(spark: SparkSession) -> None:
    frame = source_columns(decode(records(spark, [b"\xff\x00", None, b""]), Decode(bytes={})))
    assert frame.columns[:2] == ["key", "value"]
    assert [(bytes(r.key), r.value and bytes(r.value)) for r in frame.orderBy("_offset").collect()] == [
        (b"k", b"\xff\x00"), (b"k", None), (b"k", b""),
    ]  # fmt: skip
    assert outcomes(decode(records(spark, [None]), Decode(bytes={}))) == [{"key": bytearray(b"k")}]
