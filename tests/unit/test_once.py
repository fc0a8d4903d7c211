"""Files that are made once: by one of several, whole, and through to the disk before they have a name."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sluice.once import made_once


def test_one_of_several_makes_it(tmp_path: Path) -> None:
    file = tmp_path / "id"
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda n: made_once(file, b"%d" % n), range(8)))
    assert made.count(True) == 1
    assert file.read_bytes() == b"%d" % made.index(True)
    assert list(tmp_path.iterdir()) == [file]


def test_its_content_is_on_the_disk_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "id"
    synced: list[tuple[object, bool]] = []

    def fsync(handle: int) -> None:
        found = os.fstat(handle)
        synced.append(("folder" if os.path.samestat(found, tmp_path.stat()) else found.st_size, file.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    assert made_once(file, b"whole")
    assert synced == [(5, False), ("folder", True)]


def test_nothing_is_left_where_it_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refused)
    with pytest.raises(OSError, match="no links"):
        made_once(tmp_path / "id", b"x")
    assert list(tmp_path.iterdir()) == []
