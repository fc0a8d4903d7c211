"""Files of a folder in a file system and in an object store, and the book that gives their rows offsets once."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pyarrow as pa
import pytest

from sluice.errors import ConfigError, SinkError
from sluice.ranges import OffsetRange
from sluice.sources.files import book as book_module
from sluice.sources.files import folder as module
from sluice.sources.files.book import Book, Entry, OvertakenError
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
    assert sorted(files(folder)) == ["a.json", "b.csv"]
    walked = ["a.json", "went.json", "gone.json", "pipe", "b.csv", "in"]
    monkeypatch.setattr(module, "_AT_ONCE", 1)
    monkeypatch.setattr(Folder, "_walk", lambda *_, **__: iter(walked))
    assert sorted(files(folder)) == ["a.json", "b.csv"]


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_folder_notes_a_name_that_is_not_utf8(tmp_path: Path, prefix: str) -> None:
    for name in ("a.json", "b\udcff.json"):
        (tmp_path / name).touch()
    listed = Folder(f"{prefix}{tmp_path}").listed(deep=False)
    assert (listed.table.column("name").to_pylist(), listed.odd) == (["a.json"], ["b\udcff.json"])


@pytest.mark.parametrize("year", [1969, 1970, 2026, 2300, 2400])
def test_folder_knows_a_file_by_its_size_and_time(tmp_path: Path, year: int) -> None:
    folder = fill(str(tmp_path))
    seconds = int(datetime(year, 1, 1, tzinfo=UTC).timestamp())
    for nanoseconds, microseconds in ((0, 0), (-1, -1)):
        os.utime(tmp_path / "a.json", ns=(seconds * 10**9 + nanoseconds,) * 2)
        found = (2, seconds * 10**6 + microseconds, "")
        assert files(folder)["a.json"] == folder.stat("a.json") == found
    assert (folder.stat("nothing"), folder.stat("a.json/below")) == (None, None)


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
def test_folder_lists_finished_names_of_the_pattern(tmp_path: Path, url: bool, glob: str, expected: list[str]) -> None:
    folder = fill(f"memory://{tmp_path}" if url else str(tmp_path))
    assert sorted(filter(fits(glob), files(folder, deep="/" in glob))) == expected


def test_folder_opens_a_zstandard_file_that_is_whole(tmp_path: Path) -> None:
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


KINDS = pa.schema({"name": pa.string(), "size": pa.int64(), "modified": pa.int64(), "tag": pa.string()})


def entries(start: int, *sizes: int, name: str = "f") -> list[Entry]:
    stats = [Stat(10 * rows, 1_000_000 * (n + 1)) for n, rows in enumerate(sizes)]
    return [Entry(f"{name}{n}", start + sum(sizes[:n]), sizes[n], stat) for n, stat in enumerate(stats)]


def names(found: Sequence[Entry]) -> list[str]:
    return [entry.name for entry in found]


def test_book_gives_offsets_in_order_and_finds_files_by_them(tmp_path: Path) -> None:
    book = Book(str(tmp_path / "book"))
    assert (book.end, book.last(), book.newest(["f0"])) == (0, None, [None])
    book.add(entries(0, 3, 0, 4))
    again = Book(str(tmp_path / "book"))
    assert (again.id, again.end) == (book.id, 7)
    assert again.last() == entries(0, 3, 0, 4)[2]
    for start, end, found in ((0, 7, ["f0", "f2"]), (2, 3, ["f0"]), (3, 4, ["f2"]), (7, 9, [])):
        assert names(again.within(OffsetRange("s", 0, start, end))) == found
    assert again.newest(["x", "f2", "f1"]) == [None, *reversed(entries(0, 3, 0, 4)[1:])]
    assert [again.first_after(ms) for ms in (0, 1000, 1001, 3000, 3001)] == [0, 0, 3, 3, None]


def test_book_compares_files_with_the_last_ones_of_their_names(tmp_path: Path) -> None:
    book = Book(str(tmp_path / "book"))
    stats = [Stat(1, 10), Stat(2, 20, "tag"), Stat(3, 30), Stat(1, 11)]
    names = ["again", "tagged", "other", "again"]
    book.add([Entry(name, n, 1, stat) for n, (name, stat) in enumerate(zip(names, stats, strict=True))])

    def compared(**files: Stat) -> list[bool | None]:
        rows = [{"name": name, **stat._asdict()} for name, stat in files.items()]
        known, same = book.compared(pa.Table.from_pylist(rows, KINDS))
        return [bool(s) if k else None for k, s in zip(known, same, strict=True)]

    known = {"again": Stat(1, 11), "tagged": Stat(2, 20, "tag"), "other": Stat(3, 30)}
    assert compared(**known, new=Stat(1, 1)) == [True, True, True, None]
    assert compared(again=Stat(1, 10), tagged=Stat(2, 20), other=Stat(3, 31)) == [False] * 3
    assert compared() == []
    assert [entry and entry.start for entry in book.newest(["again", "none"])] == [3, None]


def test_book_lets_one_of_two_enter_files_at_the_same_time(tmp_path: Path) -> None:
    first, second = Book(str(tmp_path / "book")), Book(str(tmp_path / "book"))
    first.add(entries(0, 3, name="a"))
    with pytest.raises(OvertakenError):
        second.add(entries(0, 5, name="b"))
    second.refresh()
    assert second.end == 3
    second.add(entries(3, 5, name="b"))
    first.refresh()
    assert names(first.within(OffsetRange("s", 0, 0, 8))) == ["a0", "b0"]


def test_book_is_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(book_module, "_COMPACTED", 4)
    book = Book(str(tmp_path / "book"))
    for number in range(9):
        book.add(entries(number, 1, name=f"f{number}-"))
    again = Book(str(tmp_path / "book"))
    assert (again.id, again.end, len(again.within(OffsetRange("s", 0, 0, 9)))) == (book.id, 9, 9)


def test_book_that_is_damaged_is_named(tmp_path: Path) -> None:
    Book(str(tmp_path / "book"))
    (tmp_path / "book" / "_delta_log" / f"{0:020}.json").write_text("no")
    with pytest.raises(SinkError, match="book"):
        Book(str(tmp_path / "book"))


def test_book_takes_a_file_with_another_tag_for_another_file_unless_it_was_moved() -> None:
    def there(was: Stat, now: Stat | None, **how: bool) -> bool:
        store: Any = SimpleNamespace(stat=lambda _: now)
        return Entry("a", 0, 1, was).is_in(store, **how)

    was = Stat(10, 1_000, "one")
    seen = [was, Stat(10, 2_000, "one"), Stat(10, 2_000, "two"), Stat(11, 1_000, "two"), None]
    assert [there(was, now) for now in seen] == [True, True, False, False, False]
    assert [there(was, now, archive=True) for now in seen] == [True, True, True, False, False]
    assert not there(Stat(10, 1_000), Stat(10, 2_000), archive=True)


@pytest.mark.parametrize(
    ("info", "modified"),
    [
        ({"LastModified": datetime(2026, 1, 1, tzinfo=UTC)}, 1_767_225_600_000_000),
        ({"modification_time": 1_767_225_600_123}, 1_767_225_600_123_000),  # hdfs-native's
        ({"mtime": 1_767_225_600.5}, 1_767_225_600_500_000),
    ],
)
def test_folder_of_a_store_knows_when_a_file_was_made(info: dict[str, Any], modified: int) -> None:
    assert module._of_store({"name": "a", "size": 3, **info}) == Stat(3, modified)
    with pytest.raises(OSError, match="no time of a"):
        module._of_store({"name": "a", "size": 3})


def test_folder_at_a_url_without_its_package_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing://"):
        Folder("nothing://bucket/in")
