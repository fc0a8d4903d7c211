"""What may be refused or lost, and what a suite's file must be, before Great Expectations is asked."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from sluice.cli import main
from sluice.errors import ConfigError
from sluice.ledger import Ledger
from sluice.pipeline import load
from sluice.pipeline.quality import Quality
from sluice.pipeline.suite import Suite
from sluice.ranges import Counts, OffsetRange
from sluice_spark.quality.judgement import Judgement
from sluice_spark.quality.limits import excesses

PIPELINE = """\
pipeline: p
source: {kafka: {topics: [t]}}
decode: {json: {schema: "id INT, at TIMESTAMP"}}
sink: {delta: {path: p}}
quality: {suite: suite.json}
"""

NONE: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("keys", "counts", "verdict", "limits"),
    [
        # what the file says, what became of the offsets, and what that makes of the verdict
        (NONE, Counts(written=98, quarantined=2), "failed", ["max_quarantined"]),
        (NONE, Counts(written=2, quarantined=98), "failed", ["max_quarantined"]),
        (NONE, Counts(quarantined=5), "failed", ["max_quarantined", "nothing_written"]),
        (NONE, Counts(written=99, quarantined=1), "passed", []),
        (NONE, Counts(written=98, quarantined=1, filtered=1), "passed", []),
        (NONE, Counts(written=98, quarantined=1, absent=900), "failed", ["max_quarantined"]),
        (NONE, Counts(filtered=7, absent=3), "empty", []),
        (NONE, Counts(), "empty", []),
        (NONE, Counts(written=10**9, lost=1), "warned", ["max_lost"]),
        (NONE, Counts(lost=1), "warned", ["max_lost", "nothing_written"]),
        ({"max_lost": 0}, Counts(written=10**9, lost=1), "failed", ["max_lost"]),
        ({"max_lost": 1}, Counts(written=10**9, lost=1), "passed", []),
        ({"max_lost": "10%"}, Counts(written=9, lost=1), "passed", []),
        ({"max_lost": "10 %"}, Counts(written=8, lost=1), "failed", ["max_lost"]),
        ({"max_lost": "100%"}, Counts(lost=3), "warned", ["nothing_written"]),
        ({"max_quarantined": 0}, Counts(written=10**9, quarantined=1), "failed", ["max_quarantined"]),
        ({"max_quarantined": 7}, Counts(quarantined=7), "warned", ["nothing_written"]),
        ({"max_quarantined": "0.001%"}, Counts(written=99_999, quarantined=1), "passed", []),
        ({"max_quarantined": "0.001%"}, Counts(written=99_998, quarantined=1), "failed", ["max_quarantined"]),
        ({"max_quarantined": "100%"}, Counts(written=1, quarantined=99), "passed", []),
    ],
)
def test_what_may_be_refused_or_lost(keys: dict[str, Any], counts: Counts, verdict: str, limits: list[str]) -> None:
    found = tuple(excesses(Quality.model_validate(keys), counts))
    assert [e.limit for e in found] == limits
    judgement = Judgement("s", counts.written, excesses=found, wrote=counts.written > 0)
    assert judgement.verdict == verdict
    assert judgement.reasons == [str(e) for e in found]


def test_a_reason_has_the_numbers() -> None:
    (excess,) = excesses(Quality(), Counts(written=989_999, quarantined=10_001))
    assert str(excess) == "max_quarantined: 10,001 of 1,000,000 records (1 %) are in quarantine, and 1% may be"


# --- the suite's file --------------------------------------------------------------------------------------------


def expectation(**keys: Any) -> dict[str, Any]:
    return {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "id"}, **keys}


WRONG = [
    (expectation(severity="fatal"), "severity 'fatal' is unknown; write one of: critical, warning, info"),
    (expectation(severity="Warning"), "severity 'Warning' is unknown"),
    (expectation(severity=None), "severity None is unknown"),
    (expectation(severty="warning"), "unknown key 'severty'; did you mean 'severity'?"),
    (expectation(kwargs={"column": "id", "severity": "warning"}), "'severity' belongs beside kwargs, not in it"),
    (expectation(meta={"scope": "tabel"}), "meta.scope 'tabel' is unknown; write one of: slice, table"),
    (expectation(meta="table"), "meta is not an object"),
    (expectation(kwargs=["id"]), "kwargs, an object, is missing"),
    ({"expectation_type": "expect_x", "kwargs": {}}, "type, the name of the expectation, is missing"),
    ("expect_x", "expectation 2 is not an object"),
]


def write(folder: Path, suite: Any, pipeline: str = PIPELINE) -> Path:
    (folder / "suite.json").write_text(suite if isinstance(suite, str) else json.dumps(suite))
    (folder / "p.yaml").write_text(pipeline)
    return folder / "p.yaml"


@pytest.mark.parametrize(("wrong", "told"), WRONG, ids=[t[:30] for _, t in WRONG])
def test_what_no_suite_may_say(tmp_path: Path, wrong: Any, told: str) -> None:
    file = write(tmp_path, {"name": "s", "expectations": [expectation(), wrong]})
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
        Suite.of(load(write(tmp_path, text)))
    assert told in caught.value.what


def test_a_suite_as_great_expectations_writes_it_is_one(tmp_path: Path) -> None:
    item = expectation(id="a", meta={}, notes=None, rendered_content=[], severity="info")
    suite = Suite.of(load(write(tmp_path, {"name": "", "meta": {}, "notes": None, "expectations": [item]})))
    assert suite is not None
    assert (suite.name, suite.expectations) == ("suite", (item,))


def test_columns_that_are_not_there_are_named_with_the_nearest(tmp_path: Path) -> None:
    kwargs = [
        {"column": "carier"}, {"column": "Carrier"}, {"column_A": "x", "column_B": "carrier"},
        {"column_list": ["_offset", "_ofset"]}, {"column": "carrier.code"}, {"value": 3}, {"column_set": ["_run", "n"]},
    ]  # fmt: skip
    file = write(tmp_path, {"expectations": [{"type": "e", "kwargs": k} for k in kwargs]})
    suite = Suite.of(load(file))
    assert suite is not None
    assert suite.unknown_columns(["carrier", "_offset", "_run"]) == [
        "expectation 1 (e): the transform yields no column 'carier'; did you mean 'carrier'?",
        "expectation 2 (e): the transform yields no column 'Carrier'; did you mean 'carrier'?",
        "expectation 3 (e): the transform yields no column 'x'; its columns are: carrier, _offset, _run",
        "expectation 4 (e): the transform yields no column '_ofset'; did you mean '_offset'?",
        "expectation 7 (e): the transform yields no column 'n'; its columns are: carrier, _offset, _run",
    ]


# --- the command -------------------------------------------------------------------------------------------------


def run_cli(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["sluice", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_validate_spec_opens_the_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path, {"expectations": [expectation(severity="fatal")]})
    assert run_cli(monkeypatch, "validate-spec", "--no-spark", "--json", str(file)) == 10
    (told,) = json.loads(capsys.readouterr().out)
    assert told["valid"] is False
    assert "severity 'fatal' is unknown" in told["error"]


@pytest.mark.parametrize("missing", ["java", "JAVA_HOME", "jars"])
def test_what_cannot_be_checked_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    file = write(tmp_path, {"expectations": [expectation()]})
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SLUICE_JARS", str(tmp_path / "none"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if missing == "JAVA_HOME":
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = None if missing == "java" else "/usr/bin/java"
    monkeypatch.setattr(shutil, "which", lambda name: found if name == "java" else "/usr/bin/" + name)
    assert run_cli(monkeypatch, "validate-spec", str(file)) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "p.yaml: valid as far as it was checked" in said
    assert "not checked: whether the transform can be planned" in said
    assert ("jars are absent" if missing == "jars" else "there is no Java here") in said


def test_status_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SLUICE_LEDGER_URL", f"sqlite:///{tmp_path}/ledger.db")
    ledger = Ledger.open()
    with ledger.acquire("p", "r") as lease:
        ranges = [OffsetRange("t", 0, 0, 1)]
        ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=ranges, topic_ids={"t": "i"})
        found = tuple(excesses(Quality(), Counts(quarantined=5)))
        judgement = Judgement("s", 0, excesses=found, wrote=False)
        ledger.judged(lease, "p", "r", verdict=judgement.verdict, judgement=judgement.as_dict())
    assert run_cli(monkeypatch, "status", "p") == 0
    assert "r: failed: max_quarantined: 5 of 5 records (100 %) are in quarantine, and 1% may be" in (
        capsys.readouterr().err
    )
    assert ledger.account("p", "r")["reasons"] == [str(e) for e in found]
