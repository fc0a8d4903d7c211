"""The key ``sink.foreach``: what is refused when the file is read, and the id of a batch."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fixtures.specs import GOOD, write

from sluice.errors import ConfigError
from sluice.pipeline import load
from sluice.pipeline.load import clash_of
from sluice.sinks.foreach import Batch


def test_the_id_of_a_batch_names_no_run() -> None:
    assert str(Batch("orders", "1", 7, "manual")) == str(Batch("orders", "1", 7, "again")) == "orders:1:7"


@pytest.mark.parametrize(
    ("python", "told"),
    [
        ("sluice.sinks.foreach:Nothing", "has no class or function 'Nothing'"),
        ("no_such_module:Writer", "no module 'no_such_module'"),
        ("Writer", "write package.module:function"),
    ],
)
def test_a_writer_that_is_not_there_is_refused(tmp_path: Path, python: str, told: str) -> None:
    text = GOOD.replace("delta: {path: p}", f'foreach: {{python: "{python}"}}')
    with pytest.raises(ConfigError, match=told):
        load(write(tmp_path, text))


@pytest.mark.parametrize("sink", ['foreach: {python: "sluice.sinks.foreach:Writer"}', "console: {rows: 5}"])
def test_two_pipelines_may_have_one(tmp_path: Path, sink: str) -> None:
    text = GOOD.replace("delta: {path: p}", sink)
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    one = load(write(tmp_path / "one", text))
    other = load(write(tmp_path / "other", text.replace("pipeline: p", "pipeline: q")))
    assert clash_of(one, [other]) is None
