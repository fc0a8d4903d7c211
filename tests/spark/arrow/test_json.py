"""JSON on the Arrow path: long chunks, and names that JSON escapes; the rest is in the contract of decoders."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from sluice_spark.arrow.json import JsonChunks

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


@pytest.mark.parametrize("other", ["x", "In a Name, __x"])
def test_arrow_json_sets_aside_each_doubtful_record_of_a_long_chunk(spark: SparkSession, other: str) -> None:
    good = [f'{{"n":{n},"z":"{other}"}}'.encode() for n in range(1000)]
    schema = T.StructType.fromDDL("n INT")
    found = JsonChunks(schema).decode(good)
    assert found.kept is None
    assert found.columns.column("n").to_pylist() == list(range(1000))
    odd = [
        [b'{"n":1,"z":NaN}'], [b'{"n":1,"z":-Inf}'], [b'{"n":1,"__sluice_end":0}'], [b'{"n":1}\n{"n":2}'],
        [b'{"n":1}{"n":2}', b""], [b"", b'{"n":1}{"n":2}'], [b'{"n":1} {"n":2}', b" "], [b'{"n":1}\n'],
        [b'{"n":1}{"n":2}', b'{"n":1,"z":', b'{"a":1}}'], [b'{"n":1}{"n":2}', b'{"n":1,"z":{"a":1}', b',"y":1}'],
    ]  # fmt: skip
    for place in (0, 1, 500, 1000, 1001):
        for bad in odd:
            for width in range(2):  # its bytes have even and odd places in the chunk
                values = [b'{"n":1%s}' % (b" " * width), *good]
                values[place:place] = bad
                kept = JsonChunks(schema).decode(values).kept  # a new one has no suspicion yet
                assert kept.tolist() == [n for n in range(len(values)) if not place <= n < place + len(bad)]


def test_arrow_json_decodes_names_that_json_escapes(spark: SparkSession) -> None:
    inner = T.StructType([T.StructField("e\tf", T.IntegerType())])
    chunks = JsonChunks(T.StructType([T.StructField('a"b', T.IntegerType()), T.StructField("c\\d", inner)]))
    values = [b'{"a\\"b":1,"c\\\\d":{"e\\tf":2}}', b'{"a\\"b":"x"}', b"{"]
    found = chunks.decode(values)
    assert found.kept.tolist() == [0]
    assert found.columns.to_pylist() == [{'a"b': 1, "c\\d": {"e\tf": 2}}]
