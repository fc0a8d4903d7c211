"""A folder of Parquet files: readers find the rows by its manifest, and damage to the manifest is refused."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow.parquet as pq
import pytest
from tests.contract.sinks import Files, commit, note
from tests.fixtures.folder import named_files

from sluice.errors import CheckpointError, SinkError
from sluice.ranges import OffsetRange
from sluice.sinks.manifest import files_of
from sluice_spark.sinks.base import NOTHING
from sluice_spark.sinks.parquet.slice import Slice


def test_files_that_count_are_those_of_the_manifest(case: Callable[..., Files]) -> None:
    files = case(Files)
    sink = files.writer()
    for batch in range(3):
        commit(files, sink, batch, batch, batch + 1)
    files.stage(sink, 3, pq.read_table(files_of(files.place)[0]))
    assert sorted(files_of(files.place)) == sorted(f"{files.place}/{path}" for path in named_files(files.root / "out"))
    assert sorted(pq.ParquetDataset(files_of(files.place)).read()["_offset"].to_pylist()) == [0, 1, 2]


def test_files_sink_refuses_a_commit_that_is_missing_or_damaged(case: Callable[..., Files]) -> None:
    files = case(Files)
    for batch in range(3):
        commit(files, files.writer(), batch, batch, batch + 1)
    second = sorted((files.root / "out" / "_sluice").glob("*.json"))[1]
    whole = second.read_text()
    second.unlink()
    with pytest.raises(CheckpointError, match="commit 1"):
        files.writer()
    second.write_text("")
    with pytest.raises(CheckpointError, match="commit 1"):
        files.writer()
    second.write_text(whole)
    assert commit(files, files.writer(), 3, 3, 4)


def test_folder_names_a_file_of_its_own_that_is_gone(case: Callable[..., Files]) -> None:
    files = case(Files)
    sink = files.writer()
    commit(files, sink, 0, 0, 3)
    next((files.root / "out").rglob("*.parquet")).unlink()
    whole = Slice([OffsetRange("t", 0, 0, 3)])
    for ask in (
        lambda: sink.held(whole),
        lambda: sink.replace(whole, NOTHING, files.schema, 1, note("r", 1), name="p-e1-000001"),
    ):
        with pytest.raises(SinkError) as gone:
            ask()
        assert ".parquet" in gone.value.what
