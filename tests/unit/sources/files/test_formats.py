"""Files of each format: counted, cut into rows from any row on, as JSON without loss, or refused."""

from __future__ import annotations

import bz2
import csv
import io
import json
import lzma
import zlib
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, get_args

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.sources.files import avro, parquet
from sluice.sources.files import rows as module
from sluice.sources.files.config import Format
from sluice.sources.files.formats import Reader
from sluice.sources.files.json_text import UnfitError, check, rows_of
from sluice.sources.files.rows import RFC_4180, Quoting

INF = float("inf")
SYNC = b"0123456789abcdef"
CSV, AVRO, PARQUET = Reader("csv"), Reader("avro"), Reader("parquet")


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": kind} for n, kind in fields.items()]}


IDS = record("R", id="long")


def read(reader: Reader, data: bytes, start: int = 0, end: int = 1 << 60, marks: Any = ()) -> list[tuple[int, bytes]]:
    """Return rows with their numbers."""
    found = reader.rows(io.BytesIO(data), start, end, marks)
    return [(first + n, row) for first, part in found for n, row in enumerate(part)]


def rows(reader: Reader, data: bytes) -> list[bytes]:
    found = read(reader, data)
    assert [number for number, _ in found] == list(range(len(found)))
    return [row for _, row in found]


def one_by_one(text: str, quoting: Quoting) -> list[str]:
    """Cut CSV into rows, character by character."""
    found, row, is_open, escaped, before, closed = list[str](), "", False, False, "\n", False
    escape = quoting.escape if quoting.escape != quoting.quote else None
    for c in text:
        ends = not is_open and c == "\n"
        closes = is_open and not escaped and c == quoting.quote
        if is_open:
            escaped = not escaped and c == escape
            is_open = not closes
        elif c == quoting.quote:
            is_open = before in (quoting.separator, "\n") or (closed and escape is None)
        before, closed = c, closes
        if ends:
            found.append(row)
        row = "" if ends else row + c
    return [*found, row] if row else found


@pytest.mark.parametrize(
    "quoting", [RFC_4180, Quoting(";", "'"), Quoting(",", '"', "\\")], ids=["rfc", "other", "escape"]
)
@given(text=st.text("a,;\"'\\\n", max_size=60), block=st.integers(1, 9))
def test_csv_rows_end_at_line_breaks_outside_of_fields_that_begin_with_a_quote(
    quoting: Quoting, text: str, block: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", block)
        reader = Reader("csv", quoting=quoting)
        found = [row.decode() for row in rows(reader, text.encode())]
        assert found == one_by_one(text, quoting)
        assert reader.count(io.BytesIO(text.encode())).rows == len(found)


def test_csv_quote_within_a_field_takes_no_other_row() -> None:
    assert rows(CSV, b'7,"a,b"\n8,a"b\n9,c\n10,d"e\n11,"f\ng"\n') == [
        b'7,"a,b"', b'8,a"b', b"9,c", b'10,d"e', b'11,"f\ng"',
    ]  # fmt: skip


PACKED: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": lambda data: zlib.compress(data, wbits=-15),
    "snappy": lambda data: pa.compress(data, "snappy", asbytes=True) + zlib.crc32(data).to_bytes(4, "big"),
    "zstandard": lambda data: pa.compress(data, "zstd", asbytes=True),
    "bzip2": bz2.compress,
    "xz": lzma.compress,
}


def avro_file(schema: Any, values: list[Any], per_block: int = 100, codec: str = "null") -> bytes:
    """Write a file with numbers where fastavro would convert dates and times: without logical types."""
    out = io.BytesIO(b"Obj\x01")
    out.seek(4)
    plain = fastavro.parse_schema(avro._without(schema, "logicalType"))
    meta = {"avro.schema": json.dumps(schema).encode(), "avro.codec": codec.encode()}
    fastavro.schemaless_writer(out, fastavro.parse_schema(avro._HEADER), {"meta": meta, "sync": SYNC})
    for part in (values[n : n + per_block] for n in range(0, len(values), per_block)):
        body = io.BytesIO()
        for value in part:
            fastavro.schemaless_writer(body, plain, value)
        packed = PACKED[codec](body.getvalue())
        for number in (len(part), len(packed)):
            fastavro.schemaless_writer(out, "long", number)
        out.write(packed + SYNC)
    return out.getvalue()


