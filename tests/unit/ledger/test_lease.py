"""One driver at a time writes a pipeline: leases, their holders, and fences."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any
from unittest import mock

import pytest
from tests.fixtures.ledgers import attempt
from tests.fixtures.postgres import new_database

from sluice.errors import ConfigError, LeaseHeldError
from sluice.ledger import Holder, Lease, Ledger, schema
from sluice.ledger.events import BatchStarted, Judged, RunClosed, RunPlanned, batch_committed
from sluice.ledger.lease import TTL

DRIVER = """
import sys
from sluice.ledger import Ledger
lease = Ledger.open(sys.argv[1]).acquire("p", "theirs")
print(lease.token, flush=True)
sys.stdin.read()
"""


def holder_of(ledger: Ledger) -> Holder:
    with ledger._engine.connect() as connection:
        return Holder(**connection.execute(schema.lease.select()).mappings().one()["holder"])


def change(ledger: Ledger, **values: Any) -> None:
    """Change all leases behind their holders' backs."""
    with ledger._engine.begin() as connection:
        connection.execute(schema.lease.update().values(**values))


def test_lease_is_held_for_one_pipeline_until_it_is_given_back(each_ledger: Ledger) -> None:
    ledger = each_ledger
    assert ledger.runs.running("p") is None
    with ledger.acquire("p", "mine") as first, ledger.acquire("q", "r"):
        assert (ledger.runs.running("p"), ledger.runs.running("other")) == ("mine", None)
        assert Lease.holders(ledger._engine, "p", later=TTL + 1) == {}
        with pytest.raises(LeaseHeldError, match=r"run 'mine', process \d+") as caught:
            ledger.acquire("p", "yours")
        assert caught.value.state == "nothing was read or written"
    assert ledger.runs.running("p") is None
    with ledger.acquire("p", "b") as second:
        assert second.token > first.token


def test_lease_of_a_killed_driver_is_taken_over_at_once_of_a_frozen_one_not(ledger: Ledger, sqlite_url: str) -> None:
    """Also of one that its parent has not waited for: a zombie."""
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, sqlite_url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "1\n"
        assert ledger.runs.running("p") == "theirs"
        other.send_signal(signal.SIGSTOP)
        with pytest.raises(LeaseHeldError, match=f"run 'theirs', process {other.pid}"):
            ledger.acquire("p", "mine")
        other.kill()
        while not holder_of(ledger).is_dead():
            assert other.returncode is None
        assert ledger.runs.running("p") is None
        assert ledger.acquire("p", "mine").token == 2


def test_lease_holder_of_another_host_boot_or_namespace_is_not_dead_by_its_process_id() -> None:
    """Two containers of one machine may have the same host name, and count processes each for itself."""
    me, namespace = Holder.me("r"), os.readlink("/proc/self/ns/pid")
    recycled = replace(me, started="1")
    assert namespace in me.boot
    assert (me.is_dead(), recycled.is_dead()) == (False, True)
    for elsewhere in ({"host": "x"}, {"boot": "another boot"}, {"boot": me.boot.replace(namespace, "pid:[1]")}):
        assert not replace(recycled, **elsewhere).is_dead()


def test_lease_holder_whose_process_other_users_may_not_see_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """``/proc`` mounted with ``hidepid=2`` has no entry for a process of another user."""
    other = replace(Holder.me("r"), pid=2**22 + 1)
    assert other.is_dead(), "there is no such process"
    monkeypatch.setattr(os, "kill", mock.Mock(side_effect=PermissionError))
    assert other.is_dead(), "its id was given to another user's process, as all of /proc can be seen"
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert not other.is_dead()


def test_lease_of_a_driver_elsewhere_ends_with_its_time(each_ledger: Ledger) -> None:
    engine = each_ledger._engine
    with each_ledger.acquire("p", "a"):
        change(each_ledger, holder=asdict(replace(holder_of(each_ledger), host="elsewhere")))
        with pytest.raises(LeaseHeldError, match="elsewhere"):
            Lease.acquire(engine, "p", "b", later=TTL / 2)
        assert Lease.acquire(engine, "p", "b", later=TTL + 1).token == 2


