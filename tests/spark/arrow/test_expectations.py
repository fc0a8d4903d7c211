"""Row rules on Arrow tables: what is not marked breaks none by Spark's own columns, and little else is marked."""

from __future__ import annotations

import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.fixtures.expectations import SCHEMA, drawn, expect, rows

from sluice_spark.arrow.expectations import RowRules
from sluice_spark.arrow.functions import NotInSubsetError
from sluice_spark.arrow.patterns import translated
from sluice_spark.rules.expectations import judged_by

pytestmark = pytest.mark.spark

MORE = "m DECIMAL(28, 10), w DECIMAL(15, 2), y BINARY"
SOME_M = ["0.1", "0.1000000000", "99999.9999999999", "100000", "123456789012345678", "-0.0000000001", "2.5"]
SOME_W = ["0.10", "9999999999999.99", "-9999999999999.99", "5", "0.01", "2.50"]


def wider(row: tuple[Any, ...]) -> tuple[Any, ...]:
    some = random.Random(row[0])
    chosen = (some.choice([None, *map(Decimal, values)]) for values in (SOME_M, SOME_W))
    return (*row, *chosen, some.choice([None, b"", b"\xff\xfe", "ä".encode()]))


@pytest.fixture(scope="module")
def frame(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([wider(row) for row in rows()], f"{SCHEMA}, {MORE}").coalesce(1).persist()


@pytest.fixture(scope="module")
def table(frame: DataFrame) -> pa.Table:
    made: pa.Table = frame.toArrow()
    assert made.schema.field("time").type == pa.timestamp("us", "UTC")
    return made


def compare(
    spark: SparkSession, frame: DataFrame, table: pa.Table, items: Sequence[dict[str, Any]]
) -> dict[str, tuple[int, int]]:
    """Compare both on expectations that are row rules; return, per kind, how many there were and Arrow could judge."""
    judged = [each for each in judged_by(spark, items, frame.schema) if each.rule is not None]
    broken = frame.select("id", *(each.rule.broken.alias(f"r{n}") for n, each in enumerate(judged) if each.rule))
    theirs = broken.toPandas().set_index("id")
    assert list(theirs.index) == table.column("id").to_pylist()
    counted: dict[str, tuple[int, int]] = {}
    for n, each in enumerate(judged):
        had, could = counted.get(each.item["type"], (0, 0))
        counted[each.item["type"]] = (had + 1, could)
        try:
            rules = RowRules.of([each.item], table.schema)
        except NotInSubsetError:
            continue
        counted[each.item["type"]] = (had + 1, could + 1)
        ours, spark_says = np.asarray(rules.broken[0](table), dtype=bool), theirs[f"r{n}"].to_numpy(dtype=bool)
        doubtful = np.zeros(table.num_rows, dtype=bool)
        for of in rules.doubtful:
            doubtful |= np.asarray(of(table), dtype=bool)
        wrong = (ours != spark_says) & ~doubtful
        assert not wrong.any(), (each.item, table.filter(pa.array(wrong)).to_pylist())
        marked = rules.marked(table)
        expected = ours | doubtful
        assert (marked is None and not expected.any()) or (marked == expected).all()
    return counted


SETTINGS: dict[str, Any] = {
    "deadline": None,
    "derandomize": True,
    "phases": [Phase.explicit, Phase.generate],  # the message names one expectation: there is nothing to shrink
    "suppress_health_check": list(HealthCheck),
}


@pytest.mark.parametrize("examples", [6, pytest.param(160, marks=pytest.mark.long)])
def test_arrow_rules_break_for_the_same_rows(
    spark: SparkSession, frame: DataFrame, table: pa.Table, examples: int
) -> None:
    @settings(max_examples=examples, **SETTINGS)
    @given(items=drawn())
    def compared(items: tuple[dict[str, Any], ...]) -> None:
        compare(spark, frame, table, items)

    compared()


BOUNDS = [0.1, 0.01, 2.5, 5, 0.3333333333333333, 1e300, -1e300, 99999.9999999999, 9999999999999.99, 2**53 + 1, -0.0]
ON_DECIMALS = [
    expect("values_to_be_between", column=name, **{side: bound, strict: flag})
    for name in ("m", "w", "n")
    for bound in BOUNDS
    for side, strict in (("min_value", "strict_min"), ("max_value", "strict_max"))
    for flag in (True, False)
]
SETS: list[list[Any]] = [
    [0.1, None], [0.1], [2.5, 5], [5], [9999999999999.99], [123456789012345678], [2**53], [*range(12), 2.5],
]  # fmt: skip
OTHERS = [
    *(expect(f"values_to_{way}", column=name, value_set=some)
      for way in ("be_in_set", "not_be_in_set") for name in ("m", "w", "d", "l") for some in SETS),
    expect("values_to_be_in_set", column="d", value_set=[float(n) for n in range(20)]),
    expect("values_to_be_in_set", column="i", value_set=[*range(20), 2**40]),
    expect("value_lengths_to_equal", column="y", value=2),
    expect("value_lengths_to_be_between", column="y", max_value=1),
    expect("value_lengths_to_be_between", column="s", max_value=2**40),
    expect("values_to_be_between", column="day", min_value="1700-01-01", max_value="2024-02-29"),
    expect("values_to_be_between", column="time", min_value="1969-01-01", max_value="2024-02-29"),
    expect("values_to_be_between", column="day", max_value="2024-02-29T00:00:00+01:00"),
    expect("values_to_be_between", column="time", max_value="2024-02-29T12:30:00.000000Z"),
    expect("pair_values_a_to_be_greater_than_b", column_A="m", column_B="m", or_equal=True),
    expect("pair_values_to_be_equal", column_A="time", column_B="time"),
    expect("values_to_be_null", column="y"),
    expect("values_to_match_regex", column="s", regex="^[a-z]+$"),
    expect("values_to_not_match_regex", column="s", regex="b"),
    expect("values_to_match_regex_list", column="s", regex_list=["^a", r"\d"], match_on="all"),
    expect("values_to_not_match_regex_list", column="s", regex_list=["^a", r"\d"]),
    *(expect("pair_values_to_be_in_set", column_A=a, column_B="b", value_pairs_set=pairs, ignore_row_if=ignored)
      for a, pairs in (("d", [[5, True], [None, None]]), ("w", [[0.1, False]]), ("l", [[2**53 + 1, None]]))
      for ignored in ("neither", "either_value_is_missing")),
    *(expect("values_to_not_be_null", column="s", row_condition=where, condition_parser="spark")
      for where in ("d > 0", "d <= 2.5 AND NOT b", "w=5", "m < 0", "length(s) > 1 OR t IS NULL", "day > to_date(time)",
                    "l BETWEEN 0 AND 5", "S = 'abc'", "coalesce(i, 0) = 0")),
]  # fmt: skip


def test_arrow_rules_at_edges_of_values_and_conditions(spark: SparkSession, frame: DataFrame, table: pa.Table) -> None:
    counted = compare(spark, frame, table, [*ON_DECIMALS, *OTHERS])
    assert counted["expect_column_values_to_be_between"] == (len(ON_DECIMALS) + 4, len(ON_DECIMALS) + 4)
    assert counted["expect_column_values_to_not_be_null"] == (9, 9)
    assert len(counted) == 14
    assert all(could for _, could in counted.values())


@pytest.mark.parametrize(
    ("item", "why"),
    [
        (expect("values_to_be_between", column="f", min_value=0), "column f, which is float|column f is float"),
        (expect("values_to_be_in_set", column="f", value_set=[0]), "0 is compared with column f"),
        (expect("values_to_be_in_set", column="i", value_set=[2.5]), "2.5 is compared with column i"),
        (expect("values_to_be_in_set", column="d", value_set=[-0.0]), "-0.0 is compared with column d"),
        (expect("values_to_be_in_set", column="d", value_set=[2**53 + 1]), "is compared with column d"),
        (expect("values_to_be_in_set", column="day", value_set=["2024-02-29"]), "is compared with column day"),
        (expect("values_to_be_in_set", column="s", value_set=["\ud800"]), "is no text"),
        (expect("values_to_be_between", column="time", min_value="2024-02-29T12:30:00"), "has no zone"),
        (expect("values_to_be_between", column="day", min_value="1582-10-04"), "1582-10-04 is before 1700"),
        (expect("pair_values_to_be_equal", column_A="i", column_B="d"), "column i is int32 and column d is double"),
        (expect("pair_values_to_be_equal", column_A="f", column_B="f"), "column f is float"),
        (expect("values_to_not_be_null", column="i", row_condition="i + 1 > 0"), "arithmetic or a backslash"),
        (expect("values_to_not_be_null", column="i", row_condition="s = '\\n'"), "arithmetic or a backslash"),
        (expect("values_to_not_be_null", column="i", row_condition="deep.inner > 0"), "it has deep.inner"),
        (expect("values_to_not_be_null", column="i", row_condition="s LIKE 'a%'"), "it has"),
        (expect("values_to_match_regex", column="s", regex=r"\bx"), "may mean something else"),
    ],
)
def test_arrow_rules_leave_what_they_might_misjudge_to_spark(table: pa.Table, item: dict[str, Any], why: str) -> None:
    with pytest.raises(NotInSubsetError, match=rf"^{item['type']}: .*({why})"):
        RowRules.of([item], table.schema)


ATOM = st.sampled_from(
    ["a", "b", "0", "-", " ", "'", ".", r"\.", r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", "[a-c]", "[^a]", "[^ab0-9]",
     r"[\w.-]", r"[^\s@]", r"[-a\d]", r"\\", r"\$", "[.$]", "@", "_", "^", "$"]
)  # fmt: skip
TIMES = st.sampled_from(["", "", "", "*", "+", "?", "{2}", "{1,}", "{0,2}", "*?", "??", "{2,3}?"])
PIECE = st.builds(lambda atom, times: atom if atom in "^$" else atom + times, ATOM, TIMES)
PLAIN = st.lists(PIECE, max_size=4).map("".join)
GROUP = st.builds(
    lambda opened, one, other, times: f"{opened}{one}|{other}){times}",
    st.sampled_from(["(", "(?:"]),
    PLAIN,
    PLAIN,
    TIMES,
)
PATTERN = st.lists(st.one_of(PIECE, PLAIN, GROUP), min_size=1, max_size=4).map("".join)
TEXT = st.text(alphabet="ab01- '._@$\\é€😀\u00a0\t\n\r\x0b\u0085\u2028K\u212a", max_size=6)


@settings(max_examples=4, **SETTINGS)
@given(patterns=st.lists(PATTERN, min_size=150, max_size=150), texts=st.lists(TEXT, min_size=60, max_size=60))
def test_arrow_pattern_is_found_in_the_same_texts(spark: SparkSession, patterns: list[str], texts: list[str]) -> None:
    kept = []
    for pattern in patterns:
        try:
            translated(pattern)
        except NotInSubsetError:
            continue
        kept.append(pattern)
    assert len(kept) >= len(patterns) // 2
    texts = ["", "a", "ab", "a\n", "é", *texts]
    frame = spark.createDataFrame([(n, text) for n, text in enumerate(texts)], "id INT, s STRING").coalesce(1)
    found = frame.orderBy("id").select(F.array(*(F.col("s").rlike(pattern) for pattern in kept))).collect()
    table = pa.table({"s": texts})
    for n, pattern in enumerate(kept):
        rules = RowRules.of([expect("values_to_match_regex", column="s", regex=pattern)], table.schema)
        ours = ~np.asarray(rules.broken[0](table), dtype=bool)
        doubtful = [np.asarray(of(table), dtype=bool) for of in rules.doubtful]
        wrong = (ours != np.array([row[0][n] for row in found])) & ~np.logical_or.reduce([ours & False, *doubtful])
        assert not wrong.any(), (pattern, [text for text, is_wrong in zip(texts, wrong, strict=True) if is_wrong])


@pytest.mark.parametrize(
    "pattern",
    ["(?i)a", "a*+", "a++", "(a)\\1", "(?=a)", "(a*)*", "(^a)+", "[a&&b]", "[[a]", "[a-\\d]", "\\b", "\\pL", "é", "a**",
     "*a", "(a", "a)", "{2}", "a{,2}", "a{1001}", "[]", "[^]", "\\x41", "\\Qa\\E", "[\\S]", "[a", "]", "}", "[z-a]"],
)  # fmt: skip
def test_arrow_leaves_other_patterns_to_spark(pattern: str) -> None:
    with pytest.raises(NotInSubsetError, match="the pattern"):
        translated(pattern)


@pytest.mark.parametrize(
    ("digits", "scale", "bound"), [(38, 18, 1e20), (38, 18, -1e25), (38, 0, 1e38), (38, 0, 1e20), (20, 2, 1e30)]
)
def test_arrow_rules_leave_a_bound_of_too_many_digits_to_spark(digits: int, scale: int, bound: float) -> None:
    schema = pa.schema([("m", pa.decimal128(digits, scale))])
    item = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "m", "max_value": bound}}
    if abs(bound) < 10.0 ** (38 - scale) or digits < 38:
        (broken,) = RowRules.of([item], schema).broken
        assert broken(pa.table({"m": [Decimal(1)]}, schema)).to_pylist() == [False]
    else:
        with pytest.raises(NotInSubsetError, match="is compared with column m, which is decimal128"):
            RowRules.of([item], schema)
