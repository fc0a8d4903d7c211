"""What a suite's file must be, before Great Expectations is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.specs import PIPELINE, expectation, write_suite

from sluice.errors import ConfigError
from sluice.pipeline import load
from sluice.pipeline.suite import Suite

WRONG = [
    (expectation(severity="fatal"), "severity 'fatal' is unknown; write one of: critical, warning, info"),
    (expectation(severity="Warning"), "severity 'Warning' is unknown"),
    (expectation(severity=None), "severity None is unknown"),
    (expectation(severty="warning"), "unknown key 'severty'; did you mean 'severity'?"),
    (expectation(kwargs={"column": "id", "severity": "warning"}), "'severity' belongs beside kwargs, not in it"),
    (expectation(meta={"scope": "tabel"}), "meta.scope 'tabel' is unknown; write one of: slice, table"),
    (expectation(meta="table"), "meta is not an object"),
    (expectation(meta={"split": "yes"}), "meta.split 'yes' is neither true nor false"),
    (expectation(meta={"split": True}, severity="info"), "only rows that break a critical expectation are split off"),
    (expectation(kwargs=["id"]), "kwargs, an object, is missing"),
    ({"expectation_type": "expect_x", "kwargs": {}}, "type, the name of the expectation, is missing"),
    ("expect_x", "expectation 2 is not an object"),
]


@pytest.mark.parametrize(("wrong", "told"), WRONG, ids=[t[:30] for _, t in WRONG])
def test_what_no_suite_may_say(tmp_path: Path, wrong: Any, told: str) -> None:
    file = write_suite(tmp_path, {"name": "s", "expectations": [expectation(), wrong]})
    with pytest.raises(ConfigError) as caught:
        Suite.of(load(file))
    assert told in caught.value.what
    assert "expectation 2" in caught.value.what
    assert caught.value.state == "nothing was read or written"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "JSONDecodeError"),
        ("[" * 100_000, "RecursionError"),
        ('{"expectations": [], "expectations": []}', "the key 'expectations' appears twice"),
        ('{"expectatoins": []}', "it has no list of expectations"),
        ('{"expectations": [], "nmae": "x"}', "unknown key 'nmae'; did you mean 'name'?"),
        ('{"expectations": [], "suite_parameters": {"a": 1}}', "suite_parameters are not supported"),
    ],
)
def test_what_is_no_suite(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Suite.of(load(write_suite(tmp_path, text)))
    assert told in caught.value.what


def test_a_suite_as_great_expectations_writes_it_is_one(tmp_path: Path) -> None:
    item = expectation(id="a", meta={}, notes=None, rendered_content=[], severity="info")
    suite = Suite.of(load(write_suite(tmp_path, {"name": "", "meta": {}, "notes": None, "expectations": [item]})))
    assert suite is not None
    assert (suite.name, suite.expectations) == ("suite", (item,))


def test_columns_that_are_not_there_are_named_with_the_nearest(tmp_path: Path) -> None:
    kwargs = [
        {"column": "carier"}, {"column": "Carrier"}, {"column_A": "x", "column_B": "carrier"},
        {"column_list": ["_offset", "_ofset"]}, {"column": "carrier.code"}, {"value": 3}, {"column_set": ["_run", "n"]},
    ]  # fmt: skip
    file = write_suite(tmp_path, {"expectations": [{"type": "e", "kwargs": k} for k in kwargs]})
    suite = Suite.of(load(file))
    assert suite is not None
    assert suite.unknown_columns(["carrier", "_offset", "_run"]) == [
        "expectation 1 (e): the transform yields no column 'carier'; did you mean 'carrier'?",
        "expectation 2 (e): the transform yields no column 'Carrier'; did you mean 'carrier'?",
        "expectation 3 (e): the transform yields no column 'x'; its columns are: carrier, _offset, _run",
        "expectation 4 (e): the transform yields no column '_ofset'; did you mean '_offset'?",
        "expectation 7 (e): the transform yields no column 'n'; its columns are: carrier, _offset, _run",
    ]


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("", []),
        (", when: before_commit", ["expectation 2 (expect_column_values_to_not_be_null): meta.scope table needs "
                                   "quality.when: after_commit"]),
    ],
)  # fmt: skip
def test_the_whole_table_is_judged_behind_a_commit_only(tmp_path: Path, keys: str, told: list[str]) -> None:
    suite = {"name": "s", "expectations": [expectation(), expectation(meta={"scope": "table"})]}
    spec = load(write_suite(tmp_path, suite, PIPELINE.replace("suite.json", f"suite.json{keys}")))
    found = Suite.of(spec)
    assert found is not None
    assert found.out_of_reach(spec) == told


def test_who_is_asked_to_split_rows(tmp_path: Path) -> None:
    items = [
        expectation(),
        expectation(severity="warning"),
        expectation(meta={"split": True}),
        expectation(meta={"split": False}),
        expectation(severity="info", meta={"split": False, "owner": "me"}),
    ]
    suite = Suite.of(load(write_suite(tmp_path, {"expectations": items})))
    assert suite is not None
    assert suite.splitting("critical") == {1, 3}
    assert suite.splitting("none") == {3}


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("quality: {split: critical}", "quality.split splits rows by a suite, and there is none"),
        ("quality: {suite: suite.json, split: critical}\nrows: many", "rows: many does not say which record"),
        (
            "quality: {suite: suite.json, split: critical}\ndedupe: {keys: [id], time: at, within: 1h}",
            "beside dedupe rows cannot be split yet",
        ),
        ("quality: {suite: suite.json, split: warning}", "split"),
    ],
)
def test_where_rows_cannot_be_split(tmp_path: Path, keys: str, told: str) -> None:
    plain = PIPELINE.replace("quality: {suite: suite.json}\n", "")
    with pytest.raises(ConfigError, match=told):
        load(write_suite(tmp_path, {"expectations": [expectation()]}, f"{plain}{keys}\n"))