def parquet_file(table: pa.Table, **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


ALL = [b'{"id":%d}' % n for n in range(25)]
WHOLE: dict[str, tuple[Reader, bytes]] = {
    **{f"avro {codec}": (AVRO, avro_file(IDS, [{"id": n} for n in range(25)], 4, codec)) for codec in PACKED},
    "parquet": (PARQUET, parquet_file(pa.table({"id": range(25)}), row_group_size=7)),
    "json": (Reader("json"), b"\n".join(ALL)),
}


@pytest.mark.parametrize("what", WHOLE)
def test_file_is_read_in_parts_from_any_mark(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro, "_MARKED", 60)
    reader, data = WHOLE[what]
    counted = reader.count(io.BytesIO(data))
    assert (counted.rows, len(counted.marks) > 1) == (25, what.startswith("avro"))
    for start in range(26):
        for end in range(start, 27):
            for marks in ((), counted.marks):
                assert read(reader, data, start, end, marks) == list(enumerate(ALL))[start:end]


@pytest.mark.parametrize("what", [name for name in WHOLE if name != "json"])
def test_file_that_is_cut_short_cannot_be_counted(what: str) -> None:
    reader, data = WHOLE[what]
    end = data.rindex(SYNC) if SYNC in data else len(data) - 4
    for cut in (0, 3, 20, end - 2, end - 1, end, len(data) - 1):
        with pytest.raises((OSError, EOFError, ValueError)):
            reader.count(io.BytesIO(data[:cut]))


def logical(kind: Any, logic: str, **more: Any) -> dict[str, Any]:
    return (kind if isinstance(kind, dict) else {"type": kind}) | {"logicalType": logic} | more


INNER = {**record("In", x=["null", "int"]), "namespace": "a.b"}
FIXED = {"type": "fixed", "name": "F", "size": 16}
DAY = date(2020, 1, 2).toordinal() - date(1970, 1, 1).toordinal()
AVRO_VALUES: list[tuple[Any, Any, str]] = [
    ("null", None, "null"),
    ("boolean", True, "true"),
    ("int", -(2**31), "-2147483648"),
    ("long", 2**63 - 1, "9223372036854775807"),
    ("float", 0.10000000149011612, "0.10000000149011612"),
    ("double", 1.0, "1.0"),
    ("double", -INF, '"-Infinity"'),
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
    ([INNER, record("Y", y="bytes")], {"y": b"a"}, '{"y":"YQ=="}'),
    ([INNER, logical("bytes", "decimal", precision=3, scale=1), FIXED], ("F", b"0" * 16), '"MDAwMDAwMDAwMDAwMDAwMA=="'),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value", "text"), AVRO_VALUES, ids=[f"{n}" for n in range(len(AVRO_VALUES))])
def test_avro_values_are_json_without_loss(kind: Any, value: Any, text: str) -> None:
    (found,) = rows(AVRO, avro_file(record("R", a=kind, b="int"), [{"a": value, "b": 1}]))
    assert found == f'{{"a":{text},"b":1}}'.encode()
    json.loads(found)


@pytest.mark.parametrize("kind", ["date", "timestamp-micros", "local-timestamp-millis", None])
def test_avro_file_of_the_hybrid_calendar_is_refused_if_it_has_dates_or_times(kind: str | None) -> None:
    field = {"type": "int" if kind == "date" else "long", **({"logicalType": kind} if kind else {})}
    schema, marked, plain = record("R", x=["null", field]), io.BytesIO(), io.BytesIO()
    for out, marks in ((marked, {"org.apache.spark.legacyDateTime": ""}), (plain, {})):
        fastavro.writer(out, fastavro.parse_schema(schema), [{"x": None}], metadata=marks)
        out.seek(0)
    assert avro.count(plain).rows == 1
    with pytest.raises(UnfitError, match=r"before 3\.0") if kind else nullcontext():
        avro.count(marked)


def test_avro_union_at_the_top_gives_its_records_with_text_that_is_not_utf8_as_it_is() -> None:
    data = avro_file([IDS, record("S", s="string")], [{"s": "xy"}, {"id": 1}]).replace(b"xy", b"\xffy")
    assert rows(AVRO, data) == [b'{"s":"\xffy"}', b'{"id":1}']


def test_avro_header_names_the_columns() -> None:
    schema = {**record("R", id="long", é=["null", logical("int", "date")]), "doc": "said"}
    schema["fields"][1] |= {"default": None, "doc": "said"}
    named = json.loads(AVRO.count(io.BytesIO(avro_file(schema, []))).header or b"")
    assert named == {"id": "long", "é": '["null", {"type": "int", "logicalType": "date"}]'}


def test_avro_damaged_block_is_not_read() -> None:
    data = bytearray(avro_file(IDS, [{"id": 1000 + n} for n in range(25)], 10, "snappy"))
    data[data.index(SYNC, data.index(SYNC) + 1) - 6] ^= 0xFF
    with pytest.raises((OSError, ValueError), match=r"checksum|snappy"):
        read(AVRO, bytes(data))


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        (record("R", r=["null", "R"]), "'R' within itself"),
        ({"type": "array", "items": "null"}, "an array of null"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}] * 2}, "name"),
        (record("R", a="nothing"), "its schema cannot be read"),
        (logical("bytes", "decimal", precision="5"), "its schema cannot be read"),
        (["null", logical("int", "date"), "long"], "told apart"),
        ([IDS, {"type": "map", "values": "int"}], "told apart"),
    ],
)
def test_avro_schema_without_a_form_in_json_is_refused(schema: Any, named: str) -> None:
    header = {"meta": {"avro.schema": json.dumps(schema).encode()}, "sync": SYNC}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(avro._HEADER), header)
    with pytest.raises(UnfitError, match=named):
        AVRO.count(io.BytesIO(b"Obj\x01" + out.getvalue()))


