"""Types of fields from values as producers send them, and doubts."""

from __future__ import annotations

import json

import pytest

from sluice.decoders.ddl import check_ddl
from sluice.draft.infer import Number, Seen, quoted
from sluice.draft.sample import stretches
from sluice.sources.state import PartitionState


def seen(*values: str) -> Seen:
    found = Seen()
    for value in values:
        found.add(json.loads(value, parse_float=Number))
    return found


@pytest.mark.parametrize(
    ("values", "kind", "doubt"),
    [
        (["1", "-2", "null"], "BIGINT", None),
        (["9223372036854775808"], "DECIMAL(38,0)", "beyond BIGINT"),
        (["1" * 39], "STRING", "beyond 38 digits"),
        (["0.25", "1"], "DOUBLE", "amount of money"),
        (['{"total_price": 0.1}'], "STRUCT<total_price: DOUBLE>", "amount of money"),
        (["1.2345678901234567"], "DECIMAL(38,16)", "more digits"),
        (["null", "null"], "STRING", "is null in the whole sample"),
        (['"x"', "1", "true"], "STRING", "several kinds"),
        (["1.5", "2", '"high"'], "DOUBLE", "1 of 3 would be refused"),
        (['"x"', '"y"', "1.5"], "STRING", "1 of 3 would be refused"),
        (['"2026-01-01T12:00:00Z"', '"2026-01-01 12:00"'], "TIMESTAMP", "without a zone"),
        (['"2026-01-01"', '"2026-12-31T00:00:00Z"'], "TIMESTAMP", None),
        (['"2026-01-01T12:00:00Z"', '"2026-01-02T12:00:00Z"', '""'], "STRING", "1 of 3 texts are no time"),
        (['"2026-02-30"'], "STRING", None),
        (['"0000-01-01"'], "STRING", None),
        (['"٢٠٢٦-٠١-٠١"'], "STRING", None),
        (['{"a": 1}', '{"b": "x"}'], "STRUCT<a: BIGINT, b: STRING>", None),
        (['{"a b": 1, "order": 2}'], "STRUCT<`a b`: BIGINT, `order`: BIGINT>", None),
        (['{"a": 1, "A": 2}', '{"A": 2}'], "STRUCT<A: BIGINT>", "differs from 'A' in case only"),
        (["{}"], "MAP<STRING, STRING>", "empty object"),
        (['[{"p": [1]}, {"q": null}]'], "ARRAY<STRUCT<p: ARRAY<BIGINT>, q: STRING>>", "f[].q: is null"),
        ([json.dumps({f"u{n}": n}) for n in range(60)], "MAP<STRING, BIGINT>", "60 names"),
        (['{"a": 1}', '{"a": 1}', "[1]"], "STRUCT<a: BIGINT>", "1 of 3 would be refused"),
        ([f'{{"a":{"[" * 20}{"]" * 20}}}'], None, "deeper"),
    ],
)  # fmt: skip
def test_inferred_type_is_one_that_the_decoder_takes(values: list[str], kind: str | None, doubt: str) -> None:
    doubts: list[str] = []
    assert seen(*values).type("f", doubts) == kind
    assert (doubt or "") in "; ".join(doubts)
    assert bool(doubts) == (doubt is not None)
    if kind is not None:
        check_ddl(f"f {kind}")


def test_names_that_no_column_can_have_are_left_out() -> None:
    doubts: list[str] = []
    found = seen('{"_topic": 1, "__sluice_x": 1, "": 1, "a\\u0000": 1, "ok": 1}', '{"_RUN": 1, "a.b": 1, "`": 1}')
    columns = dict(found.columns("", doubts))
    assert columns == {"ok": "BIGINT", "a.b": "BIGINT", "`": "BIGINT"}
    assert len(doubts) == 5
    ddl = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())
    assert check_ddl(ddl) == list(columns)


@pytest.mark.parametrize(
    ("value", "function"),
    [("1750000000", "seconds"), ("1750000000000", "millis"), ("1750000000000000", "micros"), ("17500000000", None)],
)
def test_unix_times_are_recognized_by_name_and_size(value: str, function: str | None) -> None:
    for name, doubtful in (("created_at", function is not None), ("amount", False)):
        doubts: list[str] = []
        assert seen(value).type(name, doubts) == "BIGINT"
        assert [doubt.partition("timestamp_")[2].partition("(")[0] for doubt in doubts] == [function] * doubtful


@pytest.mark.parametrize(
    ("sizes", "records", "read"),
    [
        ([10], 100, [(0, 0, 10)]),
        ([100], 10, [(0, 0, 5), (0, 95, 100)]),
        ([100], 1, [(0, 99, 100)]),
        ([0, 4, 100], 20, [(1, 0, 4), (2, 0, 8), (2, 92, 100)]),
        ([100, 100], 4, [(0, 0, 1), (0, 99, 100), (1, 0, 1), (1, 99, 100)]),
        ([0, 0], 4, []),
    ],
)
def test_sample_has_the_oldest_and_newest_records_of_each_partition(
    sizes: list[int], records: int, read: list[tuple[int, int, int]]
) -> None:
    states = {n: PartitionState(0, size) for n, size in enumerate(sizes)}
    assert list(stretches(states, records)) == read


def test_sample_begins_where_the_log_begins() -> None:
    assert list(stretches({0: PartitionState(90, 100)}, 50)) == [(0, 90, 100)]
