"""``Adoption``: the account, tables and log of a pipeline continue under another name."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from tests.fixtures.wal import Made, record

from sluice.adopt import Adoption
from sluice.errors import ConfigError
from sluice.home import Home
from sluice.ledger import Ledger
from sluice.pipeline import load
from sluice.ranges import Counts, OffsetRange, RangeAccount
from sluice.recovery import Route
from sluice.run.checkpoint import Checkpoint
from sluice.wal import WriteAheadLog
from sluice_spark.sinks.delta.table import DeltaSink


class Place:
    """A home with one table, to which the pipeline ``old`` committed one batch."""

    def __init__(self, folder: Path) -> None:
        self.home = Home(str(folder / "home"))
        self.path = folder / "home" / "table"
        self.path.parent.mkdir(parents=True)
        self.ledger = Ledger.open(f"sqlite:///{folder}/ledger.db")
        self.file = folder / "new.yaml"
        self.file.write_text(
            "pipeline: new\nsource: {kafka: {topics: [t]}}\ndecode: {text: {}}\nsink: {delta: {path: table}}\n"
        )
        note = {"app_id": "sluice:old:1", "version": 0, "run": "r0"}
        write_deltalake(
            str(self.path),
            pa.table({"id": [0, 1, 2]}),
            commit_properties=CommitProperties(
                custom_metadata={"sluice": json.dumps(note)}, app_transactions=[Transaction("sluice:old:1", 0, None)]
            ),
        )
        self.run("old", "r0", committed=True)

    def run(self, pipeline: str, run: str, *, committed: bool = False, interval: str | None = None) -> None:
        span = OffsetRange("t", 0, 0, 3)
        with self.ledger.acquire(pipeline, run) as lease:
            if interval:
                self.ledger.interval_resolved(lease, interval, ranges=[], whole=False, topic_ids={})
            self.ledger.run_planned(
                lease, kind="live", recovery="replay", epoch=1, ranges=[span] if committed else [], topic_ids={}
            )
            if committed:
                account = RangeAccount(span, Counts(written=3))
                self.ledger.batch_committed(lease, epoch=1, batch=0, accounts=[account])
            self.ledger.run_closed(lease, state="done" if committed else "failed", seconds=1.0, verdict="passed")

    def adopt(self) -> bool:
        return Adoption(self.ledger, self.home, "old", load(self.file)).carry_out()

    @property
    def settings(self) -> dict[str, Any]:
        return dict(DeltaTable(str(self.path)).metadata().configuration)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_adopt_continues_the_account_under_the_new_name(place: Place) -> None:
    DeltaTable(str(place.path)).delete()
    assert place.adopt() is True
    assert place.adopt() is False
    assert place.ledger.runs("old") == []
    assert [(r.run, r.state) for r in place.ledger.runs("new")] == [("r0", "done")]
    assert DeltaTable(str(place.path)).transaction_version("sluice:new:1") == 0
    assert (place.settings["sluice.pipeline"], place.settings["sluice.adopting"]) == ("new", "")
    place.run("old", "r0")  # an attempt of the old name behind it changes nothing
    assert place.adopt() is False
    place.ledger.rebuild()
    assert place.ledger.account("new", "r0")["written"] == 3
    DeltaTable(str(place.path)).restore(0)  # to a version before it, with the rows that were deleted
    assert DeltaTable(str(place.path)).to_pyarrow_table().num_rows == 3
    assert place.settings.get("sluice.pipeline") != "new"
    assert (place.adopt(), place.settings["sluice.pipeline"], place.adopt()) == (True, "new", False)


def test_adopt_ignores_refused_runs_of_the_new_name(place: Place) -> None:
    """An interval that was resolved to nothing, and an attempt under the very id that the old name had."""
    key = "2013-03-01T00:00:00Z/2013-03-02T00:00:00Z"
    place.run("new", "r0", interval=key)
    with place.ledger.acquire("old", "r1") as lease:
        place.ledger.interval_resolved(lease, key, ranges=[], whole=False, topic_ids={})
    assert place.adopt() is True
    for _ in range(2):
        (run,) = place.ledger.runs("new")
        assert (run.run, run.state, run.verdict, run.attempts) == ("r0", "done", "passed", 1)
        place.ledger.rebuild()


def test_adopt_refuses_a_table_of_another_pipeline(place: Place) -> None:
    write_deltalake(
        str(place.path), pa.table({"id": [9]}), mode="append",
        commit_properties=CommitProperties(app_transactions=[Transaction("sluice:third:1", 0, None)]),
    )  # fmt: skip
    with pytest.raises(ConfigError, match="third"):
        place.adopt()
    place.run("new", "mine", committed=True)
    assert "sluice.pipeline" not in place.settings


def test_pipeline_is_renamed_again_and_back(place: Place) -> None:
    place.adopt()
    names = ["new", "newer", "old", "new"]
    for old, new in itertools.pairwise(names):
        place.file.write_text(place.file.read_text().replace(f"pipeline: {old}", f"pipeline: {new}"))
        assert Adoption(place.ledger, place.home, old, load(place.file)).carry_out() is True
        assert [r.pipeline for r in place.ledger.runs()] == [new]
        assert place.settings["sluice.pipeline"] == new
        assert DeltaTable(str(place.path)).transaction_version(f"sluice:{new}:1") == 0


class Log(Made):
    """The log of the pipeline ``old``."""

    @property
    def table(self) -> DeltaSink:
        return DeltaSink(str(self.root), WriteAheadLog(str(self.root), "old").app_id(1))


@pytest.mark.parametrize("applied", [1, 2])
def test_adopt_compares_a_stateful_log_with_the_sink_by_offsets(place: Place, applied: int) -> None:
    """The sink also numbers batches that only close windows: offsets tell whether all that is sealed was applied."""
    log = Log(Path(place.home.log("old")))
    for batch in (0, 1):
        log.seal(batch, [[record(o) for o in range(3 * batch, 3 * batch + 3)]])
    Checkpoint(place.home.checkpoint("old", 1)).define("window", {"size": 3600})
    with place.ledger.acquire("old", "r1") as lease:
        place.ledger.epoch_opened(lease, epoch=1, route=Route.LOG, positions=None)
        place.ledger.batch_committed(lease, epoch=1, batch=1, accounts=[])
        if applied == 2:
            account = RangeAccount(OffsetRange("t", 0, 3, 6), Counts(written=3))
            place.ledger.batch_committed(lease, epoch=1, batch=2, accounts=[account])
    write_deltalake(
        str(place.path),
        pa.table({"id": [4]}),
        mode="append",
        commit_properties=CommitProperties(app_transactions=[Transaction("sluice:old:1", applied, None)]),
    )
    if applied == 2:
        assert place.adopt() is True
        assert WriteAheadLog(place.home.log("new"), "new").version(1) == 1
    else:
        with pytest.raises(ConfigError, match="batch"):
            place.adopt()
