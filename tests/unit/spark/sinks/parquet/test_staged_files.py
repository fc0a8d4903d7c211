"""Reading staged files back: rows and distinct offsets of each partition, exactly and in bounded memory."""

from __future__ import annotations

import json
import logging
import os
import random
import tracemalloc
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem
from tests.fixtures.parquet import stage

from sluice_spark.sinks.base import Staged, Tally
from sluice_spark.sinks.parquet import staged_files
from sluice_spark.sinks.parquet.attempts import remove, written_to
from sluice_spark.sinks.parquet.staged_files import read_back

Place = tuple[str, int]


def written(root: Path, *files: list[tuple[Place, int]]) -> Staged:
    """Read back files with records of any partitions, in this order."""
    tables = [
        pa.table({
            "_topic": pa.array([topic for (topic, _), _ in records]).dictionary_encode(),
            "_partition": pa.array([partition for (_, partition), _ in records], pa.int32()),
            "_offset": pa.array([offset for _, offset in records], pa.int64()),
        })
        for records in files
    ]  # fmt: skip
    return stage(root, 0, *tables)


@pytest.mark.parametrize("seed", range(40))
def test_staged_offsets_in_any_order_are_counted(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    monkeypatch.setattr(staged_files, "_PIECE", draw.choice([7, 100, 1 << 26]))
    top = draw.choice([60, 1000, 10**12])
    places = [(topic, partition) for topic in "ba" for partition in range(3)][: draw.choice([1, 6])]
    files = [[draw.randint(0, top) for _ in range(draw.randint(1, 40))] for _ in range(draw.randint(1, 4))]
    if draw.random() < 0.5:
        files = [sorted(set(f)) for f in files]
    if draw.random() < 0.3:
        files = [[n + 10 * top * i for n in f] for i, f in enumerate(files)]
    records = [[(draw.choice(places), offset) for offset in f] for f in files]
    wanted: dict[Place, list[int]] = defaultdict(list)
    for place, offset in (record for f in records for record in f):
        wanted[place].append(offset)
    staged = written(tmp_path, *records)
    assert staged.tallies == {key: Tally(len(o), len(set(o)), min(o), max(o)) for key, o in wanted.items()}
    assert staged.rows == sum(map(len, records))
    for file in staged.files:
        stat = (tmp_path / file.path).stat()
        assert (stat.st_size, abs(stat.st_mtime * 1000 - file.modified) < 2) == (file.size, True)


def test_staged_folder_without_rows_has_no_file(tmp_path: Path) -> None:
    staged = written(tmp_path, [])
    assert (staged.rows, staged.files, staged.tallies) == (0, (), {})


COUNT = 4_000_000
NUMBERS = np.arange(COUNT, dtype=np.int64)


@pytest.mark.parametrize(
    "files",
    [[NUMBERS[: COUNT // 2], NUMBERS[COUNT // 2 :]], [NUMBERS[::2], NUMBERS[1::2]], [NUMBERS[::-1]]],
    ids=["one-behind-the-other", "in-turn", "backwards"],
)
def test_staged_files_are_read_back_in_memory_that_does_not_grow(tmp_path: Path, files: list[np.ndarray]) -> None:
    tables = []
    for offsets in files:
        zeros = np.zeros(len(offsets), dtype=np.int32)
        topic = pa.DictionaryArray.from_arrays(pa.array(zeros), ["t"])
        tables.append(pa.table({"_topic": topic, "_partition": zeros, "_offset": offsets}))
    folder = stage(tmp_path, 0, *tables, row_group_size=100_000).folder
    tracemalloc.start()
    try:
        found = read_back(str(tmp_path), folder, offsets=True).tallies
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == {("t", 0): Tally(COUNT, COUNT, 0, COUNT - 1)}
    assert held < COUNT * 4, f"{held / COUNT:.1f} bytes a row"


def test_staged_statistics_of_early_years_are_times_that_readers_know(tmp_path: Path) -> None:
    times = [datetime(702, 6, 15, 0, 53, 20, 999_999, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)]
    table = pa.table({"_timestamp": pa.array(times, pa.timestamp("us", "UTC"))})
    (tmp_path / "batches" / "b").mkdir(parents=True)
    pq.write_table(table, tmp_path / "batches" / "b" / "f.parquet")
    (file,) = read_back(str(tmp_path), "batches/b", offsets=False).files
    stats = json.loads(file.stats)
    assert stats["minValues"] == {"_timestamp": "0702-06-15T00:53:20.999Z"}
    assert datetime.fromisoformat(stats["minValues"]["_timestamp"]).year == 702


def test_staged_attempts_are_found_whatever_their_tables_path_has(tmp_path: Path) -> None:
    for name in ("g[1]", "g1", "a*", "ab"):
        for folder in ("b-1-0123abcd", "b-1-x", "b-10-0123abcd"):
            (tmp_path / name / "batches" / folder).mkdir(parents=True)
    for name in ("g[1]", "a*"):
        assert written_to(str(tmp_path / name), "b-1") == [str(tmp_path / name / "batches" / "b-1-0123abcd")]
    assert written_to(str(tmp_path / "none"), "b-1") == []


def test_attempt_that_cannot_be_removed_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its batch is committed; a later sweep finds the folder."""
    folders = [f"{tmp_path}/batches/{name}" for name in ("stays", "goes")]
    for folder in folders:
        os.makedirs(folder)
    removed = LocalFileSystem.rm

    def rm(fs: LocalFileSystem, path: str, recursive: bool) -> None:
        if path.endswith("stays"):
            raise OSError("Directory object not empty")
        removed(fs, path, recursive=recursive)

    monkeypatch.setattr(LocalFileSystem, "rm", rm)
    with caplog.at_level(logging.WARNING, "sluice"):
        remove(str(tmp_path), folders)
    assert os.listdir(tmp_path / "batches") == ["stays"]
    assert "Directory object not empty" in caplog.text
