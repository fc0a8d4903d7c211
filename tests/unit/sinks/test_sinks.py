"""Sinks of a topic and of the user, and the manifest of a folder: its files after each commit, and with damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.pipelines import modelled

from sluice.sinks.foreach import Batch
from sluice.sinks.kafka import KafkaSink
from sluice.sinks.manifest import BrokenManifestError, Manifest, State, files_of


def note(batch: int, writer: str = "sluice:p:1") -> dict[str, Any]:
    return {"app_id": writer, "version": batch}


def added(*paths: str) -> list[dict[str, Any]]:
    return [{"path": path, "rows": 1} for path in paths]


def test_manifest_adds_and_replaces_files(tmp_path: Path) -> None:
    manifest = Manifest(str(tmp_path))
    assert manifest.state() == State()
    assert files_of(str(tmp_path)) == []
    assert manifest.commit(manifest.state(), added("a", "b"), [], note(0), {"columns": 1})
    assert manifest.commit(manifest.state(), added("c"), ["a"], note(0, "sluice:p:interval:x"))
    state = manifest.state()
    assert (sorted(state.files), list(state.replaced), state.schema) == (["b", "c"], ["a"], {"columns": 1})
    assert state.batches == {"sluice:p:1": 0, "sluice:p:interval:x": 0}
    assert sorted(files_of(str(tmp_path))) == [f"{tmp_path}/b", f"{tmp_path}/c"]
    assert manifest.commit(state, [], [], note(1), forgotten=["a"])
    assert manifest.state().replaced == {}
    assert [(number, found["version"]) for number, found in manifest.notes()] == [(2, 1), (1, 0), (0, 0)]


def test_manifest_lets_one_of_two_commit_on_the_same_state(tmp_path: Path) -> None:
    manifest = Manifest(str(tmp_path))
    one, other = manifest.state(), manifest.state()
    assert manifest.commit(one, added("a"), [], note(0))
    assert not manifest.commit(other, added("b"), [], note(0))
    assert list(manifest.state().files) == ["a"]
    assert {file.name for file in (tmp_path / "_sluice").iterdir()} == {f"{0:020}.json"}


def test_manifest_snapshot_equals_its_commits(tmp_path: Path) -> None:
    manifest = Manifest(str(tmp_path))
    for number in range(107):
        gone = [f"f{number - 1}"] if number % 3 == 1 else []
        assert manifest.commit(manifest.state(), added(f"f{number}"), gone, note(number), {"n": number})
    snapshots, state = sorted((tmp_path / "_sluice").glob("*.snapshot.json")), manifest.state()
    assert [int(file.name[:20]) for file in snapshots] == [49, 99]
    for change in (lambda: snapshots[1].write_text("{"), snapshots[1].unlink, snapshots[0].unlink):
        change()
        assert manifest.state() == state


def test_manifest_names_missing_and_damaged_commits(tmp_path: Path) -> None:
    manifest = Manifest(str(tmp_path))
    for number in range(51):
        manifest.commit(manifest.state(), added(f"f{number}"), [], note(number))
    first, *_, last = sorted((tmp_path / "_sluice").glob("*[0-9].json"))
    text = last.read_text()
    last.write_text(text[:-5])
    with pytest.raises(BrokenManifestError, match="commit 50"):
        manifest.state()
    last.write_text(first.read_text())
    with pytest.raises(BrokenManifestError, match=r"commit 50 .*0"):
        manifest.state()
    last.write_text(text)
    first.unlink()
    with pytest.raises(BrokenManifestError, match="commit 0"):
        manifest.state()


def test_kafka_sink_has_a_topic_of_commits_and_may_write_the_sources_topic_of_another_cluster() -> None:
    sink = KafkaSink(topic="orders")
    assert (sink.marks, sink.needs) == ("orders.sluice-commits", "kafka_default")
    assert modelled("sink: {kafka: {topic: t, connection: other}}").sink.key == "kafka"


def test_foreach_batch_has_the_same_id_in_each_run() -> None:
    assert str(Batch("orders", "1", 7, "manual")) == str(Batch("orders", "1", 7, "again")) == "orders:1:7"
