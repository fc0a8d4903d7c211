"""A writer of the user's: what it is called with, and what its failures mean."""

from __future__ import annotations

import json

import pytest
from tests.fixtures.outward import WriterSandbox
from tests.fixtures.runs import good

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def test_foreach_has_a_writer_for_each_source_partition_of_a_batch(into_writer: WriterSandbox) -> None:
    sandbox = into_writer
    sandbox.feed(4)
    sandbox.run("r")
    ids = [f"{sandbox.name}:1:0"] * 2
    parts = [f"{sandbox.topic}-0", f"{sandbox.topic}-1"]
    assert [(line["batch"], line["in"]) for line in sandbox.lines("opened")] == list(zip(ids, parts, strict=True))
    assert [line["error"] for line in sandbox.lines("closed")] == ["None", "None"]
    assert [(row["in"], row["id"]) for row in sandbox.lines()] == [
        (parts[0], 0), (parts[0], 2), (parts[1], 1), (parts[1], 3)]  # fmt: skip
    sandbox.run("nothing new")
    assert len(sandbox.lines("opened")) == 2
    sandbox.assert_balanced()


def test_foreach_names_a_writer_that_fails_with_its_row_and_closes_it(into_writer: WriterSandbox) -> None:
    sandbox = into_writer
    sandbox.feed(5)
    said = sandbox.run("r", expect=30, POISON="name 3").message
    assert f"collector:Lines failed at {sandbox.topic}-1 offset 1 of batch {sandbox.name}:1:0" in said
    assert "ValueError: poison" in said
    assert "at least once" in said
    assert sandbox.lines("closed")[-1]["error"] == "ValueError('poison')"
    sandbox.run("r")
    assert set(sandbox.handed_over()) == set(sandbox.on_broker())
    assert set(sandbox.handed_over().values()) == {1, 2}
    sandbox.assert_balanced()


def test_foreach_takes_a_writer_that_ends_its_process_for_a_failure(into_writer: WriterSandbox) -> None:
    """Spark would wait for ever for the answer of a batch whose thread is gone."""
    sandbox = into_writer
    sandbox.feed(5)
    said = sandbox.run("r", expect=30, LEAVING="name 3").message
    assert f"failed at {sandbox.topic}-1 offset 1 of batch" in said
    assert "it called sys.exit(0)" in said
    sandbox.run("r")
    assert set(sandbox.handed_over()) == set(sandbox.on_broker())
    sandbox.assert_balanced()


def test_foreach_run_is_validated_and_its_interval_is_refused(into_writer: WriterSandbox) -> None:
    sandbox = into_writer
    unique = {"type": "expect_column_values_to_be_unique", "kwargs": {"column": "id"}}
    (sandbox.home / "suite.json").write_text(json.dumps({"name": "s", "expectations": [unique]}))
    sandbox.configure(quality={"suite": "suite.json"})
    sandbox.produce([(0, b"k", good(1)), (0, b"k", good(1))])
    sandbox.run("r", validate=True, expect=None)
    found = sandbox.ledger.run(sandbox.name, "r")
    assert found.verdict == "failed"
    said = sandbox.run("i", interval=("2026-03-02", "2026-03-03"), expect=10).message
    assert "sink.foreach cannot replace rows" in said
