"""Fetching the locked jars, also from a repository that misbehaves."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sluice.errors import ConfigError
from sluice.launch import jars

A, B = "org.some:a:1.0", "org.some.more:b_2.13:2.0"
CONTENT = {A: os.urandom(200_000), B: os.urandom(5_000)}


@dataclass
class Repository:
    """Files by path, requests, and how often it cuts an answer short."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    cuts: int = 0
    errors: int = 0
    ranges: bool = True

    def answer(self, path: str, asked: str | None) -> tuple[int, dict[str, str], bytes]:
        """Return code, headers and body."""
        self.requests.append((path, asked))
        content = self.files.get(path)
        if content is None or self.errors:
            self.errors -= content is not None
            return 404 if content is None else 503, {}, b""
        begin = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and self.ranges else 0
        if begin and begin >= len(content):
            return 416, {}, b""
        headers = {"Content-Length": str(len(content) - begin)}
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        end = len(content) if not self.cuts else (begin + len(content)) // 2
        self.cuts -= bool(self.cuts)
        return 206 if begin else 200, headers, content[begin:end]


def path_of(coordinate: str) -> str:
    return "/" + jars.Jar(coordinate, "").remote


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Repository]:
    repository = Repository(files={path_of(coordinate): content for coordinate, content in CONTENT.items()})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, headers, body = repository.answer(self.path, self.headers.get("Range"))
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    repository.url = f"http://127.0.0.1:{server.server_port}"
    lock = tmp_path / "jars.lock"
    entries = [{"jar": coordinate, "sha256": hashlib.sha256(CONTENT[coordinate]).hexdigest()} for coordinate in (A, B)]
    lock.write_text(json.dumps({"sets": {"spark": entries}}))
    monkeypatch.setattr(jars, "LOCK_FILE", lock)
    monkeypatch.setenv("SLUICE_MAVEN_REPO", f"{repository.url}/")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SLUICE_JARS", raising=False)
    monkeypatch.setattr(jars, "CHECKOUT", None)  # its jars are there already
    yield repository
    server.shutdown()
    thread.join()
    server.server_close()


def test_fetch_downloads_a_set_once(repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    files = jars.fetch("spark", report=lines.append)
    assert [file.name for file in files] == ["a-1.0.jar", "b_2.13-2.0.jar"]
    assert [file.read_bytes() for file in files] == list(CONTENT.values())
    assert files[0].parent == tmp_path / "cache" / "sluice" / "jars" / "spark"
    assert not (tmp_path / "home").exists()
    assert len(lines) == 2
    assert not list(files[0].parent.glob("*.part"))
    repository.requests.clear()
    monkeypatch.setattr(jars, "_sha256", lambda file: pytest.fail(f"hashed {file}"))
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "another"))
    assert jars.paths("spark") == jars.fetch("spark") == files
    assert repository.requests == []


def test_fetch_continues_a_broken_transfer_and_asks_a_busy_server_again(repository: Repository, tmp_path: Path) -> None:
    repository.cuts, repository.errors = 2, 1
    files = jars.fetch("spark", tmp_path)
    assert [file.read_bytes() for file in files] == list(CONTENT.values())
    assert any(asked for _, asked in repository.requests)


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize(
    "partial",
    [CONTENT[A][:150_000], b"rubbish", CONTENT[A] + b"too long", CONTENT[A]],
    ids=["beginning", "rubbish", "long", "whole"],
)
def test_fetch_continues_a_partial_file(repository: Repository, tmp_path: Path, partial: bytes, ranges: bool) -> None:
    repository.ranges = ranges
    (tmp_path / "a-1.0.jar.part").write_bytes(partial)
    assert jars.fetch("spark", tmp_path)[0].read_bytes() == CONTENT[A]
    asked = [bytes_ for path, bytes_ in repository.requests if path == path_of(A)]
    assert asked[:1] == ([] if partial == CONTENT[A] else [f"bytes={len(partial)}-"])