def test_parquet_times_of_old_writers_are_read() -> None:
    table = pa.table({"at": [datetime(1600, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)]})
    assert rows(PARQUET, parquet_file(table, use_deprecated_int96_timestamps=True)) == [
        b'{"at":"1600-01-01 00:00:00.000000"}', b'{"at":"9999-12-31 23:59:59.999999"}',
    ]  # fmt: skip


ARROW_VALUES: list[tuple[pa.DataType, Any, str]] = [
    (pa.int64(), -(2**63), "-9223372036854775808"),
    (pa.uint64(), 2**64 - 1, "18446744073709551615"),
    (pa.bool_(), True, "true"),
    (pa.float64(), 1.0, "1.0"),
    (pa.float64(), 0.1, "0.1"),
    (pa.float64(), 1e22, "1e+22"),
    (pa.float64(), float("nan"), '"NaN"'),
    (pa.float64(), INF, '"Infinity"'),
    (pa.float64(), -INF, '"-Infinity"'),
    (pa.float32(), 0.1, "0.10000000149011612"),
    (pa.float16(), 0.5, "0.5"),
    (pa.decimal128(38, 7), Decimal("0.0000001"), "0.0000001"),
    (pa.decimal128(38, 2), Decimal("12345678901234567890123456789012345.6"), "12345678901234567890123456789012345.60"),
    (pa.string(), 'a "b"\\\n\x01é😀', '"a \\"b\\"\\\\\\n\\u0001é😀"'),
    (pa.large_string(), "x", '"x"'),
    (pa.binary(), b"\xff\x00", '"/wA="'),
    (pa.binary(2), b"ab", '"YWI="'),
    (pa.dictionary(pa.int8(), pa.string()), "x", '"x"'),
    (pa.date32(), date(1, 2, 3), '"0001-02-03"'),
    (pa.timestamp("ms"), 1, '"1970-01-01 00:00:00.001"'),
    (pa.timestamp("ns"), 1, '"1970-01-01 00:00:00.000000001"'),
    (pa.timestamp("us", "UTC"), 1, '"1970-01-01 00:00:00.000001Z"'),
    (pa.timestamp("s", "Europe/Berlin"), 0, '"1970-01-01 00:00:00Z"'),
    (pa.time64("us"), 1, '"00:00:00.000001"'),
    (pa.duration("s"), 5, "5"),
    (pa.uuid(), b"0123456789abcdef", '"30313233-3435-3637-3839-616263646566"'),
    (pa.list_(pa.int8()), [1, None], "[1,null]"),
    (pa.list_(pa.string()), [], "[]"),
    (pa.large_list(pa.float64()), [INF], '["Infinity"]'),
    (pa.list_(pa.int8(), 2), [1, 2], "[1,2]"),
    (pa.struct({"x": pa.int8(), "y": pa.list_(pa.date32())}), {"x": None, "y": [date(2020, 1, 2)]},
     '{"x":null,"y":["2020-01-02"]}'),
    (pa.struct([]), {}, "{}"),
    (pa.map_(pa.string(), pa.int8()), [('"', 1), ("b", None)], '{"\\"":1,"b":null}'),
    (pa.map_(pa.int32(), pa.bool_()), [(1, False)], '{"1":false}'),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "value", "text"), ARROW_VALUES, ids=[f"{n} {case[0]}" for n, case in enumerate(ARROW_VALUES)]
)
def test_arrow_values_are_json_without_loss(kind: pa.DataType, value: Any, text: str) -> None:
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    whole = pa.array([None, value, value, None, value], storage)
    column = pa.ExtensionArray.from_storage(kind, whole) if storage is not kind else whole
    check(pa.schema([("c", kind)]))
    found = [row.decode() for row in rows_of(pa.record_batch([column], ["c"]))]
    assert found == [f'{{"c":{one}}}' for one in ("null", text, text, "null", text)]
    assert [json.loads(row).keys() for row in found] == [{"c"}] * 5
    for start in range(5):  # columns of a batch begin in the middle of others
        cut = pa.record_batch([column.slice(start, 2)], ["c"])
        assert [row.decode() for row in rows_of(cut)] == found[start : start + 2]


