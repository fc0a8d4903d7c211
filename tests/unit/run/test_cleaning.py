"""``sluice clean``: which segments count as applied, by the checkpoint and the ledger."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.fixtures.wal import Made
from tests.unit.ledger.conftest import split

from sluice.home import Home
from sluice.ledger import Ledger
from sluice.ledger.events import batch_committed
from sluice.pipeline import load
from sluice.run.checkpoint import Checkpoint
from sluice.run.cleaning import clean_log

PIPELINE = """\
pipeline: p
source: {kafka: {topics: [t]}}
decode: {json: {schema: "id BIGINT, at TIMESTAMP"}}
recovery: wal
sink: {delta: {path: table}}
"""
STATE = "dedupe: {keys: [id], time: at, within: 1h}\n"


@pytest.mark.parametrize("kept", [STATE, ""])
def test_cleaning_goes_by_offsets_where_the_checkpoint_has_state(tmp_path: Path, kept: str) -> None:
    """The sink numbers its batches by itself, so its numbers say nothing of the log's."""
    home = Home(str(tmp_path))
    made = Made(Path(home.log("p")))
    made.seal_lines(4)
    Checkpoint(home.checkpoint("p", 1)).define("dedupe", {"keys": ["id"]})
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    with ledger.acquire("p", "r") as lease:
        for number, at in enumerate((0, None, 10, None)):  # each second one only forgets keys
            accounts = [] if at is None else [split(at, at + 10, n) for n in (0, 1)]
            ledger.record(lease, *batch_committed(1, number, accounts))
        ledger.record(lease, *batch_committed(1, 4, [split(20, 30, n) for n in (0, 1)]))
    (tmp_path / "p.yaml").write_text(PIPELINE + kept)
    found = clean_log(ledger, load(tmp_path / "p.yaml"), home, datetime(2100, 1, 1, tzinfo=UTC))
    assert len(found.segments) == 4, "batches 0 and 1: the state of 2 may still be made, and 3 was not applied"
    assert {segment.range.start for segment in made.log.segments()} == {20, 30}
