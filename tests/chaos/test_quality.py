"""Whole runs and their verdicts: what was refused or lost counts, and nothing of a judgement stops a later run."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from typing import Any
from unittest import mock

import pytest
from tests.fixtures.postgres import new_database
from tests.fixtures.runs import Sandbox, good

import validate_sink
from sluice.errors import ExitCode, QualityError
from sluice.ledger import Ledger
from sluice.run.decision import accept
from sluice.wal import WriteAheadLog

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

_DAY = 86_400_000
_EPOCH = 1_356_998_400_000
VALID = """{}: valid; live runs take the Arrow path
  1 of 1 expectations could split the rows of a run (quality.split: critical)
"""


def suite(sandbox: Sandbox, *expectations: Mapping[str, Any]) -> dict[str, str]:
    (sandbox.home / "suite.json").write_text(json.dumps({"name": "s", "expectations": expectations}))
    return {"suite": "suite.json"}


def verdict(sandbox: Sandbox, run: str, ledger: Ledger | None = None) -> tuple[str | None, list[str]]:
    """The verdict of a run and its reasons; judging it again must find the same."""
    book = ledger or sandbox.ledger
    row = book.run(sandbox.name, run)
    assert row is not None
    before = row.verdict, book.account(sandbox.name, run).get("reasons", [])
    argv = ["validate_sink.py", "--pipeline", str(sandbox.file), "--run", run]
    url = {"SLUICE_LEDGER_URL": book._engine.url.render_as_string(hide_password=False)}
    told = mock.patch.object(validate_sink, "set_up")
    with mock.patch.dict(os.environ, sandbox.env(**url), clear=True), mock.patch.object(sys, "argv", argv), told:
        if row.verdict in ("failed", "error"):
            with pytest.raises(QualityError, match=re.escape(before[1][0])):
                validate_sink.main()
        else:
            validate_sink.main()
    again = book.run(sandbox.name, run)
    assert again is not None
    assert (again.verdict, book.account(sandbox.name, run).get("reasons", [])) == before
    return before


def test_refused_records_count_in_the_verdict_of_every_kind_of_run(sandbox: Sandbox) -> None:
    not_null = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "id"}}
    sandbox.configure(quality=suite(sandbox, not_null))
    sandbox.produce([(n % 2, b"k", good(n), _EPOCH + n) for n in range(20)])
    sandbox.run("good", validate=True)
    assert verdict(sandbox, "good") == ("passed", [])

    sandbox.produce([(n % 2, b"k", good(n) if n == 7 else b'{"id": "7"}', _EPOCH + _DAY + n) for n in range(50)])
    sandbox.run("bad", validate=True)
    assert sandbox.account("bad")["quarantined"] == 49
    assert verdict(sandbox, "bad") == (
        "failed", ["max_quarantined: 49 of 50 records (98 %) are in quarantine, and 1% may be"]
    )  # fmt: skip

    sandbox.produce([(0, b"k", b"{", _EPOCH + 2 * _DAY)])
    sandbox.run("none", validate=True)
    found, reasons = verdict(sandbox, "none")
    assert (found, [r.split(":")[0] for r in reasons]) == ("failed", ["max_quarantined", "nothing_written"])

    sandbox.run("nothing", validate=True)
    assert verdict(sandbox, "nothing") == ("empty", [])

    sandbox.run("day", validate=True, interval=("2013-01-02T00:00:00Z", "2013-01-03T00:00:00Z"))
    assert verdict(sandbox, "day")[0] == "failed"
    sandbox.configure(quality={"suite": "suite.json", "max_quarantined": "99%"})
    sandbox.run("day", validate=True, interval=("2013-01-02T00:00:00Z", "2013-01-03T00:00:00Z"))
    assert verdict(sandbox, "day")[0] == "passed"

    to_number = "SELECT cast(id AS BIGINT) AS id, name, _topic, _partition, _offset, _timestamp FROM source"
    sandbox.configure(
        decode={"json": {"schema": "id STRING, name STRING"}}, transform={"sql": to_number}, quality={}
    )  # fmt: skip
    sandbox.run("redriven", validate=True, redriven="quarantined")
    assert sandbox.account("redriven")["written"] == 49
    assert verdict(sandbox, "redriven") == ("passed", [])


@pytest.mark.long
def test_lost_records_warn_and_fail_where_the_file_says_how_many_may_be(sandbox: Sandbox) -> None:
    deadly = "SELECT * EXCEPT (id), CASE WHEN id % 10 = 3 THEN raise_error('no') ELSE id END AS id FROM source"
    told = "of 10 records (10 %) are lost"
    for number, (quality, found) in enumerate(
        [
            ({}, ("warned", [f"max_lost: 1 {told}, and the file sets no max_lost"])),
            ({"max_lost": 0}, ("failed", [f"max_lost: 1 {told}, and 0 may be"])),
            ({"max_lost": "10%"}, ("passed", [])),
        ]
    ):
        sandbox.configure(
            recovery="ignore_range",
            quality=quality,
            kafka={"max_records_per_batch": 100},
            transform={"sql": deadly.replace("raise_error('no')", "CAST(raise_error('no') AS BIGINT)")},
        )
        sandbox.produce([(0, b"k", good(10 * number + n)) for n in range(10)])
        sandbox.run(f"r{number}", validate=True)
        assert verdict(sandbox, f"r{number}") == found


@pytest.mark.long
def test_a_misspelt_expectation_stops_a_run_before_it_reads(sandbox: Sandbox) -> None:
    misspelt = {"type": "expect_column_values_to_not_be_nul", "kwargs": {"column": "id"}}
    absent = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "idd"}}
    sandbox.feed(6)
    for wrong, told in ((misspelt, "did you mean 'expect_column_values_to_not_be_null'"), (absent, "no column")):
        sandbox.configure(quality=suite(sandbox, wrong))
        assert told in sandbox.run("r", validate=True, expect=10).message
        assert sandbox.account("r")["planned"] == 0
        assert not sandbox.sink()
    checked = sandbox.cli("validate-spec", str(sandbox.file), "--json")
    (answer,) = json.loads(checked.stdout)
    assert (checked.returncode, answer["valid"]) == (10, False)
    assert "the transform yields no column 'idd'; did you mean 'id'?" in answer["error"]
    sandbox.configure(quality=suite(sandbox, {**absent, "kwargs": {"column": "id"}}))
    checked = sandbox.cli("validate-spec", str(sandbox.file))
    assert (checked.returncode, checked.stderr) == (0, VALID.format(sandbox.file))
    sandbox.run("r", validate=True)
    assert verdict(sandbox, "r") == ("passed", [])
    sandbox.assert_exact()


@pytest.mark.long
def test_a_nan_fails_no_run_whose_ledger_is_in_postgresql(sandbox: Sandbox, postgres: str) -> None:
    url = new_database(postgres)
    median = {"type": "expect_column_median_to_be_between", "kwargs": {"column": "x", "min_value": 0, "max_value": 9}}
    infinite = "SELECT cast('Infinity' AS DOUBLE) AS x, _topic, _partition, _offset, _timestamp FROM source"
    sandbox.configure(quality=suite(sandbox, median), transform={"sql": infinite})
    for run in ("r1", "r2"):
        sandbox.produce([(0, b"k", good(n)) for n in range(3)])
        sandbox.run(run, validate=True, SLUICE_LEDGER_URL=url)
        found, reasons = verdict(sandbox, run, Ledger.open(url))
        assert found == "failed"
        assert reasons == ["expect_column_median_to_be_between on x (slice)"]


@pytest.mark.parametrize("recovery", ["replay", pytest.param("wal", marks=pytest.mark.long)])
def test_a_failed_verdict_holds_live_runs_until_it_is_settled(sandbox: Sandbox, recovery: str) -> None:
    """The log goes on landing meanwhile; afterwards each record is there once."""
    sandbox.configure(recovery=recovery, quality={"max_quarantined": 0, "on_failed": "hold"})
    sandbox.feed(8, bad_every=4)
    sandbox.run("bad", validate=True)
    sandbox.feed(8)
    for number in range(2):
        done = sandbox.run(f"held-{number}", validate=True, expect=ExitCode.HELD)
        assert f"pipeline '{sandbox.name}' is held: run 'bad' has the verdict failed" in done.stderr
        assert sum(sandbox.sink().values()) + sum(sandbox.quarantine().values()) == 8, "nothing is applied"
    known = {row.run: row.state for row in sandbox.ledger.runs(sandbox.name)}
    if recovery == "wal":
        assert known == {"bad": "done", "held-0": "failed", "held-1": "failed"}
        log = WriteAheadLog(str(sandbox.home / "logs" / sandbox.name), sandbox.name)
        landed = [len(r) for partition in range(2) for r in log.spans(sandbox.topic, partition)]
        assert sum(landed) == 16, "Kafka's retention does not wait"
    else:
        assert known == {"bad": "done"}
    if recovery == "wal":
        accept(sandbox.ledger, sandbox.name, "bad", reason="known gap")
    else:
        sandbox.configure(recovery=recovery, quality={"max_quarantined": 2, "on_failed": "hold"})
        judged = sandbox.cli("validate", str(sandbox.file), "bad")
        assert judged.returncode == 0, judged.stderr[-2000:]
    sandbox.run("good", validate=True)
    assert verdict(sandbox, "good") == ("passed", [])
    sandbox.assert_exact()


@pytest.mark.long
def test_rows_that_were_entered_after_their_run_was_judged_are_judged(sandbox: Sandbox) -> None:
    """Whoever validates a run whose driver died judges what the ledger has of it."""
    below = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "id", "max_value": 2}}
    sandbox.configure(quality={**suite(sandbox, below), "on_failed": "hold"})
    sandbox.feed(6)
    sandbox.run("dead", validate=True, kill_at="sink-committed")
    sandbox.cli("validate", str(sandbox.file), "dead")
    sandbox.produce([(0, b"k", good(0))])
    sandbox.run("next", validate=True)
    assert verdict(sandbox, "next")[0] == "failed"
    sandbox.run("held", validate=True, expect=ExitCode.HELD)