def test_arrow_time_has_the_end_of_the_day_and_what_is_out_of_range_breaks_its_row() -> None:
    day = pa.array([86_400_000, None, 86_400_001], pa.int32()).cast(pa.time32("ms"))
    dates = pa.array([None, 2**31 - 1, 0], pa.int32()).cast(pa.date32())
    first, second, third = rows_of(pa.RecordBatch.from_arrays([day, dates], ["t", "d"]))
    assert json.loads(first) == {"t": "24:00:00.000", "d": None}
    for row in (second, third):
        with pytest.raises(json.JSONDecodeError):
            json.loads(row)


@pytest.mark.parametrize("mark", ["legacyDateTime=", "legacyINT96=", "version=2.4.8", "version=3.5.0"])
def test_parquet_dates_of_the_hybrid_calendar_are_no_dates(mark: str) -> None:
    def written(table: pa.Table) -> io.BytesIO:
        name, _, value = mark.partition("=")
        return io.BytesIO(parquet_file(table.replace_schema_metadata({f"org.apache.spark.{name}": value})))

    old, modern = datetime(1500, 1, 10, tzinfo=UTC), mark == "version=3.5.0"
    table = pa.table({"d": [old.date(), date(2020, 1, 1)], "t": pa.array([old] * 2, pa.timestamp("us", "UTC"))})
    ((_, found),) = parquet.rows(written(table), start=0, end=2)
    first, second = map(json.loads, found)
    assert (first["d"] == "1500-01-10", second["d"]) == (modern, "2020-01-01")
    assert first["t"].startswith("1500-01-10 00:00:00.000000Z")
    with nullcontext() if modern else pytest.raises(UnfitError, match="'s'"):
        parquet.count(written(pa.table({"s": [{"d": old.date()}]})))


