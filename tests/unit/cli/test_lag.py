"""``sluice lag`` for scripts and for Prometheus: exit codes, and text that says nothing about what is not known."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sluice.cli import lag as command
from sluice.cli.lag import exit_code, openmetrics
from sluice.errors import AuthorizationError, ConfigError, SluiceError, SourceUnreachableError
from sluice.lag import Backlog, Limits, PartitionLag, Status

SAMPLE = re.compile(
    r'^(?P<name>[a-z_]+)\{(?P<labels>[a-z]+="(?:[^"\\\n]|\\.)*"(?:,[a-z]+="(?:[^"\\\n]|\\.)*")*)\} -?[0-9.]+$'
)


def part(position: int | None, end: int | None, *signs: Status, number: int = 0, **more: object) -> PartitionLag:
    start = None if end is None else 0
    return PartitionLag("t", number, position, start, end, signs=frozenset(signs), **more)  # type: ignore[arg-type]


def backlog(*parts: PartitionLag, limit: int = 10, error: SluiceError | None = None, name: str = "p") -> Backlog:
    return Backlog(name, parts, Limits(limit), error)


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ([], 0),
        ([backlog(part(5, 5))], 0),
        ([backlog(part(None, 5))], 0),
        ([backlog(part(0, 10))], 0),
        ([backlog(part(0, 11))], 1),
        ([backlog(part(None, 11))], 1),
        ([backlog(part(0, 11, Status.GROWING))], 1),
        ([backlog(part(0, 5, Status.STUCK))], 1),
        ([backlog(part(7, 5))], 1),
        ([backlog(part(0, None), error=SourceUnreachableError("down"))], 20),
        ([backlog(part(0, None), error=ConfigError("no topic"))], 10),
        ([backlog(part(0, None), error=AuthorizationError("no"))], 23),
        ([backlog(part(5, 5)), backlog(part(0, 11))], 1),
        ([backlog(part(0, 11)), backlog(part(0, None), error=SourceUnreachableError("down"))], 20),
        ([backlog(part(7, 5)), backlog(part(0, None), error=SourceUnreachableError("down"))], 1),
    ],
)
def test_a_script_learns_of_the_worst(found: list[Backlog], code: int) -> None:
    assert exit_code(found) == code


def test_openmetrics_has_a_head_for_each_gauge_a_line_for_each_partition_and_an_end() -> None:
    text = openmetrics([backlog(part(4, 10, age=1.5, share=0.25), part(9, 10, number=1, age=0.0))])
    lines = text.splitlines()
    assert text.endswith("# EOF\n")
    assert lines.count("# EOF") == 1
    samples = [line for line in lines if not line.startswith("#")]
    assert all(SAMPLE.match(line) for line in samples), samples
    names = {line.split("{")[0] for line in samples}
    for name in names:
        assert f"# TYPE {name} gauge" in lines
        assert any(line.startswith(f"# HELP {name} ") for line in lines)
    assert 'sluice_lag_records{pipeline="p",topic="t",partition="0"} 6' in lines
    assert 'sluice_lag_age_seconds{pipeline="p",topic="t",partition="0"} 1.5' in lines
    assert 'sluice_lag_retention_share{pipeline="p",topic="t",partition="0"} 0.25' in lines
    assert 'sluice_lag_lost_records{pipeline="p",topic="t",partition="1"} 0' in lines


def test_what_is_unknown_has_no_sample() -> None:
    text = openmetrics([backlog(part(4, None), error=SourceUnreachableError("down"))])
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert {line.split("{")[0] for line in samples} == {"sluice_lag_status"}
    assert 'sluice_lag_status{pipeline="p",status="UNKNOWN"} 1' in samples


def test_exactly_one_status_is_one() -> None:
    text = openmetrics([backlog(part(7, 5))])
    states = dict(re.findall(r'status="([A-Z]+)"\} ([01])', text))
    assert list(states) == [s.value for s in Status]
    assert [s for s, value in states.items() if value == "1"] == ["RECREATED"]


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    file = tmp_path / "sluice.prom"
    file.write_text("old")
    command._print([backlog(part(4, 10))], as_json=False, metrics=str(file), clear=False)
    assert file.read_text().endswith("# EOF\n")
    assert list(tmp_path.iterdir()) == [file]
    assert file.stat().st_mode & 0o777 == 0o644


def test_a_folder_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        command._print([], as_json=False, metrics=str(tmp_path / "no" / "file"), clear=False)


def test_a_broken_file_hides_no_other_pipeline_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.setattr(command, "load_all", lambda: [(tmp_path / "bad.yaml", ConfigError("bad.yaml is not valid"))])
    assert command.show(None, watch=False, interval=1, as_json=True, metrics=None) == 10
    said = capsys.readouterr()
    assert said.out == "[]\n"
    assert "bad.yaml is not valid" in said.err


def test_a_pipeline_without_partitions_has_no_table(capsys: pytest.CaptureFixture[str]) -> None:
    command._print([backlog(error=ConfigError("another source"))], as_json=False, metrics=None, clear=False)
    told = capsys.readouterr()
    assert told.out == ""
    assert "another source" in told.err
