"""A pipeline goes on with another cluster and comes back; each record is in the table once, by its origin."""

from __future__ import annotations

import pytest
from tests.chaos.cases import long
from tests.chaos.commands import json_of, killed, listed, redrive, said
from tests.fixtures.clusters import HEADER, STANDBY, Mirrored
from tests.fixtures.inside import without_spark
from tests.fixtures.runs import good

from sluice.run.actions import Failover

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

THERE = f"{STANDBY}:"


def go_to(sandbox: Mirrored, to: str, run: str, *, expect: int = 0) -> str:
    """Fail over in this process: that needs no Spark session; return the error's text."""
    return without_spark(sandbox.file, Failover(run, to, "it burns"), sandbox.env(), expect)


def split(sandbox: Mirrored, run: str) -> tuple[int, ...]:
    """Count what a run planned, wrote, left out as a copy, and refused; nothing was absent or lost."""
    account = sandbox.account(run)
    assert account["absent"] == account["lost"] == 0
    return tuple(account[part] for part in ("planned", "written", "filtered", "quarantined"))


@pytest.mark.long
def test_failover_over_and_back_with_each_record_once(mirrored: Mirrored) -> None:
    topic = mirrored.topic
    mirrored.make(8)  # four in each partition
    mirrored.run("on the first")
    mirrored.make(4)
    mirrored.mirror("", THERE, upto=5)  # of the last four, one in each partition
    with mirrored.ledger.acquire(mirrored.name, "at work"):
        go_to(mirrored, STANDBY, "too early", expect=40)
    go_to(mirrored, STANDBY, "over")
    assert mirrored.open() == [f"{topic}-0 [4, 6)", f"{topic}-1 [4, 6)"]
    mirrored.make(2, prefix=THERE)  # produced there, without a header
    mirrored.run("on the second")
    assert split(mirrored, "on the second") == (12, 4, 8, 0)
    assert mirrored.ledger.runs.account(mirrored.name, "on the second")["copies"] == 8
    assert mirrored.open() == [f"{topic}-0 [5, 6)", f"{topic}-1 [5, 6)"], "the mirror brought the others"
    mirrored.proved(missing=(10, 11))
    (lag,) = json_of(mirrored, "lag")
    assert (lag["verdict"], lag["lag"]) == ("OK", 0)

    redrive(mirrored, "--range", f"{topic}:0:5-6")  # from the old cluster
    mirrored.mirror("", THERE, again=1)  # the same one and another one, each twice
    mirrored.run("caught up")
    assert split(mirrored, "caught up") == (4, 1, 3, 0)
    assert not mirrored.open()
    mirrored.proved()

    mirrored.make(2, prefix=THERE)  # not read there
    mirrored.mirror(THERE, "")
    mirrored.make(2)
    go_to(mirrored, "kafka_default", "back")
    assert len(mirrored.open()) == 2
    mirrored.run("on the first again")
    assert not mirrored.open()
    assert split(mirrored, "on the first again") == (6, 4, 2, 0)
    mirrored.proved()
    go_to(mirrored, "kafka_default", "back again")
    assert mirrored.ledger.runs.account(mirrored.name, "back again")["failover"]["epoch"] is None
    before = mirrored.cli("status", mirrored.name, "--json").stdout
    mirrored.ledger.rebuild()
    assert mirrored.cli("status", mirrored.name, "--json").stdout == before


@pytest.mark.long
def test_failover_quarantines_an_origin_header_that_is_wrong_or_missing(mirrored: Mirrored) -> None:
    mirrored.configure(kafka={"origin_required": True})
    mirrored.make(2)
    mirrored.run("first")
    mirrored.mirror("", THERE)
    go_to(mirrored, STANDBY, "over")
    wrong = [None, b"orders", b"another:0:1", f"{mirrored.topic}:0:1x".encode(), b"\xff:0:1"]
    headers = [[] if value is None else [(HEADER, value)] for value in wrong]
    mirrored.admin[THERE].produce(mirrored.topic, [(0, None, good(90 + n), None, h) for n, h in enumerate(headers)])
    mirrored.run("second")
    assert split(mirrored, "second") == (7, 0, 2, 5)
    errors = [row["_errors"][0] for row in listed(mirrored, "table_quarantine")]
    assert {(error["rule"], error["column"]) for error in errors} == {("origin", HEADER)}
    mirrored.proved()
    mirrored.configure()
    mirrored.run("redriven", redriven="quarantined")
    assert mirrored.account("redriven")["written"] == 1, "without a header it is one that was produced there"


@pytest.mark.long
@pytest.mark.parametrize("point", ["run-planned", "before-sink-commit", "epoch-closed", "epoch-opened"])
def test_failover_that_is_killed_is_finished_by_any_run(mirrored: Mirrored, point: str) -> None:
    mirrored.make(8)
    mirrored.run("first")
    mirrored.make(4)
    mirrored.mirror("", THERE)
    killed(mirrored, point, "failover", "--to", STANDBY)
    mirrored.run("next")
    done = point in ("epoch-closed", "epoch-opened")
    assert mirrored.account("next")["planned"] == (12 if done else 4)
    mirrored.proved()
    said(mirrored, "failover", "--to", STANDBY)
    mirrored.make(2, prefix=THERE)
    mirrored.run("last")
    mirrored.proved()


@pytest.mark.parametrize("point", ["sink-committed", *long("batch-started", "rows-staged", "before-sink-commit")])
@pytest.mark.parametrize("recovery", ["replay", *long("hot", "ignore_range", "ignore_batch")])
def test_clusters_run_that_is_killed_on_the_second_cluster_writes_nothing_twice(
    mirrored: Mirrored, point: str, recovery: str
) -> None:
    mirrored.configure(recovery=recovery)
    mirrored.make(8)
    mirrored.run("first")
    mirrored.make(6)
    mirrored.mirror("", THERE, again=2)
    mirrored.make(3, prefix=THERE)
    go_to(mirrored, STANDBY, "over")
    mirrored.run("killed", kill_at=f"{point}:3")
    mirrored.run("next")
    assert not mirrored.open()
    mirrored.proved()


@pytest.mark.long
def test_failover_from_a_dead_cluster_writes_what_was_not_seen_of_it_once(mirrored: Mirrored) -> None:
    mirrored.make(8)
    mirrored.run("first")
    mirrored.make(6)
    mirrored.mirror("", THERE)
    mirrored.broker.kill()
    assert mirrored.run("down", expect=20)
    said(mirrored, "failover", "--to", STANDBY)
    assert not mirrored.open()
    mirrored.run("on the second")
    mirrored.proved()
    mirrored.make(2, prefix=THERE)
    mirrored.run("more")
    mirrored.broker.start()
    mirrored.mirror(THERE, "")
    mirrored.make(1)
    go_to(mirrored, "kafka_default", "back")
    mirrored.run("back on the first")
    mirrored.proved()
