"""A folder of Parquet files as a sink: which rows it holds, who may write to it, and what others do to it."""

from __future__ import annotations

import json
from collections import Counter

import pyarrow.parquet as pq
import pytest
from tests.fixtures.folder import FolderSandbox
from tests.fixtures.runs import good

from sluice.sinks.manifest import files_of

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_a_reader_finds_the_rows_by_the_manifest(into_files: FolderSandbox, engine: str) -> None:
    sandbox = into_files
    sandbox.configure(engine=engine)
    for number in range(3):
        sandbox.feed(4)
        said = sandbox.run(f"r{number}").stderr
        assert ("Spark path" in said) == (engine == "spark"), said
    sandbox.assert_exact()
    assert sorted(files_of(str(sandbox.out))) == sorted(f"{sandbox.out}/{path}" for path in sandbox.named())
    rows = pq.ParquetDataset(files_of(str(sandbox.out))).read()
    assert Counter(rows.column("_run").to_pylist()) == {"r0": 4, "r1": 4, "r2": 4}


def test_the_rows_of_a_run_are_validated_also_beside_what_an_interval_left(into_files: FolderSandbox) -> None:
    sandbox = into_files
    between = {"column": "id", "min_value": 1}
    suite = {"name": "s", "expectations": [
        {"type": "expect_column_values_to_be_between", "kwargs": between},
        {"type": "expect_column_values_to_be_unique", "kwargs": {"column": "id"}, "meta": {"scope": "table"}},
    ]}  # fmt: skip
    (sandbox.home / "suite.json").write_text(json.dumps(suite))
    sandbox.configure(quality={"suite": "suite.json"}, kafka={"max_records_per_batch": 100})
    day = 1_772_323_200_000  # 2026-03-01
    sandbox.produce([(0, b"k", good(n), day + n * 86_400_000) for n in (1, 2, 3)])
    sandbox.run("live", validate=True)
    sandbox.run("again", interval=("2026-03-02", "2026-03-03"), validate=True)
    sandbox.produce([(0, b"k", good(0))])
    sandbox.run("bad", validate=True, expect=None)
    verdicts = [row.verdict for n in ("live", "again", "bad") if (row := sandbox.ledger.run(sandbox.name, n))]
    assert verdicts == ["passed", "passed", "failed"]


def test_what_was_refused_is_redriven(into_files: FolderSandbox) -> None:
    sandbox = into_files
    sandbox.configure(quality={"max_quarantined": "100%"}, rules=[{"name": "small", "sql": {"passes": "id < 100"}}])
    sandbox.produce([(0, b"k", good(n)) for n in (1, 2000, 3)])
    sandbox.run("live")
    sandbox.configure(quality={"max_quarantined": "100%"})
    sandbox.run("moved", redriven="quarantined")
    assert [row["id"] for row in sandbox.lines()] == [1, 2000, 3]
    assert sandbox.quarantine() == Counter()
    sandbox.assert_balanced()


def test_another_pipeline_may_not_write_to_it(into_files: FolderSandbox) -> None:
    sandbox = into_files
    sandbox.feed(2)
    sandbox.run("r")
    first, sandbox.name = sandbox.name, f"{sandbox.name}b"
    sandbox.configure()
    assert f"belongs to pipeline '{first}'" in sandbox.run("r", expect=10).message


def test_other_columns_are_refused(into_files: FolderSandbox) -> None:
    sandbox = into_files
    sandbox.feed(2)
    sandbox.run("r")
    sandbox.configure(decode={"json": {"schema": "id INT, more STRING"}})
    sandbox.feed(2)
    said = sandbox.run("r2", expect=10).message
    assert "id: bigint in the files, int in the pipeline" in said
    assert "name: string in the files, missing in the pipeline" in said
    assert "more: missing in the files, string in the pipeline" in said


def test_a_commit_that_is_gone_or_damaged_is_missed(into_files: FolderSandbox) -> None:
    sandbox = into_files
    for number in range(3):
        sandbox.feed(2)
        sandbox.run(f"r{number}")
    *_, last = commits = sorted(sandbox.out.glob("_sluice/*.json"))
    kept = {file: file.read_text() for file in commits}
    commits[1].unlink()
    assert "commit 1 is missing" in sandbox.run("r3", expect=41).message
    commits[1].write_text("")
    assert "commit 1 is damaged" in sandbox.run("r3", expect=41).message
    commits[1].write_text(kept[commits[1]])
    last.unlink()
    assert "the ledger has batch 2 of" in sandbox.run("r3", expect=41).message
    last.write_text(kept[last])
    sandbox.feed(2)
    sandbox.run("r3")
    sandbox.assert_exact()
