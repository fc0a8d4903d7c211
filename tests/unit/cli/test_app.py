"""``sluice``: help, exit codes, JSON for programs, tables for people, ``status`` and ``state``."""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer
from deltalake import write_deltalake
from rich.console import Console
from tests.fixtures.books import Place, span
from tests.fixtures.golden import Golden
from tests.fixtures.ledgers import attempt
from tests.fixtures.pipelines import modelled
from tests.fixtures.specs import run_cli
from tests.unit.cli.conftest import Sluice
from tests.unit.delta.test_tables import entry
from typer.testing import CliRunner

import job
from sluice.cli import output
from sluice.cli.app import app
from sluice.cli.state import _check_batch, _panes, _show_rows, _wanted
from sluice.errors import ConfigError, ExitCode
from sluice.facts import lines
from sluice.ledger.events import Judged
from sluice.pipeline.quality import Quality
from sluice.ranges import Counts
from sluice.run.checkpoint import Checkpoint
from sluice.run.verdict import WARNS
from sluice_spark.quality.judgement import Judgement
from sluice_spark.quality.limits import excesses

COMMANDS = list(typer.main.get_group(app).commands)


@pytest.mark.parametrize("command", ["sluice", *COMMANDS])
def test_help(command: str, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 100)
    monkeypatch.setattr("typer.rich_utils.FORCE_TERMINAL", False)
    path = () if command == "sluice" else (command,)
    short, long = (CliRunner().invoke(app, [*path, option], prog_name="sluice").stdout for option in ("-h", "--help"))
    assert short == long
    golden(command, short)


def test_command_line_that_is_wrong_has_a_code_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_cli(monkeypatch, "run", "p", "--recovery", "nope") == 2
    for argv in ((), ("p.yaml",), ("p.yaml", "walk"), ("p.yaml", "run", "{}"), ("p.yaml", "redrive", "{")):
        with pytest.raises(ConfigError, match="of no action"):
            job.parse(argv)


@pytest.mark.parametrize(
    ("command", "code", "what"),
    [
        ("status nosuch", 10, "'nosuch'"),
        ("quarantine nosuch", 10, "'nosuch'"),
        ("ledger p --run nosuch", 10, "'nosuch' of 'p'"),
        ("status --limit x", 2, "stderr"),
    ],
)
@pytest.mark.usefixtures("sluice")
def test_command_that_fails_prints_json_for_a_program_that_asks_for_it(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    code: int,
    what: str,
) -> None:
    place.commit("r")
    assert run_cli(monkeypatch, *command.split(), "--json") == code
    error = json.loads(capsys.readouterr().out)["error"]
    assert (what in error["what"], error["exit_code"]) == (True, code)
    assert run_cli(monkeypatch, *command.split()) == code
    assert capsys.readouterr().out == "", "people read stderr"


def test_help_in_a_locale_that_lacks_letters_is_no_error() -> None:
    here = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    code = "import sys; sys.argv = ['sluice', 'run', '--help']; from sluice.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env=here, capture_output=True, text=True, check=False)
    assert (done.returncode, "\\u2026" in done.stdout) == (0, True), done.stderr


