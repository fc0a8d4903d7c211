"""Lines of a socket: which ones a run lands, and what it says of the others."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError
from tests.fixtures.lines import Server
from tests.fixtures.specs import GOOD, write

from sluice.errors import ConfigError, SourceUnreachableError
from sluice.home import Home
from sluice.pipeline import load
from sluice.sources.socket import source as module
from sluice.sources.socket.config import SocketSource
from sluice.sources.socket.source import Lines


def listen(tmp_path: Path, server: Server, seconds: str = "20s") -> Lines:
    config = SocketSource(host="127.0.0.1", port=server.port, listen=seconds)
    return Lines(config, Home(str(tmp_path)), "p")


def landed(lines: Lines) -> list[bytes]:
    rows = [pq.read_table(lines.intake.rows / part.name).to_pylist() for part in lines.intake.parts]
    found = [row for part in rows for row in part]
    assert [row["offset"] for row in found] == list(range(len(found)))
    return [row["value"] for row in found]


def test_each_line_of_each_connection_is_landed_once(tmp_path: Path) -> None:
    with Server([b"a\nb\r\n\nc", b"", "é\n".encode()]) as server:
        found = list[int]()
        for number in range(3):
            lines = listen(tmp_path, server)
            lines.found = lambda n=number: found.append(n)  # type: ignore[misc]
            assert lines.snapshot() == lines.snapshot(), "an open source listens once"
    assert found == [0, 2]
    assert landed(lines) == [b"a", b"b", b"", b"c", "é".encode()]
    (state,) = lines.snapshot()
    assert (state.topic, state.partitions[0].start, state.partitions[0].end) == ("socket", 0, 5)


def test_a_server_that_never_ends_is_left_when_the_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.3)
    with Server([b"whole\nbegun and never ended"], hold=True) as server:
        lines = listen(tmp_path, server, "1s")
        lines.snapshot()
    assert landed(lines) == [b"whole", b"begun and never ended"]


def test_lines_are_landed_in_portions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROWS", 10)
    monkeypatch.setattr(module, "_PIECE", 64)
    with Server([b"".join(b"%d\n" % n for n in range(1000))]) as server:
        lines = listen(tmp_path, server)
        lines.snapshot()
    assert landed(lines) == [b"%d" % n for n in range(1000)]
    assert len(lines.intake.parts) > 5


def test_a_line_without_end_is_refused_and_what_came_before_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LONGEST", 1000)
    monkeypatch.setattr(module, "_ROWS", 1)
    monkeypatch.setattr(module, "_PIECE", 64)
    with Server([b"good\n" * 20 + b"x" * 10_000]) as server:
        lines = listen(tmp_path, server)
        with pytest.raises(ConfigError, match="sends a line of more than"):
            lines.snapshot()
    assert landed(lines) == [b"good"] * 20


def test_what_was_landed_can_be_let_go(tmp_path: Path) -> None:
    with Server([b"a\n", b"b\n", b"c\n"]) as server:
        for _ in range(3):
            lines = listen(tmp_path, server)
            lines.snapshot()
    lines.done({"socket": {0: 2}})
    assert lines.intake.start == 2


def test_a_server_that_is_not_there_is_told(tmp_path: Path) -> None:
    with Server([]) as server:
        pass
    with pytest.raises(SourceUnreachableError, match="does not answer"):
        listen(tmp_path, server).snapshot()


def test_only_the_log_is_allowed(tmp_path: Path) -> None:
    text = GOOD.replace("source:\n  kafka:\n    topics: [t]", "source: {socket: {port: 9999}}")
    with pytest.raises(ConfigError, match=r"source\.socket cannot: choose recovery: wal"):
        load(write(tmp_path, text))
    spec = load(write(tmp_path, text + "recovery: wal\n"))
    assert spec.no_intervals == "pipeline 'p' has no intervals: source.socket cannot be read again"
    with pytest.raises(ValidationError, match="at most 1h"):
        SocketSource(port=1, listen="2h")
