"""The pipeline file and the suite that ``sluice init`` drafts from a sample."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.fixtures.golden import Golden

from sluice.draft.draft import Draft, draft, name_for
from sluice.draft.sample import Sampled
from sluice.errors import ConfigError
from sluice.pipeline import load
from sluice.pipeline.suite import Suite


def drafted(*values: bytes | None, keys: list[bytes] | None = None) -> Draft:
    records = [Sampled(0, n, 1_767_225_600_000 + n, keys[n] if keys else None, v) for n, v in enumerate(values)]
    return draft(records, topic="shop.Orders", name="orders", connection="kafka_default")


def orders(count: int, **more: object) -> list[bytes]:
    rows = [{"id": n, "shop": "a", "placed_at": f"2026-01-{n + 1:02d}T00:00:00Z", **more} for n in range(count)]
    return [json.dumps(row).encode() for row in rows]


def test_draft_is_a_pipeline_and_a_suite_that_a_run_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    folder = tmp_path / "pipelines"
    folder.mkdir()
    monkeypatch.setenv("SLUICE_PIPELINES", str(folder))
    made = drafted(*orders(3, **{"order": 1, "a b": 2.5}), b'{"id": 7', None)
    assert made.write(folder) == [folder / "orders.yaml", tmp_path / "expectations" / "orders.json"]
    spec = load("orders")
    assert spec.decode.config.names == ["id", "shop", "placed_at", "order", "a b"]
    assert "`a b` AS a_b" in (spec.transform.sql or "")
    assert "`order`," in (spec.transform.sql or "")
    suite = Suite.of(spec)
    assert suite is not None
    assert {(e["kwargs"]["column"], e["severity"]) for e in suite.expectations} == {
        ("id", "critical"), ("id", "warning"), ("shop", "warning"), ("placed_at", "warning"), ("order", "warning"),
        ("a_b", "warning"),
    }  # fmt: skip
    assert (made.key, made.event_time) == ("id", "placed_at")
    golden("init", made.pipeline)
    assert all(f"#   {doubt}" in made.pipeline for doubt in made.doubts)
    assert '{"id": 7' not in made.pipeline, "values of records stay in the topic"


@pytest.mark.parametrize("topic", ["null", "true", "on", "2024", "1e5", "a-b"])
def test_draft_of_a_topic_with_a_yaml_word_as_its_name_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    folder = tmp_path / "pipelines"
    monkeypatch.setenv("SLUICE_PIPELINES", str(folder))
    values = [Sampled(0, n, 0, None, value) for n, value in enumerate(orders(3))]
    made = draft(values, topic=topic, name=name_for(topic), connection="kafka_default")
    made.write(folder)
    assert load(made.name).source.config.streams == [topic]


def test_renamed_columns_are_unique(tmp_path: Path) -> None:
    names = ["имя", "größe", "Price ($)", "Price (€)", "A B", "a_b", "a-b", "Price__2", "%"]
    made = drafted(*[json.dumps(dict.fromkeys(names, n)).encode() for n in range(3)])
    sql = load(str(made.write(tmp_path / "pipelines")[0])).transform.sql or ""
    columns = [line.strip().rstrip(",").rpartition(" AS ")[2].strip("`") for line in sql.splitlines()[1:-2]]
    assert columns == ["имя", "größe", "Price_", "Price__3", "A_B_2", "a_b", "a_b_3", "Price__2", "_"]
    suite = json.loads(made.suite or "")
    assert {e["kwargs"]["column"] for e in suite["expectations"]} == set(columns)
    assert "A B to A_B_2" in "\n".join(made.doubts)


def test_doubts_about_many_fields_are_one_line() -> None:
    some = {f"n{k}": None for k in range(90)} | {f"e{k}": {} for k in range(3)}
    doubts = drafted(*[json.dumps({"id": n, **some}).encode() for n in range(3)]).doubts
    (nulls,) = [doubt for doubt in doubts if "null" in doubt]
    assert nulls.startswith("90 fields")
    assert all(f" n{k}," in f"{nulls}," for k in range(90)), "the file has each of them"
    assert sum("is an empty object" in doubt for doubt in doubts) == 3, "a few are a line each"


@pytest.mark.parametrize(("parts", "said"), [(20, False), (50, True)])
def test_more_fields_than_spark_takes_are_the_first_doubt(parts: int, said: bool) -> None:
    record = {f"o{n}": {f"f{k}": k for k in range(30)} for n in range(parts)}
    doubts = drafted(*[json.dumps(record).encode()] * 3).doubts
    assert any("1,500 fields" in doubt and "rescue: true" in doubt for doubt in doubts[:1]) is said


def test_draft_overwrites_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "pipelines"
    made = drafted(*orders(3))
    made.write(folder)
    (folder / "orders.yaml").write_text("mine")
    for gone in (None, tmp_path / "expectations" / "orders.json"):
        if gone:
            gone.unlink()
        with pytest.raises(ConfigError, match="orders"):
            made.write(folder)
    assert (folder / "orders.yaml").read_text() == "mine"
    assert not (tmp_path / "expectations" / "orders.json").exists(), "half a draft is none"


@pytest.mark.parametrize(
    "values",
    [[], [b"a,b", b"c,d"], [b"\0\0\0\0\1abc", b"\0\0\0\0\1abd"], [b"{}", b"{}"], [b"[1]", b"2", b"NaN", b'{"a": 1}'],
     [None, None]],
    ids=["none", "csv", "registry", "empty", "others", "null"],
)  # fmt: skip
def test_records_without_json_objects_are_drafted_as_text(
    tmp_path: Path, golden: Golden, values: list[bytes | None]
) -> None:
    made = drafted(*values)
    golden("init", "\n".join(made.doubts))
    (file, *rest) = made.write(tmp_path / "pipelines")
    assert rest == []
    assert load(str(file)).decode.text is not None


def test_key_of_a_draft_is_unique_in_the_sample() -> None:
    doubled = [b'{"id": 1, "n": 1}', b'{"id": 1, "n": 2}']
    assert drafted(*doubled).key is None
    assert drafted(b'{"id": 1}').key is None, "one record says nothing"
    assert drafted(b'{"id": 1}', b'{"id": null}').key is None
    assert drafted(b'{"a_id": 1, "b_id": 5}', b'{"a_id": 2, "b_id": 6}', keys=[b"5", b"6"]).key == "b_id"


def test_pipeline_is_named_after_its_topic() -> None:
    for topic, name in (("flights", "flights"), ("shop.Orders", "shop_orders"), ("_x-", "x"), ("2026", "t_2026")):
        assert name_for(topic) == name
    assert name_for("a" * 99) == "a" * 63
