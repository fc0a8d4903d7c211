"""``Adoption``: the account, tables and log of a pipeline continue under another name."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable
from tests.fixtures.books import Place, rows, split
from tests.fixtures.ledgers import attempt
from tests.fixtures.wal import Made, record

from sluice.adopt import Adoption
from sluice.errors import ConfigError
from sluice.ledger.events import EpochOpened, Judged, batch_committed
from sluice.pipeline import load
from sluice.recovery import Route
from sluice.run.checkpoint import Checkpoint
from sluice.wal import WriteAheadLog
from sluice_spark.sinks.delta.table import DeltaSink


@pytest.fixture
def place(place: Place) -> Place:
    """A pipeline that committed one batch as ``p``, and is called ``new`` in its file."""
    place.commit("r0", split(0, 3))
    place.ledger.decide("p", "r0", Judged(verdict="passed", judgement={}))
    note = {"app_id": "sluice:p:1", "version": 0, "run": "r0"}
    place.append(rows("r0", 0, 1, 2), place.ends, sluice=json.dumps(note))
    place.configure(pipeline="new")
    return place


def adopt(place: Place, old: str = "p") -> bool:
    return Adoption(place.ledger, place.home, old, load(place.file)).carry_out()


def settings(place: Place) -> dict[str, str | None]:
    return dict(DeltaTable(place.path).metadata().configuration)


def test_adopt_continues_the_account_under_the_new_name(place: Place) -> None:
    DeltaTable(place.path).delete()
    assert (adopt(place), adopt(place)) == (True, False)
    assert place.ledger.runs.newest("p") == []
    assert [(r.run, r.state) for r in place.ledger.runs.newest("new")] == [("r0", "done")]
    assert DeltaTable(place.path).transaction_version("sluice:new:1") == 0
    assert (settings(place)["sluice.pipeline"], settings(place)["sluice.adopting"]) == ("new", "")
    with attempt(place.ledger, "r0", state="failed"):  # of the old name behind it: it changes nothing
        pass
    assert adopt(place) is False
    place.ledger.rebuild()
    assert place.ledger.runs.account("new", "r0")["written"] == 3
    DeltaTable(place.path).restore(0)  # to a version before it, with the rows that were deleted
    assert DeltaTable(place.path).count() == 3
    assert settings(place).get("sluice.pipeline") != "new"
    assert (adopt(place), settings(place)["sluice.pipeline"], adopt(place)) == (True, "new", False)


def test_adopt_ignores_refused_runs_of_the_new_name(place: Place) -> None:
    """An interval that was resolved to nothing, and an attempt under the very id that the old name had."""
    march = "2013-03-01T00:00:00Z/2013-03-02T00:00:00Z"
    for name, run in (("new", "r0"), ("p", "r1")):
        with place.ledger.acquire(name, run) as lease:
            place.ledger.interval_resolved(lease, march, ranges=[], whole=False, topic_ids={})
    with attempt(place.ledger, "r0", pipeline="new", state="failed"):
        pass
    made = Path(place.home.source("new"))
    made.mkdir(parents=True)
    (made / "id").write_text("a refused run's")
    assert adopt(place) is True
    assert not made.exists()
    for _ in range(2):
        (run,) = place.ledger.runs.newest("new")
        assert (run.run, run.state, run.verdict, run.attempts) == ("r0", "done", "passed", 1)
        place.ledger.rebuild()


def test_adopt_refuses_a_table_of_another_pipeline(place: Place) -> None:
    place.append(rows("x", 9), {"sluice:third:1": 0})
    with pytest.raises(ConfigError, match="third"):
        adopt(place)
    assert "sluice.pipeline" not in settings(place)


def test_adopt_renames_a_pipeline_again_and_back(place: Place) -> None:
    for old, new in itertools.pairwise(["p", "new", "newer", "p", "new"]):
        place.configure(pipeline=new)
        assert adopt(place, old) is True
        assert [r.pipeline for r in place.ledger.runs.newest()] == [new]
        assert settings(place)["sluice.pipeline"] == new
        assert DeltaTable(place.path).transaction_version(f"sluice:{new}:1") == 0


def test_adopt_that_goes_on_names_the_folder_that_a_refused_run_made_meanwhile(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = Path(place.home.source("p")), Path(place.home.source("new"))
    old.mkdir(parents=True)
    (old / "id").write_text("the pipeline's")
    os.utime(old / "id", (1, 1))

    def die(*_: object) -> None:
        raise OSError("died")

    with monkeypatch.context() as patched:
        patched.setattr("sluice.adopt.os.rename", die)
        with pytest.raises(OSError, match="died"):
            adopt(place)
    new.mkdir()
    (new / "id").write_text("a refused run's")
    with pytest.raises(ConfigError, match="both exist") as caught:
        adopt(place)
    assert f"rm -r {new}, then" in caught.value.next_step
    shutil.rmtree(new)
    assert adopt(place) is True
    assert (new / "id").read_text() == "the pipeline's"


class Log(Made):
    """The log of the pipeline ``p``."""

    @property
    def table(self) -> DeltaSink:
        return DeltaSink(str(self.root), WriteAheadLog(str(self.root), "p").app_id(1))


@pytest.mark.parametrize("applied", [1, 2])
def test_adopt_compares_a_stateful_log_with_the_sink_by_offsets(place: Place, applied: int) -> None:
    """The sink also numbers batches that only close windows: offsets tell whether all that is sealed was applied."""
    log = Log(Path(place.home.log("p")))
    for batch in (0, 1):
        log.seal(batch, [[record(o) for o in range(3 * batch, 3 * batch + 3)]])
    Checkpoint(place.home.checkpoint("p", 1)).define("window", {"size": 3600})
    with place.ledger.acquire("p", "r1") as lease:
        place.ledger.record(lease, EpochOpened(epoch=1, lineage=Route.LOG, positions=None))
        for batch in range(1, applied + 1):
            accounts = [split(3, 6)] if batch == 2 else []
            place.ledger.record(lease, *batch_committed(1, batch, accounts))
    place.append(rows("r1", 4), {"sluice:p:1": applied})
    if applied == 2:
        assert adopt(place) is True
        assert WriteAheadLog(place.home.log("new"), "new").version(1) == 1
    else:
        with pytest.raises(ConfigError, match="batch"):
            adopt(place)
