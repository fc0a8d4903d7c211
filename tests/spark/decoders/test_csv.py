"""CSV: Python's own reader, other quotes and separators, and odd cells at random, on both paths."""

from __future__ import annotations

import csv
import io
import random
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.fixtures.decoding import decoded
from tests.spark.decoders.conftest import FIVE_MB

pytestmark = pytest.mark.spark


def test_csv_record_is_what_python_reads_or_is_refused(spark: SparkSession) -> None:
    rng = random.Random(14)
    cells = [
        "",
        "x",
        "1",
        " ",
        "a,b",
        'say "x"',
        '"',
        '""',
        "a\nb",
        "a\r\nb",
        "ä😀",
        "\\",
        "\\N",
        "'",
        "\t",
        "NaN",
        "a;b",
    ]
    written, sound = [], set[int]()
    for n in range(4000):
        row = [rng.choice(cells) for _ in range(rng.choice([3, 3, 3, 3, 2, 4]))]
        buffer = io.StringIO()
        # with another end of line it would leave line breaks unquoted
        csv.writer(buffer, quoting=rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])).writerow(row)
        text = buffer.getvalue().removesuffix("\r\n") + rng.choice(["", "\r\n", "\n"])
        if n % 2:
            at = rng.randrange(len(text) + 1)
            text = text[:at] + rng.choice(['"', ",", "\n", "x", ""]) + text[at + 1 :]
        elif len(row) == 3:
            sound.add(n)
        written.append(text)
    spec = {"csv": {"schema": "a STRING, b STRING, c STRING"}}
    found = decoded(spark, spec, [text.encode() for text in written]).brief
    taken = {n: outcome for n, outcome in enumerate(found) if isinstance(outcome, dict)}
    for n, outcome in taken.items():
        (row,) = csv.reader(io.StringIO(written[n], newline=""), strict=True)
        assert [outcome.get(k, "") for k in "abc"] == row, written[n]
    assert sound <= taken.keys()


def test_csv_with_another_separator_and_huge_fields(spark: SparkSession) -> None:
    cases: list[tuple[bytes | None, dict[str, Any] | str]] = [
        (b"1;x", {"i": 1, "s": "x"}), (b'1;"a;b"', {"i": 1, "s": "a;b"}), (b";", {}), (b"one;x", "type"),
        (b"1;x;more", "fields"), (b"1", "fields"), (b"2147483648;x", "type"), (b"1;\xff", "utf8"), (None, "null_value"),
        ("1;ä".encode(), {"i": 1, "s": "ä"}), (b"", "empty"), (b"\r\n", "empty"), (b"i;s", "type"),
        (f'1;"{FIVE_MB}""{FIVE_MB}"'.encode(), {"i": 1, "s": f'{FIVE_MB}"{FIVE_MB}'}),
        (b'1;"' + b'""' * 500_000 + b'"', {"i": 1, "s": '"' * 500_000}), (b'1;"' + b'""' * 500_000, "csv"),
    ]  # fmt: skip
    spec = {"csv": {"schema": "i INT, s STRING", "separator": ";"}}
    assert decoded(spark, spec, [v for v, _ in cases]).brief == [e for _, e in cases]


def test_csv_with_other_quotes_escapes_and_nulls(spark: SparkSession) -> None:
    cases: list[tuple[bytes | None, dict[str, Any] | str]] = [
        (rb"1|'a\'|b\\'|1.50", {"i": 1, "s": "a'|b\\", "n": Decimal("1.50")}), (rb"\N|\N|\N", {}),
        (rb"1|'\\N'|2", {"i": 1, "s": r"\N", "n": Decimal(2)}), (rb"1||2", {"i": 1, "s": "", "n": Decimal(2)}),
        (rb"1|x|'2'", {"i": 1, "s": "x", "n": Decimal(2)}), (b'1|"x"|2', {"i": 1, "s": '"x"', "n": Decimal(2)}),
        (rb"|x|2", "type"), (rb"1|x|1.505", "digits"), (rb"1|x|1,5", "type"), (rb"1|\x|2", "csv"),
        (rb"i|s|n", "header"), (rb"'i'|s|n", "header"), (rb"i|s|m", "type"),
    ]  # fmt: skip
    keys = {"separator": "|", "quote": "'", "escape": "\\", "null_text": r"\N", "header": True}
    spec = {"csv": {"schema": "i INT, s STRING, n DECIMAL(5,2)", **keys}}
    assert decoded(spark, spec, [v for v, _ in cases]).brief == [e for _, e in cases]


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
    {"header": True, "separator": "\t", "null_text": "null"},
    {"separator": ";", "quote": "'", "escape": "\\", "null_text": "\\N"},
    {"separator": "]", "quote": "~", "escape": "^"},
]


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
def test_csv_cells_are_decoded_alike_on_both_paths(spark: SparkSession, config: dict[str, Any]) -> None:
    chance, sep, values = random.Random(5), config.get("separator", ","), list[bytes | None](WHOLE)
    for n, _ in enumerate(PLAIN):
        for odd in [*ODD, *QUOTED]:
            cells = [choices[0] for choices in PLAIN.values()]
            cells[n] = odd
            values.append(sep.join(cells).encode())
    found = decoded(spark, {"csv": {"schema": DDL} | config}, [*values, *(made(chance, config) for _ in range(1500))])
    assert len(found.kept) > 200
    if not config:
        plain = [",".join(choices[k % len(choices)] for choices in PLAIN.values()).encode() for k in range(20)]
        plain += [plain[0].replace(b",x,", b',"x, ""y""",'), plain[0] + b"\r\n"]
        assert decoded(spark, {"csv": {"schema": DDL}}, plain).kept == set(range(22))
