"""Types of a DDL schema, as the same column of two formats is compared."""

from __future__ import annotations

from sluice.decoders.ddl import types_of


def test_the_same_type_is_written_alike() -> None:
    declared = (
        "a INT NOT NULL, b VARCHAR(3), c DECIMAL, d DECIMAL(5), e ARRAY<STRUCT<`x y`: TINYINT NOT NULL, z: CHAR(2)>>, "
        "f MAP<STRING, LONG>, g TIMESTAMP_NTZ, h TIMESTAMP, i BYTE, j VARIANT"
    )
    assert types_of(declared) == {
        "a": "INT", "b": "STRING", "c": "DECIMAL(10,0)", "d": "DECIMAL(5,0)",
        "e": "ARRAY<STRUCT<x y: TINYINT, z: STRING>>", "f": "MAP<STRING, BIGINT>", "g": "TIMESTAMP_NTZ",
        "h": "TIMESTAMP", "i": "TINYINT", "j": "VARIANT",
    }  # fmt: skip
    assert list(types_of("b INT, a INT")) == ["b", "a"]
