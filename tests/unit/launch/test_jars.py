"""Fetching the locked jars from a repository that misbehaves."""

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
    """What it serves by path, what it was asked for, and how often it cuts an answer short."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    cuts: int = 0
    errors: int = 0
    ranges: bool = True


def path_of(coordinate: str) -> str:
    return "/" + jars.Jar(coordinate, "").remote


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Repository]:
    repository = Repository(files={path_of(coordinate): content for coordinate, content in CONTENT.items()})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            repository.requests.append((self.path, asked))
            content = repository.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            if repository.errors:
                repository.errors -= 1
                self.send_error(503)
                return
            begin = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and repository.ranges else 0  # type: ignore[index]
            if begin and begin >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if begin else 200)
            if begin:
                self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - begin))
            self.end_headers()
            body = content[begin:]
            if repository.cuts:
                repository.cuts -= 1
                body = body[: len(body) // 2]
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


def test_a_set_is_fetched_whole_and_in_the_locks_order(repository: Repository, tmp_path: Path) -> None:
    lines: list[str] = []
    files = jars.fetch("spark", report=lines.append)
    assert [file.name for file in files] == ["a-1.0.jar", "b_2.13-2.0.jar"]
    assert [file.read_bytes() for file in files] == list(CONTENT.values())
    assert files == jars.paths("spark")
    assert files[0].parent == tmp_path / "cache" / "sluice" / "jars" / "spark"
    assert not (tmp_path / "home").exists()
    assert len(lines) == 2
    assert not list(files[0].parent.glob("*.part"))


def test_the_second_call_downloads_nothing_and_hashes_nothing(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = jars.fetch("spark")
    repository.requests.clear()
    monkeypatch.setattr(jars, "_sha256", lambda file: pytest.fail(f"hashed {file}"))
    assert jars.fetch("spark") == files
    assert repository.requests == []


def test_files_put_there_by_hand_are_verified_and_kept(repository: Repository, tmp_path: Path) -> None:
    for coordinate, name in ((A, "a-1.0.jar"), (B, "b_2.13-2.0.jar")):
        (tmp_path / name).write_bytes(CONTENT[coordinate])
    jars.fetch("spark", tmp_path)
    assert repository.requests == []


def test_a_partial_file_is_continued(repository: Repository, tmp_path: Path) -> None:
    (tmp_path / "a-1.0.jar.part").write_bytes(CONTENT[A][:150_000])
    (file, _) = jars.fetch("spark", tmp_path)
    assert file.read_bytes() == CONTENT[A]
    assert (path_of(A), "bytes=150000-") in repository.requests


def test_a_transfer_that_breaks_is_continued(repository: Repository, tmp_path: Path) -> None:
    repository.cuts = 2
    files = jars.fetch("spark", tmp_path)
    assert [file.read_bytes() for file in files] == list(CONTENT.values())
    assert any(asked for _, asked in repository.requests)


def test_a_server_that_knows_no_ranges_starts_again(repository: Repository, tmp_path: Path) -> None:
    repository.ranges = False
    (tmp_path / "a-1.0.jar.part").write_bytes(CONTENT[A][:150_000])
    assert jars.fetch("spark", tmp_path)[0].read_bytes() == CONTENT[A]


@pytest.mark.parametrize(
    "partial", [b"rubbish", CONTENT[A] + b"too long", CONTENT[A]], ids=["rubbish", "long", "whole"]
)
def test_a_partial_file_is_not_trusted(repository: Repository, tmp_path: Path, partial: bytes) -> None:
    (tmp_path / "a-1.0.jar.part").write_bytes(partial)
    assert jars.fetch("spark", tmp_path)[0].read_bytes() == CONTENT[A]


@pytest.mark.parametrize("keep_size", [True, False])
def test_a_damaged_file_is_fetched_again(repository: Repository, keep_size: bool) -> None:
    (file, _) = jars.fetch("spark")
    file.write_bytes(bytes(len(CONTENT[A])) if keep_size else b"")
    with pytest.raises(ConfigError, match=re.escape("a-1.0.jar")):
        jars.paths("spark")
    repository.requests.clear()
    jars.fetch("spark")
    assert file.read_bytes() == CONTENT[A]
    assert repository.requests == [(path_of(A), None)]


def test_a_lock_that_changed_is_obeyed(repository: Repository) -> None:
    (file, _) = jars.fetch("spark")
    changed = os.urandom(100)
    repository.files[path_of(A)] = changed
    lock = json.loads(jars.LOCK_FILE.read_text())
    lock["sets"]["spark"][0]["sha256"] = hashlib.sha256(changed).hexdigest()
    jars.LOCK_FILE.write_text(json.dumps(lock))
    jars.fetch("spark")
    assert file.read_bytes() == changed


def test_a_server_that_is_busy_is_asked_again(repository: Repository, tmp_path: Path) -> None:
    repository.errors = 1
    assert len(jars.fetch("spark", tmp_path)) == 2


def test_a_missing_artifact_is_named_with_its_repository(repository: Repository, tmp_path: Path) -> None:
    del repository.files[path_of(B)]
    with pytest.raises(ConfigError) as caught:
        jars.fetch("spark", tmp_path)
    assert B in caught.value.what
    assert repository.url in caught.value.what
    assert "404" in caught.value.what
    assert "SLUICE_MAVEN_REPO" in caught.value.next_step
    assert len([path for path, _ in repository.requests if path == path_of(B)]) == 1
    # What did arrive is not asked for again.
    repository.files[path_of(B)] = CONTENT[B]
    repository.requests.clear()
    jars.fetch("spark", tmp_path)
    assert repository.requests == [(path_of(B), None)]


def test_another_file_than_the_locked_one_is_never_kept(repository: Repository, tmp_path: Path) -> None:
    repository.files[path_of(A)] = b"something else"
    with pytest.raises(ConfigError, match="sha256"):
        jars.fetch("spark", tmp_path)
    assert not (tmp_path / "a-1.0.jar").exists()


def test_no_repository_at_all_is_told_without_its_password(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLUICE_MAVEN_REPO", "http://user:hidden@127.0.0.1:1/maven2")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(ConfigError, match=re.escape("http://127.0.0.1:1/maven2")) as caught:
        jars.fetch("spark", tmp_path)
    assert "hidden" not in str(caught.value)


def test_absent_jars_are_told_with_the_command(repository: Repository) -> None:
    with pytest.raises(ConfigError, match="2 of the 2 spark jars") as caught:
        jars.paths("spark")
    assert caught.value.next_step == "python -m sluice.launch.jars spark"
    assert repository.requests == []


def test_a_new_home_finds_the_jars_that_another_one_fetched(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = jars.fetch("spark")
    repository.requests.clear()
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path / "another"))
    assert jars.paths("spark") == jars.fetch("spark") == files
    assert repository.requests == []


def test_a_set_that_an_earlier_version_fetched_is_used_where_it_is(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "CHECKOUT", tmp_path / "checkout")
    cache, ours, home = (
        tmp_path / root / "jars" / "spark" for root in ("cache/sluice", "checkout/var", "home")
    )  # fmt: skip
    assert jars.folder_of("spark") == cache
    for earlier in (ours, home):
        earlier.mkdir(parents=True)
        assert jars.folder_of("spark") == earlier
    assert jars.folder_of("kafka") == cache.with_name("kafka")
    monkeypatch.setenv("SLUICE_JARS", str(tmp_path / "named"))
    assert jars.folder_of("spark") == tmp_path / "named" / "spark"


def test_the_cache_is_the_users_own(monkeypatch: pytest.MonkeyPatch, repository: Repository, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for unusable in ("", "relative/cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", unusable)
        assert jars.folder_of("spark") == tmp_path / ".cache" / "sluice" / "jars" / "spark"


def test_a_cache_that_cannot_be_written_is_told(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SLUICE_JARS", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="jars cannot be fetched into") as caught:
        jars.fetch("spark")
    assert "SLUICE_JARS" in caught.value.next_step


def test_two_versions_share_a_cache_and_hash_nothing_twice(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = jars.fetch("spark")
    mine = jars.LOCK_FILE.read_text()
    newer = "org.some:a:1.1"
    repository.files[path_of(newer)] = CONTENT[A]
    jars.LOCK_FILE.write_text(mine.replace(A, newer))
    assert [file.name for file in jars.fetch("spark")] == ["a-1.1.jar", "b_2.13-2.0.jar"]
    jars.LOCK_FILE.write_text(mine)
    monkeypatch.setattr(jars, "_sha256", lambda file: pytest.fail(f"hashed {file}"))
    assert jars.paths("spark") == files


def test_an_unknown_set_is_told() -> None:
    with pytest.raises(ConfigError, match="'storm'"):
        jars.fetch("storm")


def test_the_lock_of_the_project_is_whole() -> None:
    for name, count in (("spark", 7), ("kafka", 46), ("kafka-tools", 1), ("kafka-3.9", 56), ("flink", 2)):
        locked = jars.locked(name)
        assert len({jar.file_name for jar in locked}) == len(locked) == count
        assert all(re.fullmatch(r"[0-9a-f]{64}", jar.sha256) for jar in locked)
