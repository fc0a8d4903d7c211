"""The Arrow path decodes ordinary and hostile CSV records to the rows of the Spark path, or sets them aside."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import types as T
from tests.fixtures.decoding import differences

from sluice.decoders.config import CsvDecode
from sluice_spark.arrow.csv import CsvChunks

pytestmark = pytest.mark.spark

DDL = (
    "n INT NOT NULL, l BIGINT, t TINYINT, h SMALLINT, s STRING, b BOOLEAN, d DOUBLE, c DECIMAL(12,2), f DECIMAL(2,2), "
    "z DECIMAL(5,0), ts TIMESTAMP, dt DATE, e STRING"
)
PLAIN = {
    "n": ["1", "-7"], "l": ["12345678901", ""], "t": ["5", "-128"], "h": ["300"], "s": ["x", "é😀", "a b", "", "null"],
    "b": ["true", "false"], "d": ["0.1", "1.5", "12", "1e3"], "c": ["12.34", "5", "0.10", "-3.5"], "f": ["0.25", ""],
    "z": ["0", "12345"], "ts": ["2013-01-01T05:00:00Z", "2013-01-01 05:00:00.123"], "dt": ["2013-01-01"],
    "e": ["", "z"],
}  # fmt: skip
ODD = [
    "+1", "007", "-0", "-0.0", "0e0", "1.0", "1.", ".5", "1e2", "1E-2", "1e400", "1e-400", " 1", "1 ", "1\t", "0x1",
    "1_0",
    "127", "128", "-129", "32768", "2147483648", "-2147483648", "9223372036854775807", "9223372036854775808",
    "9007199254740993", "123456789012345678901234567890.5", "1" * 40, "0." + "1" * 40, "4.9e-324", "1e22", "1e23",
    "0.30000000000000004", "12.345", "12.340", "9999999999.99", "10000000000", "0.99", "1.00", "00.5", "99999",
    "100000",
    "True", "TRUE", "tRuE", "t", "yes", "1d", "1f", "NaN", "Infinity", "-Infinity", "nan", "null", "NULL", "\\N", "é",
    "2013-02-30", "2012-02-29", "0001-01-01", "1900-01-01", "2013-1-1", "2013-01-01T05:00", 
    "2013-01-01T05:00:00+02:00",
    "2013-01-01T05:00:00.123456789Z", "2013-12-31T24:00:00Z", "9999-12-31T23:59:59.999999-17:00", "10000-01-01",
    "1752-09-14", "１", "٣", "\x00", "a\x00b", "\u2028", "\ufeff1",
]  # fmt: skip
QUOTED = [
    '""', '"1"', '"-5"', '"x"', '"a,b"', '"a;b"', '"a""b"', '"a"b"', '"a" ', ' "a"', '"a', 'a"', 'a"b', '"', '"""',
    '""""',
    '"a\nb"', '"a\r\nb"', '"\\N"', '"\\""', '"\\\\"', '"a\\"b"', '"a\\', "\\", "a\\b", "\\,", "'a'", "'a;b'", "'a\\'b'",
    "a\nb", "a\rb", '"2013-01-01T05:00:00Z"', '"true"', '"1.5"', '"null"', '"n"',
]  # fmt: skip
WHOLE = [
    b"", b"\n", b"\r\n", b"\r", b",", b",,,,,,,,,,,,", b"1", b"\xff", b"1,\xed\xa0\x80", b"1" * 40_000,
    b'1,"' + b"x" * 40_000 + b'"', DDL.encode(), b'"1"', b"1,,,,,,,,,,,,,",
]  # fmt: skip
CONFIGS: list[dict[str, Any]] = [
    {},
    {"header": True},
    {"separator": ";", "quote": "'", "escape": "\\", "null_text": "\\N"},
    {"separator": "|", "null_text": "null"},
    {"escape": "\\", "separator": "\t"},
    {"escape": "^", "separator": "]", "quote": "~"},
]


def chunks_of(spec: dict[str, Any]) -> CsvChunks:
    return CsvChunks(CsvDecode.model_validate(spec), T.StructType.fromDDL(spec["schema"]))


