"""What ``sluice redrive`` asks and prints before it starts anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.specs import GOOD, run_cli, write

from sluice.cli import redrive as command
from sluice.connections import Connection, variable_of
from sluice.errors import SourceUnreachableError
from sluice.ledger import Ledger
from sluice.pipeline import Pipeline
from sluice.ranges import Counts, OffsetRange, RangeAccount
from sluice.sources.kafka import Cluster

SPEC = Pipeline.model_validate(
    {
        "pipeline": "p",
        "source": {"kafka": {"topics": ["t"]}},
        "decode": {"text": {}},
        "sink": {"delta": {"path": "p"}},
    }
)


def has_read(span: OffsetRange) -> None:
    """Record a run that read these offsets and wrote them."""
    ledger = Ledger.open()
    with ledger.acquire("p", "r") as lease:
        ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[span], topic_ids={})
        ledger.batch_committed(lease, epoch=1, batch=0, accounts=[RangeAccount(span, Counts(written=len(span)))])


def test_without_a_broker_a_dry_run_shows_what_the_log_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def silent(*_: Any, **__: Any) -> None:
        raise SourceUnreachableError("no broker answers")

    monkeypatch.setattr(Cluster, "snapshot", silent)
    kafka = Connection("kafka_default", "kafka", extra={"bootstrap.servers": "127.0.0.1:1"})
    monkeypatch.setenv(variable_of("kafka_default"), kafka.to_json())
    assert command._states(SPEC, []) == []
    assert "no broker answers: only the write-ahead log was searched" in capsys.readouterr().err


def test_a_dry_run_of_the_quarantine_says_how_many_decode_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    asked: list[list[str]] = []
    still = [{"rule": "type", "column": "id", "records": 152}]
    found: dict[str, Any] = {"records": 3252, "decodable": 3100, "still": still, "table": {}}

    def looked(submit: Any, result: Path) -> dict[str, Any]:
        asked.append(submit.arguments)
        return found

    monkeypatch.setattr(command, "looked", looked)
    file = str(write(tmp_path, GOOD))
    has_read(OffsetRange("t", 0, 0, 10))
    assert run_cli(monkeypatch, "redrive", file, "--quarantined", "--dry-run", "--of", "r", "--range", "t:0:1-5") == 0
    said = capsys.readouterr()
    assert "3,100 of 3,252 quarantined records decode and pass the row rules now; nothing was written" in said.err
    assert "type  id          152" in said.out
    assert "to write them: sluice redrive" in said.err
    assert asked[0][-4:] == ["--range", "t:0:1-5", "--of-run=r", "--quarantined"]

    found["table"] = {"differences": ["tax: only in the pipeline"], "ways_out": ["sink.delta.evolve: add …"]}
    assert run_cli(monkeypatch, "redrive", file, "--quarantined", "--dry-run") == 0
    told = capsys.readouterr().err
    assert "the table differs: tax: only in the pipeline" in told
    assert "to write them, once their rows fit the table: sluice redrive" in told


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--of", "nosuch"), "the ledger has no run 'nosuch' of 'p'"),
        (("--range", "nosuch:0:1-5"), "p does not read 'nosuch'"),
        (("--range", "t:9:1-5"), "p has read nothing of t-9 [1, 5)"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--dry-run",), ("--quarantined",)], ids=str)
def test_what_there_is_not_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...], said: str, more: tuple[str, ...],
) -> None:  # fmt: skip
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    assert run_cli(monkeypatch, "redrive", str(write(tmp_path, GOOD)), *options, *more) == 10
    assert said in capsys.readouterr().err


def test_a_range_behind_what_was_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    has_read(OffsetRange("t", 0, 0, 10))
    file = str(write(tmp_path, GOOD))
    assert run_cli(monkeypatch, "redrive", file, "--dry-run", "--range", "t:0:10-15") == 10
    assert "p has read nothing of t-0 [10, 15): it has read up to 10" in capsys.readouterr().err
    assert run_cli(monkeypatch, "redrive", file, "--dry-run", "--range", "t:0:9-15") == 0


@pytest.mark.parametrize("more", [(), ("--range", "t:0:0-5")])
def test_a_dry_run_says_if_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    has_read(OffsetRange("t", 0, 0, 10))
    assert run_cli(monkeypatch, "redrive", str(write(tmp_path, GOOD)), "--dry-run", *more) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert f"no offset{' of that' if more else ''} is open as lost: there is nothing to redrive" in said.err
