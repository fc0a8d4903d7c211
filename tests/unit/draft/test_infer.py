"""What types fields get, from values as producers send them, and what is said not to be certain."""

from __future__ import annotations

import json

import pytest

from sluice.decoders.ddl import check_ddl
from sluice.draft.infer import Number, Seen, quoted


def seen(*values: str) -> Seen:
    found = Seen()
    for value in values:
        found.add(json.loads(value, parse_float=Number))
    return found


@pytest.mark.parametrize(
    ("values", "kind", "doubt"),
    [
        (["1", "-2", "null"], "BIGINT", None),
        (["9223372036854775807"], "BIGINT", None),
        (["9223372036854775808"], "DECIMAL(38,0)", "beyond BIGINT"),
        (["1" * 39], "STRING", "beyond 38 digits"),
        (["0.1", "1"], "DOUBLE", None),
        (["0.25", "1"], "DOUBLE", "amount of money"),
        (['{"total_price": 0.1}'], "STRUCT<total_price: DOUBLE>", "amount of money"),
        (["0.123456", "1e-3"], "DOUBLE", None),
        (["1.2345678901234567"], "DECIMAL(38,16)", "more digits"),
        (["9007199254740993", "0.5"], "DECIMAL(38,1)", "more digits"),
        (["true", "false"], "BOOLEAN", None),
        (["null", "null"], "STRING", "is null in the whole sample"),
        (['"x"', "1", "true"], "STRING", "several kinds"),
        (["1.5", "2", '"high"'], "DOUBLE", "1 of 3 would be refused"),
        (['"x"', '"y"', "1.5"], "STRING", "1 of 3 would be refused"),
        (['"2026-01-01T12:00:00Z"', '"2026-01-01 12:00"'], "TIMESTAMP", "without a zone"),
        (['"2026-01-01T12:00:00.123+02:00"'], "TIMESTAMP", None),
        (['"2026-01-01"', '"2026-12-31"'], "DATE", None),
        (['"2026-01-01"', '"2026-12-31T00:00:00Z"'], "TIMESTAMP", None),
        (['"2026-01-01T12:00:00Z"', '"2026-01-02T12:00:00Z"', '""'], "STRING", "1 of 3 texts are no time"),
        (['"2026-02-30"'], "STRING", None),
        (['"0000-01-01"'], "STRING", None),
        (['"٢٠٢٦-٠١-٠١"'], "STRING", None),
        (['{"a": 1}', '{"b": "x"}'], "STRUCT<a: BIGINT, b: STRING>", None),
        (['{"a b": 1, "order": 2}'], "STRUCT<`a b`: BIGINT, `order`: BIGINT>", None),
        (['{"a": 1, "A": 2}', '{"A": 2}'], "STRUCT<A: BIGINT>", "differs from 'A' in case only"),
        (["{}"], "MAP<STRING, STRING>", "empty object"),
        (["[]", "[]"], "ARRAY<STRING>", "empty array"),
        (['[{"p": [1]}, {"q": null}]'], "ARRAY<STRUCT<p: ARRAY<BIGINT>, q: STRING>>", "f[].q: is null"),
        ([json.dumps({f"u{n}": n}) for n in range(60)], "MAP<STRING, BIGINT>", "60 names"),
        (['{"a": 1}', '{"a": 1}', "[1]"], "STRUCT<a: BIGINT>", "1 of 3 would be refused"),
        ([f'{{"a":{"[" * 20}{"]" * 20}}}'], None, "deeper"),
    ],
)  # fmt: skip
def test_a_type_is_one_that_the_decoder_takes_the_values_as(values: list[str], kind: str | None, doubt: str) -> None:
    doubts: list[str] = []
    assert seen(*values).type("f", doubts) == kind
    assert (doubt or "") in "; ".join(doubts)
    assert bool(doubts) == (doubt is not None)
    if kind is not None:
        check_ddl(f"f {kind}")


def test_names_that_no_column_can_have_are_left_out_and_told() -> None:
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
def test_times_since_1970_are_told_from_numbers_by_name_and_size(value: str, function: str | None) -> None:
    for name, doubtful in (("created_at", function is not None), ("amount", False)):
        doubts: list[str] = []
        assert seen(value).type(name, doubts) == "BIGINT"
        assert [doubt.partition("timestamp_")[2].partition("(")[0] for doubt in doubts] == [function] * doubtful