def test_arrow_names_are_escaped_and_rows_without_columns_are_objects() -> None:
    assert rows_of(pa.record_batch([pa.array([1]), pa.array(["x"])], ['a"', "b"])) == [b'{"a\\"":1,"b":"x"}']
    assert rows_of(pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))) == [b"{}", b"{}"]


def test_arrow_text_that_is_not_utf8_stays_as_it_is() -> None:
    broken = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"], pa.binary()).buffers())
    assert rows_of(pa.record_batch([broken], ["c"])) == [b'{"c":"\xff"}']


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        (pa.schema([("a", pa.int8()), ("b", pa.int8()), ("a", pa.int8())]), "it has two columns of the name 'a'"),
        (pa.schema([("a", pa.struct([("x", pa.int8()), ("x", pa.int8())]))]), "it has two columns of the name 'x'"),
        (pa.schema([("a", pa.map_(pa.float64(), pa.int8()))]), "its column 'a' is map<double, int8>"),
        (pa.schema([("a", pa.dense_union([pa.field("x", pa.int8())]))]), "its column 'a' is dense_union"),
    ],
)
def test_arrow_column_without_a_form_in_json_is_refused(schema: pa.Schema, named: str) -> None:
    with pytest.raises(UnfitError, match=named):
        check(schema)


PIECES = st.lists(
    st.sampled_from(["a", ",", '"x\ny"', '"""q"""', '""', "\n", "\r\n", "\r", "é", "\0", " "]), max_size=14
).map(lambda pieces: "".join(pieces).encode())


@pytest.mark.parametrize("format_", sorted(set(get_args(Format)) - {"avro", "parquet"}))
def test_rows_of_a_file_are_the_same_for_any_block_size_and_start(format_: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "BLOCK", 3)
    monkeypatch.setattr(module, "_MARKED", 5)

    @given(PIECES, st.booleans())
    def check(data: bytes, header: bool) -> None:
        reader = Reader(format_, header)
        found = rows(reader, data)
        with pytest.MonkeyPatch.context() as large:
            large.setattr(module, "BLOCK", 1 << 20)
            assert rows(reader, data) == found
        try:
            counted = reader.count(io.BytesIO(data))
        except UnfitError:
            assert header
            assert not data.splitlines()[0].strip()
            return
        assert counted.rows == len(found)
        for start in range(len(found)):
            some = read(reader, data, start, start + 2, counted.marks)
            assert some == list(enumerate(found))[start : start + 2]

    check()


@given(st.lists(st.lists(st.text("ab,\"\n'", max_size=4), min_size=2, max_size=3), max_size=5))
def test_csv_rows_are_those_of_a_csv_reader(table: list[list[str]]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(table)
    found = rows(CSV, text.getvalue().encode())
    assert [next(csv.reader(io.StringIO(row.decode(), newline=""))) for row in found] == table


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\r\n\r\nb", [b"a", b"", b"b"]),
        (b"\xef\xbb\xbfa\nb\n", [b"a", b"b"]),
        (b'a "b\nc', [b'a "b', b"c"]),
    ],
)
def test_text_file_has_a_row_for_each_line(data: bytes, expected: list[bytes]) -> None:
    assert rows(Reader("text"), data) == expected


def test_csv_header_is_no_row() -> None:
    reader = Reader("csv", header=True)
    found = reader.count(io.BytesIO(b"\xef\xbb\xbfid,name\r\n1,a\n"))
    assert (found.rows, found.header) == (1, b"id,name")
    assert [reader.count(io.BytesIO(data)).rows for data in (b"", b"id,name")] == [0, 0]
