"""Files that are found without Spark: entered, left to the next look, or refused."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import lzma
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import fastavro
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.fixtures.pipelines import modelled

from sluice.errors import ConfigError, SourceUnreachableError
from sluice.home import Home
from sluice.ranges import OffsetRange
from sluice.sources.files.config import FileSource
from sluice.sources.files.folder import Folder
from sluice.sources.files.formats import Reader
from sluice.sources.files.rows import RFC_4180
from sluice.sources.files.source import Files


def opened(root: Path, **keys: Any) -> Files:
    config = FileSource.model_validate({"path": str(root / "inbox"), "format": "json", "settle": "1s"} | keys)
    (root / "inbox").mkdir(exist_ok=True)
    return Files(config, Home(str(root / "home")), "p")


def put(root: Path, name: str, text: str | bytes, age: float = 60) -> Path:
    file = root / "inbox" / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    os.utime(file, (time.time() - age,) * 2)
    return file


def end(files: Files) -> int:
    """Look; return how many rows have an offset."""
    (state,) = files.snapshot()
    return state.partitions[0].end


def refused(files: Files, named: str) -> None:
    """Look; check that it is refused, and enters nothing."""
    before = files.book.end
    with pytest.raises(ConfigError, match=named) as caught:
        files.snapshot()
    assert (bool(caught.value.state), files.book.end) == (True, before)


def order(files: Files) -> list[str]:
    return [entry.name for entry in files.book.within(OffsetRange("inbox", 0, 0, files.book.end))]


def test_file_source_gives_each_row_one_offset_in_looks_at_once(tmp_path: Path) -> None:
    opened(tmp_path).snapshot()
    for number in range(40):
        put(tmp_path, f"{number:02}.json", "x\n" * (number % 3 + 1))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(Files.snapshot, [opened(tmp_path) for _ in range(4)]))
    files = opened(tmp_path)
    assert end(files) == sum(number % 3 + 1 for number in range(40))
    assert sorted(order(files)) == [f"{number:02}.json" for number in range(40)]


@pytest.mark.parametrize("marker", [None, ".done"])
def test_file_source_announces_files_by_their_names(tmp_path: Path, marker: str | None) -> None:
    heard: list[int] = []
    for name in ("a.json", "a.json.done"):
        put(tmp_path, name, "x\n")

    def looked() -> int:
        files = opened(tmp_path, glob="*.json", marker=marker)
        files.found = lambda: heard.append(files.book.end)
        return end(files)

    assert looked() == 1
    assert heard == [0], "before a file is entered"
    put(tmp_path, "b.csv", "x\n")  # of another kind
    assert (looked(), heard) == (1, [0])
    put(tmp_path, "b.json", "x\n")
    assert (looked(), heard) == ((1, [0]) if marker else (2, [0, 1]))
    put(tmp_path, "b.json.done", "")
    assert (looked(), heard) == (2, [0, 1])


def test_file_source_refuses_a_folder_of_another_name(tmp_path: Path) -> None:
    put(tmp_path, "a.json", "1\n2\n")
    (tmp_path / "typo").mkdir()
    assert end(opened(tmp_path, path=str(tmp_path / "typo"))) == 0
    assert end(opened(tmp_path)) == 2
    (tmp_path / "inbox").rename(tmp_path / "new")
    (tmp_path / "inbox").symlink_to(tmp_path / "new")
    refused(opened(tmp_path, path=str(tmp_path / "new")), r"inbox.*source\.file\.path")
    assert end(opened(tmp_path)) == 2


@pytest.mark.parametrize(
    ("header", "moved"),
    [("last,first", "first"), ('"First ",Last', None), ("a,b", None), ("first,b", None), ("b,first", "first"),
     ("last,first,age", None)],
)  # fmt: skip
def test_file_source_refuses_a_header_with_columns_in_other_places(tmp_path: Path, header: str, moved: Any) -> None:
    put(tmp_path, "a.csv", f"{header}\nJane,Doe\n")
    source = f"source.file: {{path: {tmp_path}/inbox, format: csv, header: true}}"
    spec: Any = modelled(f'{source}, decode: {{csv: {{schema: "first STRING, last STRING"}}}}', "files")
    files = Files(spec.source.config, Home(str(tmp_path / "home")), "p")
    if moved is None:
        assert end(files) == 1
    else:
        refused(files, rf"decode\.csv\.schema has '{moved}'")


def test_file_source_compares_headers_by_their_columns_and_leaves_out_a_file_that_begins_blank(tmp_path: Path) -> None:
    put(tmp_path, "b.csv", "first,last\nJane,Doe\n")
    put(tmp_path, "c.csv", '"first","last"\nJane,Doe\n')
    for name in ("a.csv", "d.csv"):
        put(tmp_path, name, "\nlast,first\nDoe,Jane\n")
    files = opened(tmp_path, format="csv", header=True)
    assert (end(files), order(files)) == (2, ["b.csv", "c.csv"])
    assert sum("first line is blank" in note for note in files.notes) == 2


def test_file_source_reads_in_the_order_of_names_or_times(tmp_path: Path) -> None:
    for name, age in (("a.json", 10), ("b.json", 30), ("c.json", 20)):
        put(tmp_path, name, "x\n", age)
    files = opened(tmp_path)
    other = Files(files.config.model_copy(update={"order": "modified"}), Home(str(tmp_path / "other")), "p")
    assert (end(files), order(files)) == (3, ["a.json", "b.json", "c.json"])
    assert (end(other), order(other)) == (3, ["b.json", "c.json", "a.json"])


def test_file_source_leaves_a_growing_file_to_the_next_look(tmp_path: Path) -> None:
    file = put(tmp_path, "a.json", "x\n", age=0)
    files, stop = opened(tmp_path), threading.Event()

    def write() -> None:
        while not stop.wait(0.2):
            with file.open("a") as out:
                out.write("x\n")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(write)
        try:
            assert end(files) == 0
        finally:
            stop.set()
    assert files.notes == ["a.json is still being written, and is left to the next run"]
    assert end(files) == len(file.read_text().splitlines())


@pytest.mark.parametrize("end_of_name", [".gz", ".bz2", ".xz", ".zst"])
def test_file_source_leaves_a_compressed_file_of_no_bytes_until_it_has_some(tmp_path: Path, end_of_name: str) -> None:
    name = f"a.json{end_of_name}"
    put(tmp_path, name, b"")
    files = opened(tmp_path)
    assert end(files) == 0
    assert files.notes == [f"{name} is compressed and not complete, and is left to the next run"]
    with fsspec.open(tmp_path / "inbox" / name, "wb", compression="infer") as out:
        out.write(b"x\n")
    assert end(files) == 1


def test_file_source_does_not_follow_links_that_lead_back(tmp_path: Path) -> None:
    for name in ("a.json", "deep/b.json", "deep/deeper/c.json"):
        (tmp_path / "inbox" / name).parent.mkdir(parents=True, exist_ok=True)
        put(tmp_path, name, "x\n")
    links = {"loop": "..", "deep/up": "../..", "deep/deeper/here": ".", "self": "self", "gone": "none", "other": "deep"}
    for name, target in links.items():
        (tmp_path / "inbox" / name).symlink_to(target)
    files = opened(tmp_path, glob="**/*.json")
    assert end(files) == 5
    assert {*order(files)} == {"a.json", "deep/b.json", "deep/deeper/c.json", "other/b.json", "other/deeper/c.json"}


STREAMS: dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes, bytes], list[bytes]]]] = {
    "bz2": (bz2.compress, lambda one, two: [one + two, one + bytes(4) + two[4:]]),
    "gz": (gzip.compress, lambda one, two: [one + two, one + bytes(2) + two[2:]]),
    "xz": (
        lzma.compress,
        lambda a, b: [a + bytes(8) + b + bytes(4), a + bytes(4) + b[:-1], a + b"nothing of the kind"],
    ),
}
"""Files of two streams, a whole one and damaged ones; an xz file may have padding."""


@pytest.mark.parametrize("kind", STREAMS)
def test_file_source_reads_every_stream_of_a_file_and_leaves_a_damaged_one(tmp_path: Path, kind: str) -> None:
    pack, made = STREAMS[kind]
    contents = made(pack(b"x\n" * 2), pack(b"x\n" * 3))
    for number, content in enumerate(contents):
        put(tmp_path, f"{number}.json.{kind}", content)
    files = opened(tmp_path)
    assert (end(files), order(files), len(files.notes)) == (5, [f"0.json.{kind}"], len(contents) - 1)


def test_file_source_leaves_out_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    put(tmp_path, "é 'x'\n.json", "x\n")
    (tmp_path / "inbox" / os.fsdecode(b"\xff.json")).write_text("x\n")
    files = opened(tmp_path)
    assert end(files) == 1
    assert files.notes == ["'\\udcff.json' is left out: its name is not UTF-8"]
    assert order(files) == ["é 'x'\n.json"]


def test_file_that_this_user_may_not_read_is_left_out_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.json", "b.json"):
        put(tmp_path, name, "x\n")
    files, read = opened(tmp_path), Folder.opened

    def may(folder: Folder, name: str) -> Any:
        if name in denied:
            raise PermissionError(13, "Permission denied", name)
        return read(folder, name)

    monkeypatch.setattr(Folder, "opened", may)
    denied = {"a.json", "b.json"}
    with pytest.raises(SourceUnreachableError, match="Permission denied"):
        files.snapshot()
    denied = {"a.json"}
    assert (end(files), files.notes) == (1, ["a.json cannot be read, and is left out: this user may not read it"])
    denied = set()
    assert (end(files), order(files)) == (2, ["b.json", "a.json"])


def test_file_source_leaves_a_file_with_other_columns_out_until_the_schema_has_them(tmp_path: Path) -> None:
    files = opened(tmp_path, format="csv", header=True)
    files.config.declared(["id", "name"], RFC_4180)
    for name, text in (("a.csv", "id,name\n1,x\n"), ("b.csv", "")):
        put(tmp_path, name, text)
        assert end(files) == 1
    put(tmp_path, "c.csv", "id,total\n1,2\n")
    refused(files, r"c\.csv.*id,total.*a\.csv")
    put(tmp_path, "c.csv", "id,name\n2,y\n")
    put(tmp_path, "d.csv", "name,id\nz,3\n")
    put(tmp_path, "e.csv", "id,name,channel\n4,a,web\n")
    assert end(files) == 2
    assert [
        (note[:5], reason in note)
        for note, reason in zip(files.notes, ("has 'id' in another place", "c.csv has «id,name»"), strict=True)
    ] == [("d.csv", True), ("e.csv", True)]
    refused(files, r"d\.csv.*name,id.*another place")
    (tmp_path / "inbox" / "d.csv").unlink()
    files.config.declared(["id", "name", "channel"], RFC_4180)
    assert (end(files), files.notes) == (3, [])


def test_file_source_leaves_a_file_that_the_archive_has(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = opened(tmp_path, archive=str(tmp_path / "archive"), changed="read")
    put(tmp_path, "a.json", "x\n")
    assert end(files) == 1
    files.done({"inbox": {0: 1}})
    assert (tmp_path / "archive" / "a.json").read_text() == "x\n"
    put(tmp_path, "a.json", "x\ny\n")
    assert end(files) == 3
    files.done({"inbox": {0: 3}})
    assert (tmp_path / "inbox" / "a.json").read_text() == "x\ny\n"
    assert "the archive has a file of this name" in caplog.text


def test_file_source_moves_files_into_an_archive_of_another_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = opened(tmp_path, archive=str(tmp_path / "archive"))
    for name in ("a.json", "b.json"):
        put(tmp_path, name, "x\n")
    assert end(files) == 2
    monkeypatch.setattr(os, "rename", mock.Mock(side_effect=OSError(errno.EXDEV, "Invalid cross-device link")))
    removed = mock.Mock(side_effect=[OSError("killed"), None])
    monkeypatch.setattr(os, "remove", removed)
    files.done({"inbox": {0: 1}})
    monkeypatch.undo()
    files.done({"inbox": {0: 2}})  # the first one is in both folders
    assert sorted(os.listdir(tmp_path / "archive")) == ["a.json", "b.json"]
    assert os.listdir(tmp_path / "inbox") == []


def parquet(table: pa.Table | None = None, **columns: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table or pa.table(columns), out)
    return out.getvalue()


def test_file_source_notes_each_change_of_parquet_columns_once(tmp_path: Path) -> None:
    files = opened(tmp_path, format="parquet")
    put(tmp_path, "a", parquet(id=[1, 2], name=["x", "y"]))
    put(tmp_path, "b", parquet(id=[3], name=["z"]))
    assert (end(files), files.notes) == (3, [])
    for name in ("c", "d"):
        put(tmp_path, name, parquet(id=["4"], at=[0.5]))
    assert end(files) == 5
    changes = "'id' is string, and was int64; 'at' came, double; 'name' is missing"
    assert files.notes == [f"c with other columns than a: {changes}"]
    headers = {entry.name: entry.header for entry in files.book.within(OffsetRange("inbox", 0, 0, 5))}
    assert [name for name, header in headers.items() if header is not None] == ["a", "c"]
    put(tmp_path, "e", parquet(id=["5"], at=[0.5]))
    assert (end(files), files.notes) == (6, [])
    put(tmp_path, "f", parquet(at=[0.5], id=["6"]))
    assert (end(files), files.notes) == (7, ["f with other columns than c: in another order"])


@pytest.mark.parametrize("format_", ["parquet", "avro"])
def test_file_source_leaves_a_file_that_is_cut_short(tmp_path: Path, format_: str) -> None:
    files = opened(tmp_path, format=format_)
    put(tmp_path, "a", parquet(id=[1, 2])[:-6])
    put(tmp_path, "b", b"Obj\x01\x02")
    put(tmp_path, "c", "{}\n")
    assert end(files) == 0
    assert [note.partition(" ")[0] for note in files.notes] == ["a", "b", "c"]
    assert all(note.endswith(", and is left to the next run") for note in files.notes)
    assert ("b is not complete, and is left to the next run" in files.notes) == (format_ == "avro")


@pytest.mark.parametrize("end_of_name", ["", ".gz", ".bz2", ".xz", ".zst"])
def test_file_source_reads_avro_whatever_compresses_the_file(tmp_path: Path, end_of_name: str) -> None:
    schema = fastavro.parse_schema({"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]})
    name = tmp_path / "inbox" / f"a.avro{end_of_name}"
    files = opened(tmp_path, format="avro")
    with fsspec.open(name, "wb", compression="infer") as out:
        fastavro.writer(out, schema, [{"n": n} for n in range(10)], sync_interval=1)
    assert (end(files), files.notes) == (10, [])
    with files.folder.opened(name.name) as file:
        rows = [row for _, found in Reader.of(files.config).rows(file, 7, 9, ()) for row in found]
    assert rows == [b'{"n":7}', b'{"n":8}']


def test_file_source_leaves_a_parquet_file_with_a_column_twice(tmp_path: Path) -> None:
    files = opened(tmp_path, format="parquet")
    put(tmp_path, "a", parquet(id=[1]))
    put(tmp_path, "b", parquet(pa.table([[1], [2]], ["x", "x"])))
    assert (end(files), "b cannot be read" in files.notes[0], "'x'" in files.notes[0]) == (1, True, True)
    refused(files, "b .*'x'")  # there is nothing else


def test_file_source_refuses_avro_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.sources.files.avro.find_spec", lambda _: None)
    put(tmp_path, "a", b"Obj\x01")
    refused(opened(tmp_path, format="avro"), "fastavro")
