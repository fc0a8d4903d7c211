"""Tables whose rows carry no offsets: that a commit of the pipeline was rolled back shows in the history alone."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake

from sluice.audit.deep import _altered, _rolled_back
from sluice.delta.table import Table


def test_audit_tells_a_result_that_was_rolled_back_or_changed(tmp_path: Path) -> None:
    path = str(tmp_path)
    for batch in range(3):
        note = CommitProperties(custom_metadata={"sluice": json.dumps({"app_id": "sluice:p:1", "run": f"r{batch}"})})
        write_deltalake(path, pa.table({"n": [batch]}), mode="append", commit_properties=note)
    assert _rolled_back(Table.open("sink", path)) == _altered(Table.open("sink", path)) == []
    DeltaTable(path).optimize.compact()
    assert _altered(Table.open("sink", path)) == []
    DeltaTable(path).delete("n = 0")
    (changed,) = _altered(Table.open("sink", path))
    assert "(DELETE)" in changed
    assert _rolled_back(Table.open("sink", path)) == []
    DeltaTable(path).restore(1)
    (wrong,) = _rolled_back(Table.open("sink", path))
    assert "(RESTORE): version 2 " in wrong
    assert _rolled_back(Table("sink", path)) == []
