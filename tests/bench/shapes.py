"""What the topics of the bench hold: generated records in several shapes, and the few that a small run is fed with."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

COUNTRIES = ("DE", "FR", "IT", "ES", "PL")
SCHEMA = "id BIGINT, ts TIMESTAMP, amount DOUBLE, country STRING, payload STRING"
"""Of the small records: about 150 bytes of JSON."""

_MANY = {"n{} BIGINT": 18, "x{} DOUBLE": 14, "s{} STRING": 17, "f{} BOOLEAN": 4}
_NESTED = "address STRUCT<street: STRING, city: STRING, zip: BIGINT>, tags ARRAY<STRING>, scores MAP<STRING, DOUBLE>"
_WIDE = ", ".join(["id BIGINT, ts TIMESTAMP", *(c.format(i) for c, n in _MANY.items() for i in range(n)), _NESTED])


@dataclass(frozen=True)
class Shape:
    """What a topic holds."""

    schema: str = SCHEMA
    records: float = 0.4
    """How many, as a share of those of the volume."""
    partitions: int = 4
    settings: dict[str, str] = field(default_factory=dict)
    skewed: bool = False
    """Whether the first partition gets every second record, beside its part of the others."""
    bad_every: int | None = None
    """Of so many records one has a text where its schema has a number; None: all are good."""


SHAPES = {
    "small": Shape(records=1),
    "wide": Shape(_WIDE, records=0.12, settings={"compression.type": "zstd"}),
    "partitions": Shape(partitions=64),
    "skewed": Shape(skewed=True),
    "bad": Shape(bad_every=100),
}
"""By name. ``wide`` has 58 columns, three of them nested, and about 1.2 KB of JSON a record."""

RECORDS = 100
"""Of a small run."""


def broken(number: int) -> int:
    """Return how many records of a small run do not decode: one of each fifth."""
    return int(number % 5 == 0)


def feed(producer: Any, topic: str, number: int, *, bad: bool = True, more: tuple[str, ...] = ()) -> None:
    """Produce the records of a small run, of which some may not decode, with more columns of numbers."""
    for n in range(number * RECORDS, (number + 1) * RECORDS):
        record = {"id": n, "ts": "2026-01-01T00:00:00Z", "amount": n % 1000, "country": COUNTRIES[n % 5]}
        record |= {"payload": f"{n:x}", **dict.fromkeys(more, n)}
        value = '{"id": ' if bad and n % RECORDS < broken(number) else json.dumps(record)
        producer.send(topic, value=value.encode(), partition=n % 4)
    producer.flush()
