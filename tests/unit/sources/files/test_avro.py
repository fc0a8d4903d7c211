"""Avro's container files: counted by the heads of their blocks, with values as they were written."""

from __future__ import annotations

import bz2
import io
import json
import lzma
import zlib
from collections.abc import Callable
from datetime import date
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from sluice.sources.files import avro as module
from sluice.sources.files.avro import count, rows
from sluice.sources.files.json_text import UnfitError

IDS = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}
SYNC = b"0123456789abcdef"


def written(schema: Any, values: list[Any], per_block: int = 100, codec: str = "null") -> bytes:
    """Write a file with numbers where fastavro would convert dates and times: without logical types."""
    out = io.BytesIO()
    parts = [values[n : n + per_block] for n in range(0, len(values), per_block)]
    plain = fastavro.parse_schema(module._without(schema, "logicalType"))
    out.write(b"Obj\x01")
    meta = {"avro.schema": json.dumps(schema).encode(), "avro.codec": codec.encode()}
    fastavro.schemaless_writer(out, fastavro.parse_schema(module._HEADER), {"meta": meta, "sync": SYNC})
    for part in parts:
        body = io.BytesIO()
        for value in part:
            fastavro.schemaless_writer(body, plain, value)
        packed = PACKED[codec](body.getvalue())
        for number in (len(part), len(packed)):
            fastavro.schemaless_writer(out, "long", number)
        out.write(packed + SYNC)
    return out.getvalue()


def _deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": _deflate,
    "snappy": lambda data: pa.compress(data, "snappy", asbytes=True) + zlib.crc32(data).to_bytes(4, "big"),
    "zstandard": lambda data: pa.compress(data, "zstd", asbytes=True),
    "bzip2": bz2.compress,
    "xz": lzma.compress,
}


def read(data: bytes, start: int = 0, end: int = 1 << 60, marks: Any = ()) -> list[tuple[int, bytes]]:
    found = rows(io.BytesIO(data), start=start, end=end, marks=marks)
    return [(first + n, row) for first, part in found for n, row in enumerate(part)]


@pytest.mark.parametrize("codec", PACKED)
def test_avro_file_is_read_in_parts_from_any_mark(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MARKED", 60)
    data = written(IDS, [{"id": n} for n in range(25)], 4, codec)
    counted = count(io.BytesIO(data))
    assert (counted.rows, len(counted.marks) > 1) == (25, True)
    everything = [(n, b'{"id":%d}' % n) for n in range(25)]
    for start in range(26):
        for end in range(start, 27):
            for marks in ((), counted.marks):
                assert read(data, start, end, marks) == everything[start:end]


def test_avro_file_of_another_writer_is_read() -> None:
    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema(IDS), [{"id": n} for n in range(1000)], "deflate", sync_interval=100)
    assert count(io.BytesIO(out.getvalue())).rows == 1000
    assert read(out.getvalue(), 990)[-1] == (999, b'{"id":999}')


def logical(kind: Any, logic: str, **more: Any) -> dict[str, Any]:
    return (kind if isinstance(kind, dict) else {"type": kind}) | {"logicalType": logic} | more


