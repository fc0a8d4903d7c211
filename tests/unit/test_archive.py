"""The class-data archive is used only while it is whole: the JVM would die of a cut one."""

from pathlib import Path

import pytest

from sluice.connections import Connection
from sluice.home import Home
from sluice.launch import jars
from sluice.launch.submit import archive_file, archive_stamp, is_whole, validate_sink
from sluice.pipeline import load


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.setattr(jars, "paths", lambda _name: [])
    archive = archive_file(Home.from_env())
    archive.parent.mkdir()
    archive.write_bytes(b"x" * 100)
    archive.with_suffix(".stamp").write_text(archive_stamp(archive))
    return archive


def _options(master: str = "local[2]") -> str:
    return validate_sink(load("flights"), "r", spark=Connection("s", "spark", master)).java_options


def test_a_whole_archive_is_used_whoever_the_master_is(archive: Path) -> None:
    assert is_whole(archive)
    assert f"-XX:SharedArchiveFile={archive}" in _options()
    assert f"-XX:SharedArchiveFile={archive}" in _options("spark://host:7077")  # the driver runs here all the same


def test_a_cut_or_absent_archive_is_not_used(archive: Path) -> None:
    archive.write_bytes(b"x" * 99)
    assert "SharedArchiveFile" not in _options()
    archive.unlink()
    assert "SharedArchiveFile" not in _options()


def test_an_image_may_bring_one(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = tmp_path / "image" / "other.jsa"
    monkeypatch.setenv("SLUICE_JVM_ARCHIVE", str(named))
    assert archive_file(Home.from_env()) == named
    assert "SharedArchiveFile" not in _options()
    named.parent.mkdir()
    named.write_bytes(b"x")
    named.with_suffix(".stamp").write_text(archive_stamp(named))
    assert f"-XX:SharedArchiveFile={named}" in _options()
