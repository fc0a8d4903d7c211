"""``sluice quarantine``, ``redrive``, ``compact`` and ``vacuum``."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.fixtures.books import Place, split
from tests.fixtures.deltas import aged
from tests.unit.cli.conftest import Sluice
from tests.unit.delta.test_tables import ZERO, entry

from sluice.cli import redrive as command
from sluice.connections import Connection, variable_of
from sluice.errors import ExitCode, SourceUnreachableError
from sluice.pipeline import load
from sluice.ranges import OffsetRange
from sluice.run.actions import Action, TryQuarantined
from sluice.sources.kafka import Cluster

DROP = ("--drop", "--reason", "x")


@pytest.fixture
def file(place: Place) -> str:
    place.configure(decode={"text": {}}, sink={"delta": {"path": "p"}})
    return str(place.file)


@pytest.fixture
def full(file: str, tmp_path: Path) -> str:
    """A pipeline with three refused records."""
    rows = [entry(n, "json" if n % 2 else "type", b'{"id": [bold]%d' % n, None if n % 2 else "id") for n in range(3)]
    write_deltalake(str(tmp_path / "p_quarantine"), pa.Table.from_pylist(rows))
    return file


def test_quarantine_shows_counts_samples_and_the_next_command(full: str, sluice: Sluice) -> None:
    assert sluice("quarantine", full, "--show", "1").exit_code == 0
    asked = ("--rule", "json", "--since", ZERO.isoformat(), "--show", "5", "--json")
    found = sluice("quarantine", full, *asked).json
    assert (found["pipeline"], found["records"], found["groups"][0]["rule"]) == ("p", 1, "json")
    assert [sample["offset"] for sample in found["samples"]] == [1]
    assert sluice("quarantine", full, "--since", "1h").exit_code == 0
    sluice.recorded("quarantine")
    for rule, hint in (("jsn", "'json'"), ("zzz", None)):
        said = sluice("quarantine", full, "--rule", rule).stderr
        assert ("did you mean" in said, hint is None or hint in said) == (hint is not None, True)


def test_empty_quarantine_is_no_mistake(file: str, sluice: Sluice) -> None:
    assert sluice("quarantine", file).exit_code == 0
    sluice.recorded("quarantine")


@pytest.mark.parametrize("pipeline", ["file", "full"])
def test_quarantine_with_nothing_old_enough_to_drop_is_no_mistake(
    request: pytest.FixtureRequest, sluice: Sluice, pipeline: str
) -> None:
    """A retention runs each day, from the first day on."""
    asked = ("quarantine", request.getfixturevalue(pipeline), *DROP, "--before", "2001-01-01T00:00:00Z")
    assert sluice(*asked, "--json").json["dropped"] == 0
    assert sluice(*asked, "--run", "nosuch").exit_code == ExitCode.CONFIG


@pytest.fixture
def read(place: Place) -> str:
    """The file of a pipeline that has read and written ten offsets."""
    place.commit("r", split(0, 10))
    return str(place.file)


def test_redrive_dry_run_without_a_broker_shows_the_ranges_of_the_log(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def silent(*_: Any, **__: Any) -> None:
        raise SourceUnreachableError("no broker answers")

    monkeypatch.setattr(Cluster, "snapshot", silent)
    kafka = Connection("kafka_default", "kafka", extra={"bootstrap.servers": "127.0.0.1:1"})
    monkeypatch.setenv(variable_of("kafka_default"), kafka.to_json())
    assert command._states(load(str(place.file)), []) == []
    assert "no broker answers" in capsys.readouterr().err


def test_redrive_dry_run_of_the_quarantine_counts_records_that_decode_now(
    read: str, sluice: Sluice, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Action] = []
    still = [{"rule": "type", "column": "id", "records": 152}]
    found: dict[str, Any] = {"records": 3252, "decodable": 3100, "still": still, "table": {}}

    def looked(_spec: Any, action: Any) -> dict[str, Any]:
        asked.append(action(Path("result.json")))
        return found

    monkeypatch.setattr(command, "looked", looked)
    quarantined = ("redrive", read, "--quarantined", "--dry-run")
    assert sluice(*quarantined, "--of", "r", "--range", "t:0:1-5").exit_code == 0
    assert asked == [TryQuarantined(Path("result.json"), (OffsetRange("t", 0, 1, 5),), "r")]
    found["table"] = {"differences": ["tax: only in the pipeline"], "ways_out": ["sink.delta.evolve: add …"]}
    assert sluice(*quarantined).exit_code == 0
    sluice.recorded("redrive")


def test_redrive_dry_run_says_that_no_range_is_lost(read: str, sluice: Sluice) -> None:
    for more in ((), ("--range", "t:0:0-5"), ("--range", "t:0:9-15")):
        done = sluice("redrive", read, "--dry-run", *more)
        assert (done.exit_code, done.stdout) == (0, "")
    sluice.recorded("redrive")


def test_compact_and_vacuum_count_files_for_programs(story: Place, sluice: Sluice) -> None:
    story.write()
    file = str(story.file)
    for options, key in ((("--dry-run",), "small"), ((), "merged")):
        done = sluice("compact", file, *options, "--json").json
        assert (done["pipeline"], done["dry_run"], done["tables"][0][key]) == ("p", bool(options), 3)
    aged(story.path, timedelta(days=8))
    for options, files in ((("--dry-run",), 3), (("--older-than", "9d"), 0), ((), 3)):
        assert sluice("vacuum", file, *options, "--json").json["tables"][0]["files"] == files
    assert DeltaTable(story.path).count() == len(story.sink)


@pytest.mark.parametrize(
    ("command", "options"), [("compact", ("--dry-run",)), ("compact", ()), ("vacuum", ()), ("vacuum", ("--dry-run",))]
)
def test_compact_and_vacuum_print_for_people_on_stderr(
    story: Place, sluice: Sluice, command: str, options: tuple[str, ...]
) -> None:
    assert sluice(command, str(story.file), *options).exit_code == 0  # there is no table yet
    story.write()
    done = sluice(command, str(story.file), *options)
    assert (done.exit_code, done.stdout) == (0, "")
    sluice.recorded(command)
