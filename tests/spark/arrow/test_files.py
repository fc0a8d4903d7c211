"""Dictionaries of Parquet columns follow from the files that were written before."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sluice_spark.arrow import files
from sluice_spark.arrow.files import Files


def encodings(folder: Path, table: pa.Table) -> dict[str, bool]:
    """Write a file, and return which of its columns have a dictionary."""
    with Files(str(folder), table.schema) as written:
        written.add(table)
        (file,) = written.keep()
    group = pq.ParquetFile(folder / file.name).metadata.row_group(0)
    return {c.path_in_schema: c.has_dictionary_page for c in map(group.column, range(group.num_columns))}


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_REPEATING", files._Repeating())


def rows(count: int, *, constant: bool, name: str = "a") -> pa.Table:
    return pa.table({name: [0 if constant else n for n in range(count)], "b": ["x"] * count})


def test_parquet_columns_have_dictionaries_by_the_files_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_ROWS", 250)
    monkeypatch.setattr(files, "_TELLING", 100)
    assert encodings(tmp_path, rows(100, constant=False)) == {"a": False, "b": True}
    assert encodings(tmp_path, rows(100, constant=True)) == {"a": False, "b": True}  # as before, and right
    assert encodings(tmp_path, rows(100, constant=True)) == {"a": True, "b": True}


def test_parquet_dictionaries_do_not_follow_from_few_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_TELLING", 100)
    assert encodings(tmp_path, rows(1, constant=True)) == {"a": False, "b": False}
    assert encodings(tmp_path, rows(100, constant=True)) == {"a": True, "b": True}
    assert encodings(tmp_path, rows(99, constant=False)) == {"a": False, "b": True}
    assert encodings(tmp_path, rows(100, constant=False)) == {"a": True, "b": True}  # as the last with so many


def test_parquet_dictionaries_follow_from_files_of_the_same_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_TELLING", 100)
    monkeypatch.setattr(files, "_SCHEMAS", 2)
    assert encodings(tmp_path, rows(100, constant=False)) == {"a": False, "b": True}
    assert encodings(tmp_path, rows(100, constant=True, name="c")) == {"c": True, "b": True}
    assert encodings(tmp_path, rows(100, constant=True)) == {"a": False, "b": True}  # as before
    assert encodings(tmp_path, rows(100, constant=True, name="d")) == {"d": True, "b": True}
    assert encodings(tmp_path, rows(100, constant=True)) == {"a": True, "b": True}  # with a third one, none is known