def test_interrupt_while_modules_are_imported_shows_no_traceback() -> None:
    code = """
import builtins, os, signal
from sluice.cli import main
take = builtins.__import__
def interrupted(name, *rest):
    if name == "typer":
        os.kill(os.getpid(), signal.SIGINT)
    return take(name, *rest)
builtins.__import__ = interrupted
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize("command", ["status", "ledger", "audit"])
def test_command_about_an_empty_ledger_names_it(
    command: str, place: Place, sluice: Sluice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "another"))
    done = sluice(command, str(place.file))
    assert (done.exit_code, f"sqlite:///{tmp_path}/another/ledger.db" in done.stderr) == (0, True)


REFUSED = """
audit misspelt
audit --windows p
audit --deep --windows p
acknowledge p --reason ' '
acknowledge p --reason x --of nosuch
retract p a --reason ' '
retract p nosuch --reason x
retract p u:0:1-3 --reason x
retract p t:9:1-3 --reason x
reset p --reason ' '
reset p --reason x --from yesterday
reset p --reason x --truncate
reset p --reason x --rebuild-state
quarantine p --since yesterday
quarantine p --before yesterday
quarantine p --since 5min
quarantine p --drop
quarantine p --reason x
quarantine p --drop --reason ' '
quarantine p --drop --reason x --since 1h
quarantine p --drop --reason x --rule nosuch
quarantine p --drop --reason x --before 2001-01-01T00:00:00Z --run nosuch
redrive p --of nosuch
redrive p --range nosuch:0:1-5
redrive p --range t:9:1-5
redrive p --range t:0:20-25
vacuum p --older-than soon
vacuum p --older-than ''
clean p --before ''
clean p --before 2026-01-01 --older-than 1d
run p --start '' --end ''
run p --start 0001-01-01T00:00:00+14:00 --end 2026-01-01
lag p --interval 5
lag p --json --openmetrics -
profile p --limit 5
state p --limit 5
"""


@pytest.mark.parametrize("line", REFUSED.strip().splitlines())
def test_command_refuses(story: Place, sluice: Sluice, line: str) -> None:
    """Nothing starts and nothing changes; an unknown name is not reported as balanced."""
    command, *arguments = shlex.split(line)
    before = story.ledger.events("p")
    write_deltalake(f"{story.path}_quarantine", pa.Table.from_pylist([entry(3, "json", b"{")]))
    assert sluice(command, *arguments).exit_code == ExitCode.CONFIG
    sluice.recorded(command)
    for option in ("--dry-run", "--quarantined") if command == "redrive" else ():
        assert sluice(command, *arguments, option).exit_code == ExitCode.CONFIG
    assert story.ledger.events("p") == before


def test_status_shows_why_runs_failed(place: Place, sluice: Sluice, golden: Golden) -> None:
    found = tuple(excesses(Quality(), Counts(quarantined=5)))
    judgement = Judgement("s", 0, excesses=found, wrote=False)
    with attempt(place.ledger, "r", span(0, 1)) as lease:
        place.ledger.record(lease, Judged(verdict=judgement.verdict, judgement=judgement.as_dict()), run_id="r")
    with attempt(place.ledger, "s", state="failed", closed={"error": {"what": "no broker answers"}}):
        pass
    assert [why.removesuffix(WARNS) for why in place.ledger.runs.account("p", "r")["reasons"]] == [
        str(e) for e in found
    ]
    said = sluice("status", "p").stderr
    assert "s: failed: no broker answers\n" in said
    golden("status", said)


def test_status_tells_a_run_at_work_from_one_whose_driver_died(place: Place, sluice: Sluice) -> None:
    def state() -> str:
        return str(sluice("status", "p", "--json").json[0]["state"])

    with attempt(place.ledger, "r", state=None):
        assert state() == "running"
    assert state() == "open"


def test_status_shows_windows_and_dedupe_with_the_watermark(golden: Golden) -> None:
    moved = {"rows": 1200, "late": 0, "partly_late": 0, "late_by": None, "closed_to": 1_356_998_400_000}
    more: list[dict[str, Any]] = [
        {}, {"closed_to": 0}, {"late": 3, "late_by": 0}, {"late": 3, "partly_late": 2, "late_by": -1000},
        {"former": 2, "former_to": 3_600_000},
    ]  # fmt: skip
    dropped = {"duplicate": 1200, "late": 0, "late_by": None}
    accounts = [{"windows": {**moved, **keys}} for keys in more]
    accounts += [{"dedupe": {**dropped, **keys}} for keys in ({}, {"late": 3, "late_by": 0})]
    golden("status", "\n".join(line for account in accounts for line in lines(account)))


COLUMNS = ["pipeline", "run", "state", *output.COUNTS, "verdict"]
ROW = {
    "pipeline": "orders", "run": "scheduled__2026-11-24T21:44:00.647+00:00", "state": "done", "planned": 3000,
    "written": 2477, "filtered": 0, "quarantined": 523, "absent": 0, "lost": 0, "verdict": None,
}  # fmt: skip
ROWS = [ROW, ROW | {"run": "[bold]x"}]


def printed(monkeypatch: pytest.MonkeyPatch, rows: Any, columns: list[str], width: int, terminal: bool) -> list[str]:
    file = io.StringIO()
    monkeypatch.setattr(output, "out", Console(file=file, width=width, force_terminal=terminal, color_system=None))
    output.print_table(rows, columns)
    return [line.rstrip() for line in file.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("width", "terminal", "columns"), [(160, True, COLUMNS), (80, True, ["pipeline", "state"]), (240, False, COLUMNS)]
)
def test_table_with_room_or_in_a_pipe_has_a_line_for_each_row(
    monkeypatch: pytest.MonkeyPatch, width: int, terminal: bool, columns: list[str]
) -> None:
    lines = printed(monkeypatch, ROWS, columns, width, terminal)
    assert (len(lines), lines[0].split()) == (3, columns)


def test_table_without_room_has_a_paragraph_for_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(monkeypatch, ROWS, COLUMNS, 80, True) == [
        "orders",
        "  run scheduled__2026-11-24T21:44:00.647+00:00 · state done · planned 3,000",
        "  written 2,477 · quarantined 523",
        "orders",
        "  run [bold]x · state done · planned 3,000 · written 2,477 · quarantined 523",
    ]
    part = {"topic": "t" * 30, "partition": 0, "start": 0, "end": 7, "lost": 0}
    assert printed(monkeypatch, [part], list(part), 40, True) == ["t" * 30, "  partition 0 · start 0 · end 7"]


PANES = {"parts": [["count", "bigint"]]}
SLIDING: dict[str, Any] = {"time": "at", "size": 1800.0, "slide": 600.0, "by": ["k"]}


@pytest.mark.parametrize(
    ("noted", "definition", "spans"),
    [
        (PANES, SLIDING, (1_800_000, 600_000, 0)),
        (PANES, {**SLIDING, "slide": 0.5}, (1_800_000, 500, 0)),
        (PANES, {**SLIDING, "output": "complete"}, (1_800_000, 600_000, -(1 << 52))),
        (None, SLIDING, None),  # Spark's own windows
        (None, {"time": "at", "gap": 600.0}, None),
        (None, {}, None),  # dedupe, or begun without any
    ],
)
def test_state_has_the_panes_of_the_epoch(
    tmp_path: Path, noted: dict[str, Any] | None, definition: dict[str, Any], spans: tuple[int, ...] | None
) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    checkpoint.note_panes(noted)
    assert _panes(checkpoint, definition) == spans


def test_state_of_a_key_is_asked_for_by_the_columns_with_which_the_epoch_began(golden: Golden) -> None:
    spec = modelled()
    assert _wanted(spec, {"by": ["k", "l"]}, ["k=a=b", "l="]) == (["k", "l"], {"k": "a=b", "l": ""}, 1001)
    assert _wanted(spec, {"keys": ["id"], "time": "at"}, ["id=1"]) == (["id"], {"id": "1"}, 1001)
    for definition, key in [({"by": ["k"]}, "K=a"), ({"by": ["k"]}, "k"), ({"by": [], "time": "at"}, "k=a")]:
        with pytest.raises(ConfigError) as refused:
            _wanted(spec, definition, [key])
        golden("state", refused.value)


def test_state_refuses_a_batch_that_was_not_committed(golden: Golden) -> None:
    _check_batch(modelled(), [3, 4, 5], 4)
    with pytest.raises(ConfigError) as refused:
        _check_batch(modelled(), [3, 4, 5], 6)
    golden("state", refused.value)


def test_state_of_a_key_is_shown_with_columns_of_any_name(capsys: pytest.CaptureFixture[str], golden: Golden) -> None:
    row = {"key": {"state": "TX", "window_start": None}, "window_start": 0, "window_end": 3_600_000, "state": '{"n":2}'}
    _show_rows({"epoch": 1, "batch": 7, "rows": [row], "more": True})
    said = capsys.readouterr()
    assert "state=TX, window_start=null" in said.out
    golden("state", said.out + said.err)
