"""Suites of expectations: which files are refused before Great Expectations is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.golden import Golden
from tests.fixtures.specs import PIPELINE, expectation, write_suite

from sluice.errors import ConfigError
from sluice.pipeline import load
from sluice.pipeline.suite import Suite


def suite_of(folder: Path, content: Any, pipeline: str = PIPELINE) -> Suite:
    found = Suite.of(load(write_suite(folder, content, pipeline)))
    assert found is not None
    return found


def second(wrong: Any = None, **keys: Any) -> dict[str, Any]:
    """Return a suite whose second expectation is wrong."""
    return {"name": "s", "expectations": [expectation(), wrong or expectation(**keys)]}


REFUSED: dict[str, tuple[Any, str]] = {
    "suite-severity-unknown": (second(severity="fatal"), "'fatal'"),
    "suite-severity-in-capitals": (second(severity="Warning"), "'Warning'"),
    "suite-severity-null": (second(severity=None), "None"),
    "suite-severity-misspelt": (second(severty="warning"), "'severity'"),
    "suite-severity-in-kwargs": (second(kwargs={"column": "id", "severity": "info"}), "'severity'"),
    "suite-scope-unknown": (second(meta={"scope": "tabel"}), "'tabel'"),
    "suite-meta-not-an-object": (second(meta="table"), "meta"),
    "suite-split-not-a-boolean": (second(meta={"split": "yes"}), "meta.split"),
    "suite-split-of-a-hint": (second(meta={"split": True}, severity="info"), "critical"),
    "suite-column-with-a-backtick": (second(kwargs={"column": "a`b"}), "backtick"),
    "suite-kwargs-a-list": (second(kwargs=["id"]), "kwargs"),
    "suite-type-missing": (second({"expectation_type": "expect_x", "kwargs": {}}), "type"),
    "suite-expectation-a-text": (second("expect_x"), "object"),
    "suite-cut-short": ("{", "JSONDecodeError"),
    "suite-too-deep": ("[" * 100_000, "RecursionError"),
    "suite-key-twice": ('{"expectations": [], "expectations": []}', "'expectations'"),
    "suite-without-list": ('{"expectatoins": []}', "expectations"),
    "suite-key-misspelt": ('{"expectations": [], "nmae": "x"}', "'name'"),
    "suite-parameters": ('{"expectations": [], "suite_parameters": {"a": 1}}', "suite_parameters"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_suite_refuses(tmp_path: Path, golden: Golden, what: str) -> None:
    content, named = REFUSED[what]
    with pytest.raises(ConfigError) as caught:
        suite_of(tmp_path, content)
    assert (named in caught.value.what, caught.value.state) == (True, "nothing was read or written")
    if isinstance(content, dict):  # otherwise the words are Python's
        golden("check", caught.value)
        assert "expectation 2" in caught.value.what


def test_suite_as_great_expectations_writes_it_is_taken(tmp_path: Path) -> None:
    item = expectation(id="a", meta={}, notes=None, rendered_content=[], severity="info")
    suite = suite_of(tmp_path, {"name": "", "meta": {}, "notes": None, "expectations": [item]})
    assert (suite.name, suite.expectations) == ("suite", (item,))


def test_suite_names_unknown_columns_and_the_nearest(tmp_path: Path) -> None:
    kwargs = [
        {"column": "carier"}, {"column": "Carrier"}, {"column_A": "x", "column_B": "carrier"},
        {"column_list": ["_offset", "_ofset"]}, {"column": "carrier.code"}, {"value": 3}, {"column_set": ["_run", "n"]},
    ]  # fmt: skip
    suite = suite_of(tmp_path, {"expectations": [{"type": "e", "kwargs": k} for k in kwargs]})
    found = suite.unknown_columns(["carrier", "_offset", "_run"])
    named = [(1, "'carier'", "'carrier'"), (2, "'Carrier'", "'carrier'"), (3, "'x'", "carrier, _offset, _run"),
             (4, "'_ofset'", "'_offset'"), (7, "'n'", "carrier, _offset, _run")]  # fmt: skip
    for line, (number, column, near) in zip(found, named, strict=True):
        assert line.startswith(f"expectation {number} (e): ")
        assert column in line
        assert near in line


@pytest.mark.parametrize(("keys", "refused"), [("", False), (", when: before_commit", True)])
def test_suite_judges_the_whole_table_behind_a_commit_only(tmp_path: Path, keys: str, refused: bool) -> None:
    suite = {"name": "s", "expectations": [expectation(), expectation(meta={"scope": "table"})]}
    pipeline = PIPELINE.replace("suite.json", f"suite.json{keys}")
    found = suite_of(tmp_path, suite, pipeline).out_of_reach(load(tmp_path / "p.yaml"))
    assert len(found) == refused
    assert not refused or "expectation 2" in found[0]


def test_suite_splits_rows_by_severity_or_by_meta(tmp_path: Path) -> None:
    items = [
        expectation(),
        expectation(severity="warning"),
        expectation(meta={"split": True}),
        expectation(meta={"split": False}),
        expectation(severity="info", meta={"split": False, "owner": "me"}),
    ]
    suite = suite_of(tmp_path, {"expectations": items})
    assert suite.splitting("critical") == {1, 3}
    assert suite.splitting("none") == {3}