@pytest.mark.parametrize("keep_size", [True, False])
def test_fetch_replaces_a_damaged_or_changed_jar(repository: Repository, keep_size: bool) -> None:
    (file, _) = jars.fetch("spark")
    file.write_bytes(bytes(len(CONTENT[A])) if keep_size else b"")
    with pytest.raises(ConfigError, match=re.escape("a-1.0.jar")):
        jars.paths("spark")
    repository.requests.clear()
    jars.fetch("spark")
    assert file.read_bytes() == CONTENT[A]
    assert repository.requests == [(path_of(A), None)]
    changed = repository.files[path_of(A)] = os.urandom(100)
    lock = jars.LOCK_FILE.read_text()
    sums = [hashlib.sha256(content).hexdigest() for content in (CONTENT[A], changed)]
    jars.LOCK_FILE.write_text(lock.replace(*sums))
    jars.fetch("spark")
    assert file.read_bytes() == changed, "the lock decides"


def test_fetch_names_a_missing_or_wrong_jar_and_never_keeps_it(repository: Repository, tmp_path: Path) -> None:
    del repository.files[path_of(B)]
    with pytest.raises(ConfigError) as caught:
        jars.fetch("spark", tmp_path)
    assert all(word in caught.value.what for word in (B, repository.url, "404"))
    assert "SLUICE_MAVEN_REPO" in caught.value.next_step
    assert len([path for path, _ in repository.requests if path == path_of(B)]) == 1
    repository.requests.clear()
    repository.files[path_of(B)] = b"something else"
    with pytest.raises(ConfigError, match="sha256"):
        jars.fetch("spark", tmp_path)
    assert not (tmp_path / "b_2.13-2.0.jar").exists()
    repository.files[path_of(B)] = CONTENT[B]
    jars.fetch("spark", tmp_path)
    assert {path for path, _ in repository.requests} == {path_of(B)}, "the other one is not fetched again"


def test_fetch_names_a_repository_without_its_password(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLUICE_MAVEN_REPO", "http://user:hidden@127.0.0.1:1/maven2")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(ConfigError, match=re.escape("http://127.0.0.1:1/maven2")) as caught:
        jars.fetch("spark", tmp_path)
    assert "hidden" not in str(caught.value)


def test_jars_that_are_absent_and_unknown_sets_are_named_with_the_command(repository: Repository) -> None:
    with pytest.raises(ConfigError, match="2 of the 2") as caught:
        jars.paths("spark")
    assert caught.value.next_step == "python -m sluice.launch.jars spark"
    with pytest.raises(ConfigError, match="'storm'"):
        jars.fetch("storm")
    assert repository.requests == []


def test_jars_are_cached_for_the_user_and_a_folder_that_cannot_be_written_is_named(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for unusable in ("", "relative/cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", unusable)
        assert jars.folder_of("spark") == tmp_path / ".cache" / "sluice" / "jars" / "spark"
    (tmp_path / "file").touch()
    monkeypatch.setenv("SLUICE_JARS", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="file") as caught:
        jars.fetch("spark")
    assert "SLUICE_JARS" in caught.value.next_step


def test_jars_lock_of_the_project_is_whole() -> None:
    for name, count in (("spark", 7), ("kafka", 46), ("kafka-tools", 1), ("kafka-3.9", 56), ("flink", 2)):
        locked = jars.locked(name)
        assert len({jar.file_name for jar in locked}) == len(locked) == count
        assert all(re.fullmatch(r"[0-9a-f]{64}", jar.sha256) for jar in locked)


def test_jars_are_used_where_they_are(repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In folders of earlier versions, in a named folder, and where they were copied by hand, after a check."""
    monkeypatch.setattr(jars, "CHECKOUT", tmp_path / "checkout")
    for folder in ("checkout/var/jars/spark", "home/jars/spark"):
        (tmp_path / folder).mkdir(parents=True)
        assert jars.folder_of("spark") == tmp_path / folder
    assert jars.folder_of("kafka") == tmp_path / "cache" / "sluice" / "jars" / "kafka"
    named = tmp_path / "named"
    monkeypatch.setenv("SLUICE_JARS", str(named))
    assert jars.folder_of("spark") == named / "spark"
    (named / "spark").mkdir(parents=True)
    for coordinate, name in ((A, "a-1.0.jar"), (B, "b_2.13-2.0.jar")):
        (named / "spark" / name).write_bytes(CONTENT[coordinate])
    assert jars.fetch("spark")[0].parent == named / "spark"
    assert repository.requests == []
