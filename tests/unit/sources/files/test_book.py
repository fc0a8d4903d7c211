"""The book of files: offsets are given once, whoever enters files at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from sluice.errors import SinkError
from sluice.ranges import OffsetRange
from sluice.sources.files import book as module
from sluice.sources.files.book import Book, Entry, OvertakenError
from sluice.sources.files.folder import Folder, Stat

KINDS = pa.schema({"name": pa.string(), "size": pa.int64(), "modified": pa.int64(), "tag": pa.string()})


def entries(start: int, *sizes: int, name: str = "f") -> list[Entry]:
    found = []
    for number, rows in enumerate(sizes):
        found.append(Entry(f"{name}{number}", start, rows, Stat(10 * rows, 1_000_000 * (number + 1))))
        start += rows
    return found


def names(found: Sequence[Entry]) -> list[str]:
    return [entry.name for entry in found]


def test_book_gives_offsets_in_order_and_finds_files_by_them(tmp_path: Path) -> None:
    book = Book(str(tmp_path / "book"))
    assert (book.end, book.last(), book.newest(["f0"])) == (0, None, [None])
    book.add(entries(0, 3, 0, 4))
    again = Book(str(tmp_path / "book"))
    assert (again.id, again.end) == (book.id, 7)
    assert again.last() == entries(0, 3, 0, 4)[2]
    assert names(again.within(OffsetRange("s", 0, 0, 7))) == ["f0", "f2"]
    assert names(again.within(OffsetRange("s", 0, 2, 3))) == ["f0"]
    assert names(again.within(OffsetRange("s", 0, 3, 4))) == ["f2"]
    assert again.within(OffsetRange("s", 0, 7, 9)) == []
    assert again.newest(["x", "f2", "f1"]) == [None, *reversed(entries(0, 3, 0, 4)[1:])]
    assert [again.first_after(ms) for ms in (0, 1000, 1001, 3000, 3001)] == [0, 0, 3, 3, None]


def test_book_compares_files_with_the_last_ones_of_their_names(tmp_path: Path) -> None:
    book = Book(str(tmp_path / "book"))
    stats = [Stat(1, 10), Stat(2, 20, "tag"), Stat(3, 30), Stat(1, 11)]
    names = ["again", "tagged", "other", "again"]
    book.add([Entry(name, n, 1, stat) for n, (name, stat) in enumerate(zip(names, stats, strict=True))])

    def compared(**files: Stat) -> dict[str, bool | None]:
        rows = [{"name": name, **stat._asdict()} for name, stat in files.items()]
        known, same = book.compared(pa.Table.from_pylist(rows, KINDS))
        return {name: bool(s) if k else None for name, k, s in zip(files, known, same, strict=True)}

    assert compared(again=Stat(1, 11), new=Stat(1, 1), tagged=Stat(2, 20, "tag"), other=Stat(3, 30)) == {
        "again": True, "new": None, "tagged": True, "other": True,
    }  # fmt: skip
    assert compared(tagged=Stat(2, 20), other=Stat(3, 31), again=Stat(1, 10)) == {
        "tagged": False, "other": False, "again": False,
    }  # fmt: skip
    assert compared() == {}
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
    monkeypatch.setattr(module, "_COMPACTED", 4)
    book = Book(str(tmp_path / "book"))
    for number in range(9):
        book.add(entries(number, 1, name=f"f{number}-"))
    again = Book(str(tmp_path / "book"))
    assert (again.id, again.end) == (book.id, 9)
    assert len(names(again.within(OffsetRange("s", 0, 0, 9)))) == 9


def test_book_that_is_damaged_is_named(tmp_path: Path) -> None:
    Book(str(tmp_path / "book"))
    (tmp_path / "book" / "_delta_log" / f"{0:020}.json").write_text("no")
    with pytest.raises(SinkError, match="book"):
        Book(str(tmp_path / "book"))


def test_file_with_another_tag_is_another_file_unless_it_was_moved() -> None:
    class Store(Folder):
        def __init__(self, now: Stat | None) -> None:
            self.now = now

        def stat(self, name: str) -> Stat | None:
            return self.now

    entry = Entry("a", 0, 1, Stat(10, 1_000, "one"))
    seen = [Stat(10, 1_000, "one"), Stat(10, 2_000, "one"), Stat(10, 2_000, "two"), Stat(11, 1_000, "two"), None]
    assert [entry.is_in(Store(now)) for now in seen] == [True, True, False, False, False]
    assert [entry.is_in(Store(now), archive=True) for now in seen] == [True, True, True, False, False]
    assert not Entry("a", 0, 1, Stat(10, 1_000)).is_in(Store(Stat(10, 2_000)), archive=True)