def test_lease_of_hosts_whose_clocks_differ_goes_by_the_database(postgres: str, monkeypatch: Any) -> None:
    ledger = Ledger.open(new_database(postgres))
    with ledger.acquire("p", "a"):
        change(ledger, holder=asdict(replace(holder_of(ledger), host="elsewhere")))
        monkeypatch.setattr(time, "time", lambda real=time.time: real() + 86_400)
        assert ledger.runs.running("p") == "a"
        with pytest.raises(LeaseHeldError, match="expires within"):
            ledger.acquire("p", "b")


def test_fenced_driver_writes_nothing(each_ledger: Ledger) -> None:
    ledger = each_ledger
    fenced = ledger.acquire("p", "old")
    change(ledger, expires=0.0)
    fenced.verify()  # expired, and not taken by another driver
    heir = ledger.acquire("p", "new")
    with pytest.raises(LeaseHeldError, match="'new'"):
        fenced.verify()
    for event in (
        RunPlanned(kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={}),
        BatchStarted(epoch=1, batch=0, ranges=[]),
        *batch_committed(1, 0, []),
        Judged(verdict="passed", judgement={}),
        RunClosed(state="done"),
    ):
        with pytest.raises(LeaseHeldError):
            ledger.record(fenced, event, run_id="old")
    assert ledger.events("p") == []
    fenced.release()  # gives nothing of its heir's back
    heir.verify()
    with pytest.raises(LeaseHeldError):
        ledger.acquire("p", "third")


@pytest.mark.parametrize("existing", [False, True], ids=["first of all", "after others"])
def test_lease_goes_to_one_of_several_drivers(ledger_url: str, existing: bool) -> None:
    ledgers = [Ledger.open(ledger_url) for _ in range(4)]
    barrier = threading.Barrier(len(ledgers))

    def race(ledger: Ledger, pipeline: str) -> Lease:
        barrier.wait()
        return ledger.acquire(pipeline, "r")

    for number in range(5):
        if existing:
            ledgers[0].acquire(f"p{number}", "before").release()
        with ThreadPoolExecutor(len(ledgers)) as pool:
            raced = [pool.submit(race, ledger, f"p{number}") for ledger in ledgers]
        assert Counter(type(one.exception()) for one in raced) == {type(None): 1, LeaseHeldError: 3}
        (won,) = [one.result() for one in raced if one.exception() is None]
        won.verify()


def test_lease_of_a_lost_ledger_does_not_hide_why_a_run_failed(ledger: Ledger) -> None:
    with pytest.raises(ValueError, match="the real reason"), ledger.acquire("gone", "mine"):  # noqa: PT012
        with ledger._engine.begin() as connection:
            schema.lease.drop(connection)
        raise ValueError("the real reason")


@pytest.mark.parametrize("network", ["nfs4", None])
def test_lease_in_sqlite_on_a_network_is_for_one_machine(ledger: Ledger, monkeypatch: Any, network: Any) -> None:
    monkeypatch.setattr("sluice.ledger.lease.network_of", lambda _: network)
    with attempt(ledger, "r", pipeline="other"):
        pass
    elsewhere = replace(Holder.me("theirs"), host="elsewhere", boot="another")
    change(ledger, holder=asdict(elsewhere), expires=2**40)
    if network is not None:  # otherwise it is a container of this machine, say, before it was recreated
        with pytest.raises(ConfigError, match="elsewhere") as caught:
            ledger.acquire("p", "mine")
        assert "PostgreSQL" in caught.value.next_step
        change(ledger, holder=asdict(replace(elsewhere, host=socket.gethostname())))
    ledger.acquire("p", "mine").release()
