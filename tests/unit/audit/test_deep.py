"""Deep audits: right tables and logs pass, each wrong is named, and tables of different moments are separated."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.fixtures.books import Place, rows, span, split
from tests.fixtures.golden import Golden
from tests.fixtures.wal import Made, record

from sluice.audit import audit, deep, deep_audit, snapshot
from sluice.errors import SinkError
from sluice.facts import Windows
from sluice.ledger.events import SegmentSealed
from sluice.pipeline import load
from sluice.wal.catalog import SEAL


def test_deep_audit_finds_a_right_pipeline_right(story: Place) -> None:
    story.write()
    report, plain = story.deep(), audit(story.ledger, "p")
    assert (report.problems, plain.problems, report.unproved) == ([], [], [])
    assert report.partitions == plain.partitions == [
        dict(topic="t", partition=0, start=0, end=20, planned=20, written=15, filtered=0, quarantined=1, absent=2,
             lost=2, redriven=5, open=2),
        dict(topic="t", partition=1, start=0, end=8, planned=8, written=8, filtered=0, quarantined=0, absent=0,
             lost=0, redriven=0, open=0),
    ]  # fmt: skip
    assert [(row["start"], row["end"], row["lost_by"], row["reason"]) for row in report.lost] == [
        (15, 16, "b", "poison"), (19, 20, "b", "poison"),
    ]  # fmt: skip
    assert {name: table["rows"] for name, table in report.tables.items()} == {"sink": 23, "quarantine": 1}


def test_audit_finds_a_pipeline_that_never_ran_right(place: Place) -> None:
    assert place.deep().balanced
    assert audit(place.ledger, "p").as_dict() == {
        "pipeline": "p", "balanced": True, "partitions": [], "lost": [], "problems": []
    }  # fmt: skip


@pytest.mark.parametrize("columns", [["_topic", "_partition"], ["_partition"], ["_run"]])
def test_deep_audit_reads_partitioned_tables(story: Place, columns: list[str]) -> None:
    story.partition_by = columns
    story.sink += rows("a", 5)
    assert story.found() == ["t-0 [5, 6) stands more than once in the sink"]


def test_deep_audit_reads_tables_that_another_tool_rewrote(story: Place) -> None:
    story.write()
    table = DeltaTable(story.path)
    table.optimize.compact()
    assert story.deep().problems == []
    table.optimize.z_order(["_offset"])
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    table.create_checkpoint()
    assert story.deep().problems == []
    table.delete("_partition = 1 AND _offset = 2")
    assert any("t-1 [2, 3) is missing" in problem for problem in story.deep().problems)


def test_deep_audit_takes_a_missing_quarantine_for_an_empty_one(place: Place) -> None:
    place.commit("a", split(0, 3))
    place.append(rows("a", 0, 1, 2), place.ends)
    assert place.deep().problems == []
    DeltaTable(place.path).delete("_offset = 1")
    assert [problem[:12] for problem in place.deep().problems] == ["t-0 [1, 2) i", "of t-0 [0, 3"]


def test_deep_audit_lets_a_filter_drop_any_offsets_of_its_range(place: Place) -> None:
    place.configure(rows="filter")
    place.commit("a", split(0, 10, written=3, filtered=7))
    place.sink = rows("a", 2, 3, 9)
    assert place.found() == []
    place.append(rows("a", 4), {})
    assert place.deep().problems == ["of t-0 [0, 10) the ledger counts 3 offsets as written, the sink holds 4"]


def test_deep_audit_takes_any_number_of_rows_by_one_run_for_rows_many(place: Place) -> None:
    place.configure(rows="many")
    place.commit("a", split(0, 3, written=2, filtered=1))
    place.commit("b", split(3, 5))
    place.sink = [*rows("a", 0, 0, 0, 2), *rows("b", 3, 4, 4)]
    assert place.found() == []
    assert "rows: many" in place.deep().unproved[0]
    place.append(rows("again", 2), {})
    assert place.deep().problems == ["t-0 [2, 3) is in the sink, by another run than the ledger names"]


def test_deep_audit_proves_rows_aggregate_by_run(place: Place) -> None:
    place.configure(rows="aggregate")
    place.commit("a", split(0, 5, written=4, quarantined=1))
    place.sink = [(None, None, None, "a")] * 2
    place.quarantine = rows("a", 3)
    assert place.found() == []
    assert "rows of the sink carry no offsets" in place.deep().unproved[0]
    place.append([(None, None, None, "unknown")], {})
    place.append(rows("a", 4), {}, f"{place.path}_quarantine")
    assert place.deep().problems == [
        "1 rows of the sink are by run 'unknown', for which there is no account",
        "of t-0 [0, 5) the ledger counts 1 offsets as quarantined, the quarantine holds 2",
    ]


def test_deep_audit_knows_a_run_that_only_closed_windows(place: Place) -> None:
    place.configure(rows="aggregate")
    place.commit("a", split(0, 5))
    closing: Any = {"rows": 1, "late": [], "partly_late": 0, "latest": None, "late_by": None, "closed_to": 900}
    place.commit("flush", facts=[Windows(**closing)])
    place.sink = [(None, None, None, "a"), (None, None, None, "flush")]
    assert place.found() == []


def test_deep_audit_of_a_table_that_cannot_be_read_is_an_error_and_no_finding(story: Place) -> None:
    story.write()
    for file in Path(story.path).glob("*.parquet"):
        file.unlink()
    with pytest.raises(SinkError, match="sink"):
        story.deep()


def test_deep_audit_names_a_sink_without_offsets(story: Place) -> None:
    story.write()
    write_deltalake(story.path, pa.table({"id": [1]}), mode="overwrite", schema_mode="overwrite")
    assert f"the sink {story.path} has no column _topic, _partition, _offset, _run" in story.deep().problems


@pytest.fixture
def logged(story: Place) -> Place:
    """The same story, with a write-ahead log of its second epoch: two segments, sealed by one batch."""
    ranges = [span(10, 20), span(5, 8, 1)]
    records = [
        [record(o, r.partition, value=random.Random(o).randbytes(400)) for o in range(r.start, r.end)] for r in ranges
    ]
    segments = Made(Path(story.home.log("p")), epoch=2).seal(0, records, ranges)
    with story.ledger.acquire("p", "b") as lease:
        story.ledger.record(lease, SegmentSealed.of(2, 0, [s.as_dict() for s in segments]))
    story.write()
    return story


def test_deep_audit_of_a_whole_log_reports_its_progress(logged: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deep, "_EVERY", -1)
    progress: list[str] = []
    report = deep_audit(logged.ledger, load(logged.file), logged.home, progress.append)
    assert report.problems == []
    assert report.tables["log"] == {"path": logged.home.log("p"), "segments": 2, "records": 13}
    assert any("23 rows" in line for line in progress)
    assert "2 of 2" in progress[-1]


@pytest.mark.parametrize("how", ["garbled", "truncated", "missing"])
def test_deep_audit_names_a_damaged_segment(logged: Place, how: str) -> None:
    file, _ = sorted(Path(logged.home.log("p")).glob("batches/*/*.parquet"))
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 3] ^= 1
    file.unlink() if how == "missing" else file.write_bytes(raw if how == "garbled" else raw[:-9])
    (problem,) = logged.deep().problems
    assert f"{file.parent.name}/{file.name} of t-0 [10, 20) is {how}" in problem


def test_deep_audit_names_a_damaged_seal_and_a_removed_log(logged: Place) -> None:
    (seal,) = Path(logged.home.log("p")).glob(f"batches/*/{SEAL}")
    seal.write_text("{")
    (problem,) = logged.deep().problems
    assert f"{seal.parent.name}/{SEAL}" in problem
    Path(logged.home.log("p")).rename(logged.root / "elsewhere")
    (problem,) = logged.deep().problems
    assert ("batch 0 of epoch 2" in problem, logged.home.log("p") in problem) == (True, True)


def test_deep_audit_names_a_removed_or_restored_table(story: Place, golden: Golden) -> None:
    golden("audit", "\n".join(sorted(story.deep().problems)))
    story.write()
    story.commit("e", split(20, 22), epoch=2)
    golden("audit", "\n".join(story.deep().problems))


def test_deep_audit_has_one_problem_for_a_batch_that_the_ledger_does_not_know_yet(story: Place) -> None:
    story.write()
    for path, app_id in ((story.path, "sluice:p:2"), (f"{story.path}_quarantine", "sluice:p:2:quarantine")):
        note = json.dumps({"app_id": app_id, "version": 1, "run": "e"})
        story.append(rows("e", 20, 21) if path == story.path else rows("e", 22), {app_id: 1}, path, sluice=note)
    (problem,) = story.deep().problems
    assert "batch 1 of epoch 2, the ledger ends with batch 0" in problem


def test_deep_audit_has_one_problem_for_a_first_batch_that_the_ledger_does_not_know_yet(place: Place) -> None:
    note = json.dumps({"app_id": "sluice:p:1", "version": 0, "run": "a"})
    place.append(rows("a", 0, 1), {"sluice:p:1": 0}, sluice=note)
    (problem,) = place.deep().problems
    assert "batch 0 of epoch 1, the ledger ends with batch -1" in problem


def test_deep_audit_waits_for_a_driver_that_commits_meanwhile(story: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    story.write()
    story.append(rows("e", 20, 21), {"sluice:p:2": 1})
    monkeypatch.setattr(snapshot, "sleep", lambda _: story.commit("e", split(20, 22), epoch=2))
    report = story.deep()
    assert (report.problems, report.partitions[0]["end"]) == ([], 22)