def made(chance: random.Random, config: dict[str, Any]) -> bytes | None:
    """Return a record: often a good one, sometimes with an odd cell, sometimes odd as a whole."""
    kind, sep = chance.random(), config.get("separator", ",")
    if kind < 0.02:
        return None
    if kind < 0.06:
        return chance.choice(WHOLE).replace(b",", sep.encode())
    cells = [chance.choice(PLAIN[name]) for name in PLAIN]
    if kind < 0.12:
        cells = list(PLAIN)
    while chance.random() < 0.45:
        cells[chance.randrange(len(cells))] = chance.choice(chance.choice([ODD, QUOTED]))
    if chance.random() < 0.2:
        quote = config.get("quote", '"')
        cells = [quote + cell + quote if chance.random() < 0.5 else cell for cell in cells]
    if chance.random() < 0.04:
        cells = cells[:-1] if chance.random() < 0.5 else [*cells, "x"]
    text = sep.join(cells) + (chance.choice(["\n", "\r\n", "\r", "\n\n"]) if chance.random() < 0.08 else "")
    record = text.encode()
    if chance.random() < 0.03:
        at = chance.randrange(len(record))
        record = record[:at] + bytes([chance.randrange(256)]) + record[at + chance.randrange(2) :]
    return record


@pytest.mark.parametrize("config", CONFIGS)
@settings(
    max_examples=2,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(seed=st.integers(0, 2**32))
def test_what_arrow_decodes_is_what_spark_decodes(
    spark: SparkSession, tmp_path: Path, config: dict[str, Any], seed: int
) -> None:
    chance = random.Random(seed)
    values = [made(chance, config) for _ in range(1500)]
    spec = {"schema": DDL} | config
    chunks = chunks_of(spec)
    kept, wrong = differences(
        spark, tmp_path, {"csv": spec}, chunks, values, lambda: chance.choice([1, 1, 2, 5, 50])
    )  # fmt: skip
    assert wrong == []
    assert kept > 100


@pytest.mark.parametrize("config", CONFIGS)
def test_each_odd_cell_in_each_column(spark: SparkSession, tmp_path: Path, config: dict[str, Any]) -> None:
    sep, values = config.get("separator", ","), []
    for n, _ in enumerate(PLAIN):
        for odd in [*ODD, *QUOTED]:
            cells = [choices[0] for choices in PLAIN.values()]
            cells[n] = odd
            values.append(sep.join(cells).encode())
    spec = {"schema": DDL} | config
    chunks = chunks_of(spec)
    kept, wrong = differences(spark, tmp_path, {"csv": spec}, chunks, [*values, *WHOLE], lambda: 1)
    assert wrong == []
    assert kept > 100


def test_ordinary_records_are_not_set_aside(spark: SparkSession) -> None:
    values = [",".join(choices[k % len(choices)] for choices in PLAIN.values()).encode() for k in range(20)]
    values += [values[0].replace(b",x,", b',"x, ""y""",'), values[0] + b"\r\n"]
    found = chunks_of({"schema": DDL}).decode(values)
    assert found.kept is None
    assert found.columns.column("s").to_pylist()[20:] == ['x, "y"', "x"]


def test_a_decoder_that_was_used_travels_to_a_worker(spark: SparkSession, tmp_path: Path) -> None:
    chunks = chunks_of({"schema": "n INT, s STRING", "header": True})
    values = [b"1,a", b"n,s", b'2,"b"', b"x,c", b'"n",s']
    assert chunks.decode(values).kept.tolist() == [0, 2]  # type: ignore[union-attr]
    (tmp_path / "decoder").write_bytes(cloudpickle.dumps((chunks, values)))
    script = "import pickle, sys; c, v = pickle.load(open(sys.argv[1], 'rb')); print(c.decode(v).columns.to_pylist())"
    there = subprocess.run(  # where there is no Spark session
        [sys.executable, "-c", script, tmp_path / "decoder"], check=True, capture_output=True, text=True
    )
    assert there.stdout == "[{'n': 1, 's': 'a'}, {'n': 2, 's': 'b'}]\n"
