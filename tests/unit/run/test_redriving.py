"""Whether lost ranges and quarantined records can be redriven, and what is said if not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.fixtures.specs import GOOD, run_cli, write

from sluice.cli import redrive as command
from sluice.errors import ConfigError
from sluice.ledger import Ledger
from sluice.pipeline import load
from sluice.run.redriving import possible, way_out

DEDUPE = GOOD + "dedupe: {keys: [id], within: 1h}\n"
MERGED = GOOD.replace("{path: p}", "{path: p, mode: upsert, key: [id]}")
FOLLOWED = re.sub(
    r"decode:.*\n(  .*\n)*", "decode: {json: {schema: name STRING, key: id, tombstone: delete}}\n", MERGED
)
UPSERT = GOOD.replace("sink:\n  delta: {path: p}", "sink: {postgres: {table: t, mode: upsert, key: [id]}}")
CONSOLE = GOOD.replace("sink:\n  delta: {path: p}", "sink: {console: {}}")


@pytest.mark.parametrize(
    ("text", "lost", "refused"),
    [
        (GOOD, None, None),
        (DEDUPE, "has dedupe", "has dedupe"),
        (UPSERT, None, "mode: upsert"),
        (CONSOLE, None, "console"),
        (MERGED, None, "mode: upsert"),
        (FOLLOWED, "remembers no deleted keys", "mode: upsert"),
    ],
    ids=["delta", "dedupe", "upsert", "console", "merged", "followed"],
)
def test_no_command_is_named_that_would_be_refused(
    tmp_path: Path, text: str, lost: str | None, refused: str | None
) -> None:
    pipeline = load(write(tmp_path, text))
    for quarantined, why in ((False, lost), (True, refused)):
        if why is None:
            possible(pipeline, quarantined=quarantined)
        else:
            with pytest.raises(ConfigError, match=why):
                possible(pipeline, quarantined=quarantined)
    told = way_out(pipeline, "p")
    assert ("--quarantined" in told) is (refused is None)
    assert ("to the source again" in told) is (refused is not None)


def test_what_a_window_did_not_take_goes_into_it_by_an_interval(tmp_path: Path) -> None:
    window = "window: {time: at, size: 1h, watermark: 1h, aggregates: {n: count(*)}}\n"
    told = way_out(load(write(tmp_path, GOOD + window)), "p")
    assert "make their windows again: sluice run p --start TIME --end TIME" in told


@pytest.mark.parametrize("options", [(), ("--quarantined",), ("--quarantined", "--dry-run")], ids=str)
def test_a_redrive_that_is_refused_starts_no_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(command.LocalProcess, "start", lambda *_: pytest.fail("a driver was started"))
    assert run_cli(monkeypatch, "redrive", str(write(tmp_path, DEDUPE)), *options) == 10
    assert "has dedupe" in capsys.readouterr().err
    assert not Ledger.open().runs("p", limit=1), "a run that could not be was recorded"
