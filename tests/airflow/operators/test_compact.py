"""Compaction from Airflow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.fixtures.deltas import marked

from sluice.home import Home
from sluice_airflow.operators.compact import CompactOperator

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


def test_it_merges_the_tables_small_files(pipeline_file: Callable[..., Path], context: Any) -> None:
    file = pipeline_file("p")
    assert CompactOperator(task_id="c", pipeline=str(file)).execute(context()) == []
    path = Home.from_env().resolve("p")
    for number in range(3):
        write_deltalake(path, pa.table({"a": [number]}), mode="append")
    marked(path, "p", "sink")
    (row,) = CompactOperator(task_id="c", pipeline=str(file), dry_run=True).execute(context())
    assert (row["files"], row["small"]) == (3, 3)
    (row,) = CompactOperator(task_id="c", pipeline=str(file)).execute(context())
    assert (row["merged"], row["into"]) == (3, 1)
