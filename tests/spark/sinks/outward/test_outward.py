"""Rows that leave: calls of a writer of the user's and its failures, and the first rows on the console."""

from __future__ import annotations

import pytest
from deltalake import DeltaTable
from tests.fixtures.outward import WriterSandbox

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


def test_foreach_names_a_writer_that_fails_or_ends_its_process_with_its_row(into_writer: WriterSandbox) -> None:
    sandbox = into_writer
    sandbox.feed(5)
    said = sandbox.run("r", expect=30, POISON="name 3").message
    assert f"collector:Lines failed at {sandbox.topic}-1 offset 1 of batch {sandbox.name}:1:0" in said
    assert "ValueError: «poison»" in said
    assert "at least once" in said
    assert sandbox.lines("closed")[-1]["error"] == "ValueError('poison')"
    # Spark would wait for ever for the answer of a batch whose thread is gone
    said = sandbox.run("r", expect=30, LEAVING="name 3").message
    assert f"failed at {sandbox.topic}-1 offset 1 of batch" in said
    assert "it called sys.exit(0)" in said
    sandbox.run("r")
    assert set(sandbox.handed_over()) == set(sandbox.on_broker())
    assert set(sandbox.handed_over().values()) > {1}
    sandbox.assert_balanced()


def test_console_prints_the_first_rows_of_each_batch(into_writer: WriterSandbox) -> None:
    sandbox = into_writer
    sandbox.configure(sink={"console": {"rows": 3}})
    sandbox.feed(5)
    said = sandbox.run("r", validate=True).stderr
    assert f"batch {sandbox.name}:1:0: 5 rows" in said
    assert (
        f'  {{"id": 0, "name": "name 0", "_topic": "{sandbox.topic}", "_partition": 0, "_offset": 0, "_timestamp": "2'
        in said
    )
    assert (said.count('  {"id": '), "and 2 more" in said) == (3, True)
    sandbox.assert_balanced()
    assert not list((sandbox.home / "staged").rglob("*.parquet"))


@pytest.mark.parametrize("sink", [None, {"console": {"rows": 3}}])
def test_outward_sink_refuses_a_time_that_python_does_not_have(into_writer: WriterSandbox, sink: object) -> None:
    sandbox = into_writer
    far = "CASE id WHEN 2 THEN timestamp_millis(1767225600000000) END AS far, named_struct('d', date'2026-01-01') AS o"
    sql = f"SELECT id, name, {far}, _topic, _partition, _offset, _timestamp FROM source"
    sandbox.configure(transform={"sql": sql}, **({"sink": sink} if sink else {}))
    sandbox.feed(5)
    sandbox.run("r")
    account = sandbox.account("r")
    assert (account["written"], account["quarantined"]) == (4, 1)
    (refused,) = DeltaTable(str(sandbox.home / "quarantine" / sandbox.name)).to_pyarrow_table().to_pylist()
    assert [(error["rule"], error["column"]) for error in refused["_errors"]] == [("sink", "far")]
    sandbox.assert_balanced()
