"""Whole runs and their verdicts: refused records and runs unlike those before count; a failed verdict may hold runs."""

from __future__ import annotations

import contextlib
import json
import os
from unittest import mock

import pytest
from tests.chaos.commands import AS_NUMBER, below, drain, said, suite
from tests.fixtures.runs import Sandbox, good

import job
from sluice.errors import ExitCode, QualityError
from sluice.run.actions import Validate
from sluice.run.decision import accept
from sluice.run.verdict import faults
from sluice.wal import WriteAheadLog
from sluice_spark.engine.session import session as open_session

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka, pytest.mark.long]

_DAY = 86_400_000
_EPOCH = 1_356_998_400_000


def verdict(sandbox: Sandbox, run: str) -> tuple[str | None, list[str]]:
    """The verdict of a run and its reasons; judging it again must find the same."""
    book = sandbox.ledger
    row = book.runs.known(sandbox.name, run)
    before = row.verdict, book.runs.account(sandbox.name, run).get("reasons", [])
    url = {"SLUICE_LEDGER_URL": book._engine.url.render_as_string(hide_password=False)}
    failed = pytest.raises(QualityError) if row.verdict in ("failed", "error") else contextlib.nullcontext()
    environment = mock.patch.dict(os.environ, sandbox.env(**url), clear=True)
    with environment, failed:
        job.carry_out(str(sandbox.file), Validate(run), open_session)
    assert (
        book.runs.known(sandbox.name, run).verdict,
        book.runs.account(sandbox.name, run).get("reasons", []),
    ) == before
    return before


def test_refused_records_count_in_the_verdict_of_each_kind_of_run(sandbox: Sandbox) -> None:
    not_null = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "id"}}
    sandbox.configure(quality=suite(sandbox, not_null))
    sandbox.produce([(n % 2, b"k", good(n), _EPOCH + n) for n in range(20)])
    sandbox.run("good", validate=True)
    assert verdict(sandbox, "good") == ("passed", [])

    sandbox.produce([(n % 2, b"k", good(n) if n == 7 else b'{"id": "7"}', _EPOCH + _DAY + n) for n in range(50)])
    sandbox.run("bad", validate=True)
    assert sandbox.account("bad")["quarantined"] == 49
    found, (reason,) = verdict(sandbox, "bad")
    assert (found, reason.partition(" records")[0]) == ("failed", "max_quarantined: 49 of 50")

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

    sandbox.configure(**AS_NUMBER, quality={})
    sandbox.run("redriven", validate=True, redriven="quarantined")
    assert sandbox.account("redriven")["written"] == 49
    assert verdict(sandbox, "redriven") == ("passed", [])


@pytest.mark.parametrize("recovery", ["replay", "wal"])
def test_failed_verdict_holds_live_runs_until_it_is_settled(sandbox: Sandbox, recovery: str) -> None:
    """The log goes on landing meanwhile; afterwards each record is there once."""
    sandbox.configure(recovery=recovery, quality={"max_quarantined": 0, "on_failed": "hold"})
    drain(sandbox, 8, "bad", bad_every=4, validate=True)
    sandbox.feed(8)
    for number in range(2):
        done = sandbox.run(f"held-{number}", validate=True, expect=ExitCode.HELD)
        assert "run 'bad'" in done.stderr
        assert sum(sandbox.sink().values()) + sum(sandbox.quarantine().values()) == 8, "nothing is applied"
    known = {row.run: row.state for row in sandbox.ledger.runs.newest(sandbox.name)}
    if recovery == "wal":
        assert known == {"bad": "done", "held-0": "failed", "held-1": "failed"}
        log = WriteAheadLog(str(sandbox.home / "logs" / sandbox.name), sandbox.name)
        landed = [len(r) for partition in range(2) for r in log.spans(sandbox.topic, partition)]
        assert sum(landed) == 16, "Kafka's retention does not wait"
        accept(sandbox.ledger, sandbox.name, "bad", reason="known gap")
    else:
        assert known == {"bad": "done"}
        sandbox.configure(recovery=recovery, quality={"max_quarantined": 2, "on_failed": "hold"})
        said(sandbox, "validate", "bad")
    sandbox.run("good", validate=True)
    assert verdict(sandbox, "good") == ("passed", [])
    sandbox.assert_exact()


def test_rows_that_enter_the_account_behind_their_verdict_are_judged(sandbox: Sandbox) -> None:
    """A run whose driver died is validated as far as the ledger has it, its other rows behind the next run."""
    sandbox.configure(quality={**suite(sandbox, below(2)), "on_failed": "hold"})
    drain(sandbox, 6, "dead", validate=True, kill_at="sink-committed")
    sandbox.cli("validate", str(sandbox.file), "dead")
    sandbox.produce([(0, b"k", good(0))])
    sandbox.run("next", validate=True)
    assert verdict(sandbox, "next")[0] == "failed"
    sandbox.run("held", validate=True, expect=ExitCode.HELD)


def found_of(sandbox: Sandbox, run: str) -> tuple[str | None, list[str]]:
    """The verdict of a run, and the names of its faults."""
    row = sandbox.ledger.runs.known(sandbox.name, run)
    wrong = {**(row.judgement or {}), "made_by": None}
    return row.verdict, sorted(fault.partition(":")[0] for fault in faults(wrong))


def test_run_unlike_those_before_holds_until_it_is_the_new_normal(sandbox: Sandbox) -> None:
    def fed(count: int, name: str | None) -> None:
        sandbox.produce([(n % 2, b"k", json.dumps({"id": n % 10, "name": name}).encode()) for n in range(count)])

    history = {"at_least": 3, "severity": "critical", "volume": True, "columns": {"name": ["nulls"], "id": ["mean"]}}
    sandbox.configure(kafka={"max_records_per_batch": 1000}, quality={"history": history, "on_failed": "hold"})
    for number in range(3):
        fed(40, "n")
        sandbox.run(f"r{number}", validate=True)
        assert found_of(sandbox, f"r{number}") == ("passed", [])
    fed(90, None)
    sandbox.run("odd", validate=True, kill_at="judged")
    sandbox.run("odd", validate=True)
    assert found_of(sandbox, "odd") == ("failed", ["history.nulls(name)", "history.volume"])
    shown = sandbox.cli("verdict", sandbox.name, "odd")
    assert "history.nulls(name): 100 %" in shown.stderr
    assert "mean(id)" in shown.stdout
    fed(90, None)
    held = sandbox.run("held", validate=True, expect=ExitCode.HELD)
    assert "history.volume: 90" in held.stderr
    done = sandbox.cli("accept", sandbox.name, "odd", "--reason", "a new shop", "--new-normal")
    assert done.returncode == 0, done.stderr
    sandbox.run("next", validate=True)
    assert found_of(sandbox, "next") == ("passed", []), "too few runs are compared with: nothing fails"
    sandbox.assert_exact()
