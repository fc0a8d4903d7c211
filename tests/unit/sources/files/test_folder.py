"""Files of a folder, in a file system and in an object store."""

from __future__ import annotations

import gzip
import os
import random
from datetime import UTC, datetime
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest

from sluice.sources.files import folder as module
from sluice.sources.files.folder import Folder, Stat, fits

NAMES = ["a.json", "b.csv", ".c.json", "_d.json", "e.json.tmp", "f.json.part", "in/g.json", "_in/h.json", "in/.i.json"]


def fill(path: str) -> Folder:
    fs, root = fsspec.core.url_to_fs(path)
    for name in NAMES:
        fs.makedirs(os.path.dirname(f"{root}/{name}"), exist_ok=True)
        fs.pipe_file(f"{root}/{name}", b"x\n")
    return Folder(path)


def files(folder: Folder, *, deep: bool = False) -> dict[str, Stat]:
    rows = folder.listed(deep=deep).table.to_pylist()
    return {row.pop("name"): Stat(**row) for row in rows}


def test_folder_leaves_out_files_that_go_while_it_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fill(str(tmp_path))
    (tmp_path / "gone.json").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "not\udcff.json").touch()
    monkeypatch.setattr(module, "_AT_ONCE", 1)
    monkeypatch.setattr(Folder, "_walk", lambda *_: iter(["a.json", "went.json", "gone.json", "pipe", "b.csv", "in"]))
    assert sorted(files(folder)) == ["a.json", "b.csv"]
    monkeypatch.undo()
    listed = folder.listed(deep=False)
    assert (sorted(listed.table.column("name").to_pylist()), listed.odd) == (["a.json", "b.csv"], ["not\udcff.json"])


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_folder_notes_a_name_that_is_not_utf8(tmp_path: Path, prefix: str) -> None:
    for name in ("a.json", "b\udcff.json"):
        (tmp_path / name).touch()
    listed = Folder(f"{prefix}{tmp_path}").listed(deep=False)
    assert (listed.table.column("name").to_pylist(), listed.odd) == (["a.json"], ["b\udcff.json"])


@pytest.mark.parametrize("year", [1969, 1970, 2026, 2300, 2400])
def test_folder_lists_the_times_that_the_system_has(tmp_path: Path, year: int) -> None:
    (tmp_path / "a.json").touch()
    seconds = datetime(year, 1, 1, tzinfo=UTC).timestamp()
    os.utime(tmp_path / "a.json", ns=(int(seconds) * 10**9 - 1,) * 2)
    folder = Folder(str(tmp_path))
    assert files(folder)["a.json"] == folder.stat("a.json")


@pytest.mark.parametrize("url", [False, True])
@pytest.mark.parametrize(
    ("glob", "expected"),
    [
        ("*", ["a.json", "b.csv"]),
        ("*.json", ["a.json"]),
        ("**/*.json", ["a.json", "in/g.json"]),
        ("in/*", ["in/g.json"]),
        ("?.csv", ["b.csv"]),
    ],
)
def test_folder_lists_names_of_the_pattern_and_no_unfinished_files(
    tmp_path: Path, url: bool, glob: str, expected: list[str]
) -> None:
    folder = fill(f"memory://{tmp_path}" if url else str(tmp_path))
    assert sorted(filter(fits(glob), files(folder, deep="/" in glob))) == expected


def test_folder_knows_a_file_by_size_and_time(tmp_path: Path) -> None:
    folder = fill(str(tmp_path))
    when = datetime(2026, 1, 2, tzinfo=UTC).timestamp()
    os.utime(tmp_path / "a.json", (when, when))
    assert files(folder)["a.json"] == folder.stat("a.json") == (2, int(when) * 1_000_000, "")
    assert folder.stat("nothing") is None
    assert folder.stat("a.json/below") is None


def test_folder_opens_compressed_files(tmp_path: Path) -> None:
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(b"x\n"))
    with Folder(str(tmp_path)).opened("a.json.gz") as file:
        assert file.read() == b"x\n"


def test_zstandard_file_is_whole_or_an_error(tmp_path: Path) -> None:
    frames = [pa.compress(text, "zstd", asbytes=True) for text in (b"x\n" * 9, random.Random(1).randbytes(300_000))]
    (tmp_path / "a.zst").write_bytes(b"".join(frames))
    with Folder(str(tmp_path)).opened("a.zst") as file:
        assert len(file.read()) == 300_018
    for cut in (100, len(frames[0]) + 10):
        (tmp_path / "a.zst").write_bytes(b"".join(frames)[:-cut])
        with Folder(str(tmp_path)).opened("a.zst") as file, pytest.raises(OSError, match="Truncated"):
            list(iter(lambda: file.read(1000), b""))


@pytest.mark.parametrize("url", [False, True])
def test_folder_that_is_missing_is_an_error(tmp_path: Path, url: bool) -> None:
    with pytest.raises(FileNotFoundError):
        Folder(f"memory://{tmp_path}/none" if url else str(tmp_path / "none")).listed(deep=False)