INNER = {"type": "record", "name": "In", "namespace": "a.b", "fields": [{"name": "x", "type": ["null", "int"]}]}
FIXED = {"type": "fixed", "name": "F", "size": 16}
DAY = date(2020, 1, 2).toordinal() - date(1970, 1, 1).toordinal()
CASES: list[tuple[Any, Any, str]] = [
    ("null", None, "null"),
    ("boolean", True, "true"),
    ("int", -(2**31), "-2147483648"),
    ("long", 2**63 - 1, "9223372036854775807"),
    ("float", 0.10000000149011612, "0.10000000149011612"),
    ("double", 1.0, "1.0"),
    ("double", float("-inf"), '"-Infinity"'),
    ("double", float("nan"), '"NaN"'),
    ("string", 'a "b"\né', '"a \\"b\\"\\né"'),
    ("bytes", b"\xff\x00", '"/wA="'),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", '"B"'),
    (FIXED, b"0123456789abcdef", '"MDEyMzQ1Njc4OWFiY2RlZg=="'),
    (logical(FIXED, "uuid"), b"0123456789abcdef", '"30313233-3435-3637-3839-616263646566"'),
    (logical("int", "date"), DAY, '"2020-01-02"'),
    (logical("int", "date"), 10**7, '"29349-01-26"'),
    (logical("long", "timestamp-millis"), 1, '"1970-01-01 00:00:00.001Z"'),
    (logical("long", "timestamp-micros"), -1, '"1969-12-31 23:59:59.999999Z"'),
    (logical("long", "timestamp-nanos"), 1, '"1970-01-01 00:00:00.000000001Z"'),
    (logical("long", "local-timestamp-micros"), 1, '"1970-01-01 00:00:00.000001"'),
    (logical("int", "time-millis"), 86_399_999, '"23:59:59.999"'),
    (logical("long", "time-micros"), 1, '"00:00:00.000001"'),
    (logical("bytes", "decimal", precision=38, scale=7), b"\x01", "0.0000001"),
    (logical("bytes", "decimal", precision=5, scale=2), b"\xfb\x2e", "-12.34"),
    (logical("bytes", "decimal", precision=5, scale=2), b"\x01" * 80, '"' + "AQEB" * 26 + 'AQE="'),
    (logical("long", "unheard-of"), 5, "5"),
    ({"type": "array", "items": ["null", "double"]}, [1.5, None], "[1.5,null]"),
    ({"type": "map", "values": "long"}, {'"': 1}, '{"\\"":1}'),
    (INNER, {"x": None}, '{"x":null}'),
    (["null", "int", "string", INNER], {"x": 5}, '{"x":5}'),
    (["null", "int", "string", "double", "bytes"], "5", '"5"'),
    (["null", "long", "int"], 5, "5"),
    ([INNER, {"type": "record", "name": "Y", "fields": [{"name": "y", "type": "bytes"}]}], {"y": b"a"}, '{"y":"YQ=="}'),
    ([INNER, logical("bytes", "decimal", precision=3, scale=1), FIXED], ("F", b"0" * 16), '"MDAwMDAwMDAwMDAwMDAwMA=="'),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "text"), CASES, ids=[f"{n}" for n in range(len(CASES))])
def test_avro_values_are_json_without_loss(kind: Any, value: Any, text: str) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}, {"name": "b", "type": "int"}]}
    found = read(written(schema, [{"a": value, "b": 1}]))
    assert found == [(0, f'{{"a":{text},"b":1}}'.encode())]
    json.loads(found[0][1])


def test_avro_union_at_the_top_gives_its_records() -> None:
    other = {"type": "record", "name": "S", "fields": [{"name": "s", "type": "string"}]}
    assert read(written([IDS, other], [{"s": "x"}, {"id": 1}])) == [(0, b'{"s":"x"}'), (1, b'{"id":1}')]


def test_avro_text_that_is_not_utf8_stays_as_it_is() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "s", "type": "string"}]}
    data = written(schema, [{"s": "xy"}]).replace(b"xy", b"\xffy")
    assert read(data) == [(0, b'{"s":"\xffy"}')]


def test_avro_header_names_the_columns() -> None:
    schema = {
        "type": "record", "name": "R", "doc": "said",
        "fields": [
            {"name": "id", "type": "long", "doc": "said"},
            {"name": "é", "type": ["null", logical("int", "date")], "default": None},
        ],
    }  # fmt: skip
    named = json.loads(count(io.BytesIO(written(schema, []))).header or b"")
    assert named == {"id": "long", "é": '["null", {"type": "int", "logicalType": "date"}]'}


def test_avro_file_that_is_cut_short_cannot_be_counted() -> None:
    data = written(IDS, [{"id": n} for n in range(25)], 10)
    ends = [len(data)] + [len(data[: data.rindex(SYNC) - n]) for n in (0, 1, 5)]
    for cut in [0, 3, 20, *ends[1:], ends[0] - 1]:
        with pytest.raises((EOFError, ValueError)):
            count(io.BytesIO(data[:cut]))


def test_avro_damaged_block_is_not_read() -> None:
    data = bytearray(written(IDS, [{"id": 1000 + n} for n in range(25)], 10, "snappy"))
    data[data.index(SYNC, data.index(SYNC) + 1) - 6] ^= 0xFF
    with pytest.raises((OSError, ValueError), match=r"checksum|snappy"):
        read(bytes(data))


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}, "'R' within itself"),
        ({"type": "array", "items": "null"}, "an array of null"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}] * 2}, "name"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "nothing"}]}, "its schema cannot be read"),
        (logical("bytes", "decimal", precision="5"), "its schema cannot be read"),
        (["null", logical("int", "date"), "long"], "told apart"),
        ([IDS, {"type": "map", "values": "int"}], "told apart"),
    ],
)
def test_avro_schema_without_a_form_in_json_is_refused(schema: Any, named: str) -> None:
    header = {"meta": {"avro.schema": json.dumps(schema).encode()}, "sync": SYNC}
    out = io.BytesIO(b"Obj\x01")
    out.seek(4)
    fastavro.schemaless_writer(out, fastavro.parse_schema(module._HEADER), header)
    with pytest.raises(UnfitError, match=named):
        count(io.BytesIO(out.getvalue()))
