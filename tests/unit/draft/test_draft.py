"""The pipeline file and the suite that ``sluice init`` drafts from a sample, and the types of its fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.golden import Golden

from sluice.decoders.ddl import check_ddl
from sluice.draft.draft import Draft, draft, name_for
from sluice.draft.infer import Number, Seen, quoted
from sluice.draft.sample import Sampled, stretches
from sluice.errors import ConfigError
from sluice.pipeline import load
from sluice.pipeline.suite import Suite
from sluice.sources.state import PartitionState


def drafted(*values: bytes | None, keys: list[bytes] | None = None, topic: str = "shop.Orders") -> Draft:
    records = [Sampled(0, n, 1_767_225_600_000 + n, keys[n] if keys else None, v) for n, v in enumerate(values)]
    return draft(records, topic=topic, name=name_for(topic).removeprefix("shop_"), connection="kafka_default")


def orders(count: int, **more: object) -> list[bytes]:
    rows = [{"id": n, "shop": "a", "placed_at": f"2026-01-{n + 1:02d}T00:00:00Z", **more} for n in range(count)]
    return [json.dumps(row).encode() for row in rows]


def test_draft_is_a_pipeline_and_a_suite_that_a_run_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    folder = tmp_path / "pipelines"
    monkeypatch.setenv("SLUICE_PIPELINES", str(folder))
    made = drafted(*orders(3, **{"order": 1, "a b": 2.5}), b'{"id": 7', None)
    assert made.write(folder) == [folder / "orders.yaml", tmp_path / "expectations" / "orders.json"]
    spec: Any = load("orders")
    assert spec.decode.config.names == ["id", "shop", "placed_at", "order", "a b"]
    assert ("`a b` AS a_b" in spec.transform.sql, "`order`," in spec.transform.sql) == (True, True)
    suite: Any = Suite.of(spec)
    warned = [(column, "warning") for column in ("id", "shop", "placed_at", "order", "a_b")]
    assert {(e["kwargs"]["column"], e["severity"]) for e in suite.expectations} == {("id", "critical"), *warned}
    assert (made.key, made.event_time) == ("id", "placed_at")
    golden("init", made.pipeline)
    assert all(f"#   {doubt}" in made.pipeline for doubt in made.doubts)
    assert '{"id": 7' not in made.pipeline, "values of records stay in the topic"


@pytest.mark.parametrize("topic", ["null", "true", "on", "2024", "1e5", "a-b"])
def test_draft_of_a_topic_with_a_yaml_word_as_its_name_loads(tmp_path: Path, topic: str) -> None:
    file, _ = drafted(*orders(3), topic=topic).write(tmp_path / "pipelines")
    assert load(file).source.config.streams == [topic]


def test_draft_renames_columns_to_unique_names(tmp_path: Path) -> None:
    names = ["имя", "größe", "Price ($)", "Price (€)", "A B", "a_b", "a-b", "Price__2", "%"]
    made = drafted(*[json.dumps(dict.fromkeys(names, n)).encode() for n in range(3)])
    sql = load(made.write(tmp_path / "pipelines")[0]).transform.sql or ""
    columns = [line.strip().rstrip(",").rpartition(" AS ")[2].strip("`") for line in sql.splitlines()[1:-2]]
    assert columns == ["имя", "größe", "Price_", "Price__3", "A_B_2", "a_b", "a_b_3", "Price__2", "_"]
    suite = json.loads(made.suite or "")
    assert {e["kwargs"]["column"] for e in suite["expectations"]} == set(columns)
    assert "A B to A_B_2" in "\n".join(made.doubts)


def test_draft_has_one_line_for_doubts_about_many_fields() -> None:
    some = {f"n{k}": None for k in range(90)} | {f"e{k}": {} for k in range(3)}
    doubts = drafted(*[json.dumps({"id": n, **some}).encode() for n in range(3)]).doubts
    (nulls,) = [doubt for doubt in doubts if "null" in doubt]
    assert nulls.startswith("90 fields")
    assert all(f" n{k}," in f"{nulls}," for k in range(90)), "the file has each of them"
    assert sum("is an empty object" in doubt for doubt in doubts) == 3, "a few are a line each"


@pytest.mark.parametrize(("parts", "said"), [(20, False), (50, True)])
def test_draft_doubts_more_fields_than_spark_takes_first(parts: int, said: bool) -> None:
    record = {f"o{n}": {f"f{k}": k for k in range(30)} for n in range(parts)}
    doubts = drafted(*[json.dumps(record).encode()] * 3).doubts
    assert any("1,500 fields" in doubt and "rescue: true" in doubt for doubt in doubts[:1]) is said


def test_draft_overwrites_nothing(tmp_path: Path) -> None:
    made = drafted(*orders(3))
    file, suite = made.write(tmp_path / "pipelines")
    file.write_text("mine")
    for _ in range(2):
        with pytest.raises(ConfigError, match="orders"):
            made.write(file.parent)
        suite.unlink(missing_ok=True)
    assert (file.read_text(), suite.exists()) == ("mine", False), "half a draft is none"


@pytest.mark.parametrize(
    "values",
    [[], [b"a,b", b"c,d"], [b"\0\0\0\0\1abc", b"\0\0\0\0\1abd"], [b"{}", b"{}"], [b"[1]", b"2", b"NaN", b'{"a": 1}'],
     [None, None]],
    ids=["none", "csv", "registry", "empty", "others", "null"],
)  # fmt: skip
def test_draft_of_records_without_json_objects_is_text(
    tmp_path: Path, golden: Golden, values: list[bytes | None]
) -> None:
    made = drafted(*values)
    golden("init", "\n".join(made.doubts))
    (file, *rest) = made.write(tmp_path / "pipelines")
    assert rest == []
    assert load(str(file)).decode.text is not None


def test_draft_has_a_key_that_is_unique_in_the_sample() -> None:
    doubled = [b'{"id": 1, "n": 1}', b'{"id": 1, "n": 2}']
    assert drafted(*doubled).key is None
    assert drafted(b'{"id": 1}').key is None, "one record says nothing"
    assert drafted(b'{"id": 1}', b'{"id": null}').key is None
    assert drafted(b'{"a_id": 1, "b_id": 5}', b'{"a_id": 2, "b_id": 6}', keys=[b"5", b"6"]).key == "b_id"


def test_draft_is_named_after_its_topic() -> None:
    names = {"flights": "flights", "shop.Orders": "shop_orders", "_x-": "x", "2026": "t_2026", "a" * 99: "a" * 63}
    assert {topic: name_for(topic) for topic in names} == names


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
        (['"x"', "1", "[1]"], "STRING", "1 of 3 would be refused"),
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
def test_draft_infers_types_that_the_decoder_takes(values: list[str], kind: str | None, doubt: str) -> None:
    doubts: list[str] = []
    assert seen(*values).type("f", doubts) == kind
    assert (doubt or "") in "; ".join(doubts)
    assert bool(doubts) == (doubt is not None)
    if kind is not None:
        check_ddl(f"f {kind}")


def test_draft_leaves_out_names_that_no_column_can_have() -> None:
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
def test_draft_recognizes_unix_times_by_name_and_size(value: str, function: str | None) -> None:
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
def test_draft_samples_the_oldest_and_newest_records(sizes: list[int], records: int, read: list[Any]) -> None:
    states = {n: PartitionState(0, size) for n, size in enumerate(sizes)}
    assert list(stretches(states, records)) == read
    assert list(stretches({0: PartitionState(90, 100)}, 50)) == [(0, 90, 100)], "from the beginning of the log"
