"""``sluice lag`` for people, scripts and Prometheus: exit codes and texts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.golden import Golden
from tests.fixtures.pipelines import modelled

from sluice.cli import lag as command
from sluice.cli.lag import exit_code, openmetrics
from sluice.errors import AuthorizationError, ConfigError, SluiceError, SourceUnreachableError
from sluice.lag import Backlog, Limits, PartitionLag, Status
from sluice.pipeline import load_all
from sluice.sources.kafka import Cluster

LABEL = r'[a-z]+="(?:[^"\\\n]|\\.)*"'
SAMPLE = re.compile(rf"^[a-z_]+\{{{LABEL}(?:,{LABEL})*\}} -?[0-9.]+$")


def part(position: int | None, end: int | None, *signs: Status, number: int = 0, **more: object) -> PartitionLag:
    start = None if end is None else 0
    return PartitionLag("t", number, position, start, end, signs=frozenset(signs), **more)  # type: ignore[arg-type]


def backlog(*parts: PartitionLag, error: SluiceError | None = None, name: str = "p") -> Backlog:
    return Backlog(name, parts, Limits(10), error)


def unknown(error: SluiceError, name: str = "p") -> Backlog:
    return backlog(part(4, None), error=error, name=name)


DOWN = SourceUnreachableError("down")


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
        ([unknown(DOWN)], 20),
        ([unknown(ConfigError("no topic"))], 10),
        ([unknown(AuthorizationError("no"))], 23),
        ([backlog(part(5, 5)), backlog(part(0, 11))], 1),
        ([backlog(part(0, 11)), unknown(DOWN)], 20),
        ([backlog(part(7, 5)), unknown(DOWN)], 1),
    ],
)
def test_lag_exit_code_is_that_of_the_worst_pipeline(found: list[Backlog], code: int) -> None:
    assert exit_code(found) == code


def test_lag_metrics_are_gauges_of_each_partition_and_statuses(golden: Golden) -> None:
    known = backlog(part(4, 10, age=1.5, share=0.25), part(9, 10, number=1, age=0.0))
    text = openmetrics([known, unknown(DOWN, "q"), backlog(part(7, 5), name="r")])
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(SAMPLE.match(line) for line in samples), samples
    assert {line.split("{")[0] for line in samples if '"q"' in line} == {"sluice_lag_status"}
    assert [line for line in samples if '"r",status' in line and line.endswith(" 1")] == [
        'sluice_lag_status{pipeline="r",status="RECREATED"} 1'
    ]
    assert text.endswith("# EOF\n")
    golden("lag", text)


def test_lag_metrics_replace_a_file_atomically(tmp_path: Path) -> None:
    file = tmp_path / "sluice.prom"
    file.write_text("old")
    command._print([backlog(part(4, 10))], as_json=False, metrics=str(file), clear=False)
    assert file.read_text().endswith("# EOF\n")
    assert list(tmp_path.iterdir()) == [file]
    assert file.stat().st_mode & 0o777 == 0o644
    with pytest.raises(ConfigError, match="file"):
        command._print([], as_json=False, metrics=str(tmp_path / "no" / "file"), clear=False)


def test_lag_that_is_interrupted_before_an_answer_is_not_within_its_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.setattr(command, "load_all", list)
    monkeypatch.setattr(command._Looks, "once", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    for watch in (False, True):
        with pytest.raises(KeyboardInterrupt):
            command.show(None, watch=watch, interval=1, as_json=True, metrics=None)


def test_lag_of_many_waits_for_a_silent_broker_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", '{"conn_type": "kafka", "host": "127.0.0.1", "port": 1}')
    asked: list[Any] = []

    def silent(self: Any, topics: Any, **_: Any) -> Any:
        asked.append(topics)
        raise SourceUnreachableError("no broker answers")

    monkeypatch.setattr(Cluster, "look", silent)
    looks = command._Looks([modelled(f"pipeline: p{n}") for n in range(3)])
    found = looks.once()
    looks.close()
    assert [(b.pipeline, b.verdict, type(b.error)) for b in found] == [
        (f"p{n}", Status.UNKNOWN, SourceUnreachableError) for n in range(3)
    ]
    assert len(asked) == 1


def test_lag_of_all_pipelines_names_those_that_do_not_read_kafka(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    (tmp_path / "made_up.yaml").write_text(
        "{pipeline: made_up, source: {rate: {rows_per_second: 1}}, decode: {json: {schema: value BIGINT}}, "
        "sink: {delta: {path: t}}}"
    )
    monkeypatch.setattr(command, "load_all", lambda: load_all(tmp_path))
    assert command.show(None, watch=False, interval=1, as_json=True, metrics=None) == 0
    said = capsys.readouterr()
    assert (said.out, "made_up" in said.err) == ("[]\n", True)


def test_lag_of_all_pipelines_with_a_broken_file_and_another_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.setattr(command, "load_all", lambda: [(tmp_path / "bad.yaml", ConfigError("bad.yaml is not valid"))])
    assert command.show(None, watch=False, interval=1, as_json=True, metrics=None) == 10
    said = capsys.readouterr()
    assert (said.out, "bad.yaml" in said.err) == ("[]\n", True)
    shown = [backlog(part(4, 10, age=1.5, share=0.25)), backlog(error=ConfigError("another source"), name="q")]
    command._print(shown, as_json=False, metrics=None, clear=False)
    said = capsys.readouterr()
    golden("lag", said.out + said.err)
