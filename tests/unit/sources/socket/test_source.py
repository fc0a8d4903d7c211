"""Lines of a socket: which ones a run lands."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.fixtures.lines import Server

from sluice.errors import ConfigError
from sluice.home import Home
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


def test_socket_lands_each_line_of_each_connection_once_and_lets_go_of_them(tmp_path: Path) -> None:
    with Server([b"a\nb\r\n\nc", b"", "é\n".encode()]) as server:
        for _ in range(3):
            lines = listen(tmp_path, server)
            assert lines.snapshot() == lines.snapshot(), "an open source listens once"
    assert landed(lines) == [b"a", b"b", b"", b"c", "é".encode()]
    lines.done({"socket": {0: 4}})
    assert lines.intake.start == 4


def test_socket_leaves_a_server_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.3)
    with Server([b"whole\nbegun and never ended"], hold=True) as server:
        lines = listen(tmp_path, server, "1s")
        lines.snapshot()
    assert landed(lines) == [b"whole", b"begun and never ended"]


def test_socket_lands_lines_in_portions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROWS", 10)
    monkeypatch.setattr(module, "_PIECE", 64)
    with Server([b"".join(b"%d\n" % n for n in range(1000))]) as server:
        lines = listen(tmp_path, server)
        lines.snapshot()
    assert landed(lines) == [b"%d" % n for n in range(1000)]
    assert len(lines.intake.parts) > 5


def test_socket_refuses_a_line_without_end_and_keeps_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_LONGEST", 1000), ("_ROWS", 1), ("_PIECE", 64)):
        monkeypatch.setattr(module, name, value)
    with Server([b"good\n" * 20 + b"x" * 10_000]) as server:
        lines = listen(tmp_path, server)
        with pytest.raises(ConfigError, match="line"):
            lines.snapshot()
    assert landed(lines) == [b"good"] * 20
