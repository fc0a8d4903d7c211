"""The shapes of data that runs are measured with, besides the small records of ``volume``."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["SCHEMA", "SHAPES", "Shape"]

SCHEMA = "id BIGINT, ts TIMESTAMP, amount DOUBLE, country STRING, payload STRING"
"""Of the small records: about 150 bytes of JSON."""

_WIDE = ", ".join(
    [
        "id BIGINT",
        "ts TIMESTAMP",
        *(f"n{i} BIGINT" for i in range(18)),
        *(f"x{i} DOUBLE" for i in range(14)),
        *(f"s{i} STRING" for i in range(17)),
        *(f"f{i} BOOLEAN" for i in range(4)),
        "address STRUCT<street: STRING, city: STRING, zip: BIGINT>",
        "tags ARRAY<STRING>",
        "scores MAP<STRING, DOUBLE>",
    ]
)


@dataclass(frozen=True)
class Shape:
    """What a topic holds.

    Parameters
    ----------
    records
        How many, as a share of those of the volume.
    skewed
        Whether the first partition gets every second record, beside its part of the others.
    bad_every
        Of so many records one has a text where its schema has a number; None: all are good.
    """

    schema: str = SCHEMA
    records: float = 0.4
    partitions: int = 4
    settings: dict[str, str] = field(default_factory=dict)
    skewed: bool = False
    bad_every: int | None = None


SHAPES = {
    "small": Shape(records=1),
    "wide": Shape(_WIDE, records=0.12, settings={"compression.type": "zstd"}),
    "partitions": Shape(partitions=64),
    "skewed": Shape(skewed=True),
    "bad": Shape(bad_every=100),
}
"""By name. ``wide`` has 58 columns, three of them nested, and about 1.2 KB of JSON a record."""
