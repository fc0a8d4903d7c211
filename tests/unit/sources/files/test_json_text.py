"""Arrow columns as JSON: each value, with all its digits, wherever a column was cut."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from sluice.sources.files.json_text import UnfitError, check, rows_of

INF = float("inf")
CASES: list[tuple[pa.DataType, Any, str]] = [
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


@pytest.mark.parametrize(("kind", "value", "text"), CASES, ids=[f"{n} {case[0]}" for n, case in enumerate(CASES)])
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
