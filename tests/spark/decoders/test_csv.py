"""The documented contract of decoding CSV; and against Python's own reader."""

from __future__ import annotations

import csv
import io
import random
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.decoders.conftest import FIVE_MB, check, fields_of, outcomes, records, table

from sluice.pipeline.sections import Decode
from sluice_spark.decoders.base import decode

pytestmark = pytest.mark.spark


def test_the_page_says_what_a_csv_record_decodes_to(spark: SparkSession) -> None:
    rows = table("CSV")
    spec = Decode(csv={"schema": "i INT, s STRING, d DOUBLE"})
    values: list[bytes | None] = [row[0].replace("↵", "\n").encode() for row in rows]
    assert check(decode(records(spark, values), spec), fields_of, rows) == []


def test_a_csv_record_is_what_python_reads_or_refused(spark: SparkSession) -> None:
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
        "1.50",
    ]
    written, sound = [], 0
    for n in range(4000):
        row = [rng.choice(cells) for _ in range(rng.choice([3, 3, 3, 3, 2, 4]))]
        buffer = io.StringIO()
        csv.writer(
            buffer,
            quoting=rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
        ).writerow(row)  # with another end of line it would leave line breaks unquoted
        text = buffer.getvalue().removesuffix("\r\n") + rng.choice(["", "\r\n", "\n"])
        if n % 2:
            at = rng.randrange(len(text) + 1)
            text = text[:at] + rng.choice(['"', ",", "\n", "x", ""]) + text[at + 1 :]
        else:
            sound += len(row) == 3
        written.append(text)
    found = outcomes(
        decode(records(spark, [t.encode() for t in written]), Decode(csv={"schema": "a STRING, b STRING, c STRING"}))
    )
    taken = [(text, outcome) for text, outcome in zip(written, found, strict=True) if isinstance(outcome, dict)]
    for text, outcome in taken:
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
        assert len(rows) == 1, text
        assert [outcome.get(k, "") for k in "abc"] == rows[0], text
    assert len(taken) >= sound
    assert all(
        isinstance(found[n], dict)
        for n in range(0, 4000, 2)
        if len(next(csv.reader(io.StringIO(written[n], newline="")))) == 3
    )


def test_csv(spark: SparkSession) -> None:
    cases: list[tuple[bytes | None, dict[str, Any] | str]] = [
        (b"1;x", {"i": 1, "s": "x"}), (b'1;"a;b"', {"i": 1, "s": "a;b"}), (b";", {}), (b"one;x", "type"),
        (b"1;x;more", "fields"), (b"1", "fields"), (b"2147483648;x", "type"), (b"1;\xff", "utf8"), (None, "null_value"),
        ("1;ä".encode(), {"i": 1, "s": "ä"}), (b"", "empty"), (b"\r\n", "empty"), (b"i;s", "type"),
        (f'1;"{FIVE_MB}""{FIVE_MB}"'.encode(), {"i": 1, "s": f'{FIVE_MB}"{FIVE_MB}'}),
        (b'1;"' + b'""' * 500_000 + b'"', {"i": 1, "s": '"' * 500_000}), (b'1;"' + b'""' * 500_000, "csv"),
    ]  # fmt: skip
    spec = Decode(csv={"schema": "i INT, s STRING", "separator": ";"})
    assert outcomes(decode(records(spark, [v for v, _ in cases]), spec)) == [e for _, e in cases]


def test_csv_with_other_quotes_escapes_and_nulls(spark: SparkSession) -> None:
    cases: list[tuple[bytes | None, dict[str, Any] | str]] = [
        (rb"1|'a\'|b\\'|1.50", {"i": 1, "s": "a'|b\\", "n": Decimal("1.50")}), (rb"\N|\N|\N", {}),
        (rb"1|'\\N'|2", {"i": 1, "s": r"\N", "n": Decimal(2)}), (rb"1||2", {"i": 1, "s": "", "n": Decimal(2)}),
        (rb"1|x|'2'", {"i": 1, "s": "x", "n": Decimal(2)}), (b'1|"x"|2', {"i": 1, "s": '"x"', "n": Decimal(2)}),
        (rb"|x|2", "type"), (rb"1|x|1.505", "digits"), (rb"1|x|1,5", "type"), (rb"1|\x|2", "csv"),
        (rb"i|s|n", "header"), (rb"'i'|s|n", "header"), (rb"i|s|m", "type"),
    ]  # fmt: skip
    keys = {"separator": "|", "quote": "'", "escape": "\\", "null_text": r"\N", "header": True}
    spec = Decode(csv={"schema": "i INT, s STRING, n DECIMAL(5,2)", **keys})
    assert outcomes(decode(records(spark, [v for v, _ in cases]), spec)) == [e for _, e in cases]
