"""The console: the first rows of each batch, for a look."""

from __future__ import annotations

import pytest
from tests.fixtures.outward import WriterSandbox

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


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
