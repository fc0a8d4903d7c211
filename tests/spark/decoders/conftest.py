"""Records to decode, and the page that says what they decode to."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

from sluice.shipped import CHECKOUT
from sluice_spark.decoders.base import DATA, RULE

RECORDS = "key BINARY, value BINARY, topic STRING, partition INT, offset LONG, timestamp TIMESTAMP"

NOON = datetime(2020, 1, 1, 12)

FIVE_MB = "x" * 5_000_000

NAN = object()


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


PAGE = (CHECKOUT / "docs" / "decoding.md").read_text()


def table(heading: str) -> list[list[str]]:
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| `")]
    assert len(rows) > 10
    return [[cell.strip().removeprefix("`").removesuffix("`") for cell in row] for row in rows]


def check(frame: DataFrame, shown: Callable[[Row], str], rows: list[list[str]]) -> list[tuple[list[str], str]]:
    found = sorted(frame.select("offset", RULE, DATA).collect(), key=lambda r: r[0])
    told = [f"refused: `{row[1]}" if row[1] else shown(row[2]) for row in found]
    return [(row, now) for row, now in zip(rows, told, strict=True) if row[-2] != now]


def fields_of(row: Row) -> str:
    return json.dumps({k: v for k, v in row.asDict(True).items() if v is not None}, ensure_ascii=False)
