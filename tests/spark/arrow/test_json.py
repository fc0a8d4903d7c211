"""The Arrow path decodes ordinary and hostile records to the rows of the Spark path, or sets them aside."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import types as T
from tests.fixtures.decoding import differences

from sluice_spark.arrow.json import JsonChunks

pytestmark = pytest.mark.spark

DDL = (
    "i INT, l BIGINT, t TINYINT, h SMALLINT, s STRING, b BOOLEAN, d DOUBLE, c DECIMAL(12,2), w DECIMAL(28,10), "
    "ts TIMESTAMP, dt DATE, o STRUCT<x: INT, y: STRING, z: DOUBLE, at: TIMESTAMP>, a ARRAY<STRING>, "
    "aa ARRAY<STRUCT<k: BIGINT, at: DATE NOT NULL>>, n INT NOT NULL, os STRUCT<q: BOOLEAN NOT NULL>"
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


def compared(
    spark: SparkSession, folder: Path, ddl: str, values: list[bytes | None], sizes: Callable[[], int]
) -> tuple[int, list[Any]]:
    chunks = JsonChunks(T.StructType.fromDDL(ddl))
    return differences(spark, folder, {"json": {"schema": ddl}}, chunks, values, sizes)


@settings(
    max_examples=8,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 2**32))
def test_what_arrow_decodes_is_what_spark_decodes(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    values = [made(chance) for _ in range(1000)]
    kept, wrong = compared(spark, tmp_path, DDL, values, lambda: chance.choice([1, 1, 1, 2, 5, 50]))
    assert wrong == []
    assert kept > 200


def test_each_odd_value_in_each_column(spark: SparkSession, tmp_path: Path) -> None:
    values: list[bytes | None] = [
        ("{" + f'"{name}":{value}' + ("}" if name == "n" else ',"n":1}')).encode("utf-8", "surrogatepass")
        for name in FITTING
        for value in dict.fromkeys([*FITTING[name], *ANY])
    ]
    kept, wrong = compared(spark, tmp_path, DDL, [*values, *ODD], lambda: 1)
    assert wrong == []
    assert kept > 200


def test_ordinary_records_are_not_set_aside(spark: SparkSession) -> None:
    values = [f'{{"{name}":{value},"z":{{}}}}'.encode() for name in PLAIN for value in PLAIN[name]]
    schema = T.StructType([T.StructField(f.name, f.dataType) for f in T.StructType.fromDDL(DDL).fields])
    found = JsonChunks(schema).decode(values)
    assert found.kept is None
    assert found.columns.num_rows == len(values)


@pytest.mark.parametrize("other", ["x", "In a Name, __x"])
def test_in_a_long_chunk_each_record_that_may_be_read_otherwise_is_set_aside(spark: SparkSession, other: str) -> None:
    good = [f'{{"n":{n},"z":"{other}"}}'.encode() for n in range(1000)]
    schema = T.StructType.fromDDL("n INT")
    found = JsonChunks(schema).decode(good)
    assert found.kept is None
    assert found.columns.column("n").to_pylist() == list(range(1000))
    odd = [
        [b'{"n":1,"z":NaN}'], [b'{"n":1,"z":-Inf}'], [b'{"n":1,"__sluice_end":0}'], [b'{"n":1}\n{"n":2}'],
        [b'{"n":1}{"n":2}', b""], [b"", b'{"n":1}{"n":2}'], [b'{"n":1} {"n":2}', b" "], [b'{"n":1}\n'],
        [b'{"n":1}{"n":2}', b'{"n":1,"z":', b'{"a":1}}'], [b'{"n":1}{"n":2}', b'{"n":1,"z":{"a":1}', b',"y":1}'],
    ]  # fmt: skip
    for place in (0, 1, 500, 1000, 1001):
        for bad in odd:
            for width in range(2):  # its bytes have even and odd places in the chunk
                values = [b'{"n":1%s}' % (b" " * width), *good]
                values[place:place] = bad
                kept = JsonChunks(schema).decode(values).kept  # a new one has no suspicion yet
                assert kept is not None
                assert kept.tolist() == [n for n in range(len(values)) if not place <= n < place + len(bad)]


def test_a_decoder_that_was_used_travels_to_a_worker(spark: SparkSession) -> None:
    chunks = JsonChunks(T.StructType.fromDDL("n INT, m MAP<STRING, BIGINT>"))
    values = [b'{"n":1,"m":{"k":1}}', b'{"n":"x"}', b'{"n":2}']
    assert chunks.decode(values).kept.tolist() == [0, 2]  # type: ignore[union-attr]
    there = pickle.loads(cloudpickle.dumps(chunks)).decode(values)
    assert there.kept.tolist() == [0, 2]
    assert there.columns.column("m").to_pylist() == [[("k", 1)], None]


MAPS = (
    "n INT NOT NULL, d MAP<STRING, DOUBLE>, l MAP<STRING, BIGINT>, i MAP<STRING, INT>, s MAP<STRING, STRING>, "
    "b MAP<STRING, BOOLEAN>"
)


def test_maps(spark: SparkSession, tmp_path: Path) -> None:
    values: list[bytes | None] = []
    for value in dict.fromkeys([*NUMBERS, *TEXTS, *OTHERS]):
        for name in "dlisb":
            for held in (f'{{"k":{value}}}', f'{{"a":1,"k":{value},"é":null}}', value):
                values.append(f'{{"n":1,"{name}":{held}}}'.encode("utf-8", "surrogatepass"))
    odd = [
        '{"k":1,"k":1}', '{"k" :1,"k":2}', "{ }", '{"a:b":1}', '{"\\u0061":1,"a":2}', '{"":1}', '{"a":{"k":1}}',
        '{"a":1}x', "{",
    ]  # fmt: skip
    values += [f'{{"n":1,"{name}":{held}}}'.encode() for name in "dlisb" for held in odd]
    values += [
        b'{"n":1,"d":{"k":1},"d":{"k":2}}', b'{"n":1,"d":[1],"d":{"k":2}}', b'{"n":1,"d":null,"s":{"x":"\\"d\\":"}}',
        b'{"n":1,"\\u0064":{"k":1}}',
        b'{"n":1,"d":{"b":1,"a":2},"l":{"x":-5},"i":{},"s":{"y":"z"},"b":{"t":true,"f":false}}',
    ]  # fmt: skip
    for size in (1, 7):
        kept, wrong = compared(spark, tmp_path, MAPS, values, lambda size=size: size)
        assert wrong == []
        assert kept > 200


def test_names_that_json_escapes(spark: SparkSession) -> None:
    inner = T.StructType([T.StructField("e\tf", T.IntegerType())])
    chunks = JsonChunks(T.StructType([T.StructField('a"b', T.IntegerType()), T.StructField("c\\d", inner)]))
    values = [b'{"a\\"b":1,"c\\\\d":{"e\\tf":2}}', b'{"a\\"b":"x"}', b"{"]
    found = chunks.decode(values)
    assert found.kept.tolist() == [0]
    assert found.columns.to_pylist() == [{'a"b': 1, "c\\d": {"e\tf": 2}}]
