"""Who may write a pipeline."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from sluice.errors import ConfigError, LeaseHeldError
from sluice.ledger import Holder, Lease, Ledger, schema
from sluice.ledger.lease import TTL
from sluice.ledger.store import open_engine

DRIVER = """
import sys
from sluice.ledger import Ledger
lease = Ledger.open(sys.argv[1]).acquire("p", "theirs")
print(lease.token, flush=True)
sys.stdin.read()
"""


def driver(url: str) -> subprocess.Popen[str]:
    """Start another process that takes the lease and keeps it."""
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    return process


def test_a_held_lease_names_its_holder(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    with ledger.acquire("p", "mine"), pytest.raises(LeaseHeldError) as caught:
        ledger.acquire("p", "yours")
    assert "run 'mine'" in caught.value.what
    assert "process" in caught.value.what
    assert caught.value.state == "nothing was read or written"


def test_a_lease_is_of_one_pipeline(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    with ledger.acquire("p", "r"), ledger.acquire("q", "r"):
        pass


def test_a_lease_that_was_given_back_can_be_taken_with_a_higher_token(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    with ledger.acquire("p", "a") as first:
        pass
    with ledger.acquire("p", "b") as second:
        assert second.token > first.token


def test_who_writes_now_can_be_asked_without_taking_the_lease(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    assert ledger.running("p") is None
    with ledger.acquire("p", "mine"):
        assert ledger.running("p") == "mine"
        assert ledger.running("q") is None
        assert Lease.holders(ledger._engine, "p", now=lambda: time.time() + TTL + 1) == {}
    assert ledger.running("p") is None


def test_a_dead_driver_writes_nothing(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    process = driver(ledger_url)
    assert ledger.running("p") == "theirs"
    process.kill()
    process.wait()
    assert ledger.running("p") is None


def test_a_killed_driver_of_this_machine_is_succeeded_at_once_and_a_living_one_is_not(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    with driver(ledger_url) as other:
        try:
            with pytest.raises(LeaseHeldError, match=f"run 'theirs', process {other.pid}"):
                ledger.acquire("p", "mine")
            other.send_signal(signal.SIGSTOP)
            with pytest.raises(LeaseHeldError):  # frozen is not dead
                ledger.acquire("p", "mine")
        finally:
            other.kill()
        other.wait()
        assert ledger.acquire("p", "mine").token == 2


def test_a_dead_driver_that_nobody_buried_is_dead(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    with driver(ledger_url) as other:
        other.kill()
        assert other.stdout is not None
        assert other.stdout.read() == ""  # its end of the pipe is closed: it is a zombie now, or will be right away
        holder = Holder(**_row(ledger_url)["holder"])
        while not holder.is_dead():
            assert other.returncode is None
        assert ledger.acquire("p", "mine").token == 2


def test_another_process_under_a_recycled_id_does_not_keep_the_lease(ledger_url: str) -> None:
    me = Holder.me("r")
    assert not me.is_dead()
    assert Holder(me.run, me.host, me.boot, me.pid, "1").is_dead()
    assert not Holder(me.run, "elsewhere", me.boot, me.pid, "1").is_dead()
    assert not Holder(me.run, me.host, "another boot", me.pid, "1").is_dead()


def test_the_lease_of_a_driver_elsewhere_ends_with_its_time(ledger_url: str) -> None:
    ledger, engine = Ledger.open(ledger_url), open_engine(ledger_url)
    with ledger.acquire("p", "a"):
        elsewhere = {**_row(ledger_url)["holder"], "host": "elsewhere"}
        with engine.begin() as connection:
            connection.execute(schema.lease.update().values(holder=elsewhere))
        now = time.time()
        with pytest.raises(LeaseHeldError, match="on elsewhere"):
            Lease.acquire(engine, "p", "b", now=lambda: now + TTL / 2)
        assert Lease.acquire(engine, "p", "b", now=lambda: now + TTL + 1).token == 2


def test_a_fenced_driver_leaves_no_trace(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    fenced = ledger.acquire("p", "old")
    _expire(ledger_url)
    heir = ledger.acquire("p", "new")
    with pytest.raises(LeaseHeldError, match=r"fenced.*run 'new'"):
        fenced.verify()
    for write in (
        lambda: ledger.run_planned(fenced, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={}),
        lambda: ledger.batch_started(fenced, epoch=1, batch=0, ranges=[]),
        lambda: ledger.batch_committed(fenced, epoch=1, batch=0, accounts=[]),
        lambda: ledger.judged(fenced, "p", "old", verdict="passed", judgement={}),
        lambda: ledger.run_closed(fenced, state="done"),
    ):
        with pytest.raises(LeaseHeldError):
            write()
    assert ledger.events("p") == []
    fenced.release()  # what it gives back is not its heir's
    heir.verify()
    with pytest.raises(LeaseHeldError):
        ledger.acquire("p", "third")


def test_an_expired_lease_that_nobody_took_is_still_ours(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    lease = ledger.acquire("p", "r")
    _expire(ledger_url)
    lease.verify()
    ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={})


@pytest.mark.parametrize("existing", [False, True], ids=["first of all", "after others"])
def test_of_several_drivers_at_once_one_gets_the_lease(ledger_url: str, existing: bool) -> None:
    ledgers = [Ledger.open(ledger_url) for _ in range(4)]
    for round_ in range(5):
        pipeline = f"p{round_}"
        if existing:
            ledgers[0].acquire(pipeline, "before").release()
        barrier = threading.Barrier(len(ledgers))
        won: list[Lease] = []
        others: list[BaseException] = []

        def race(ledger: Ledger, name: str = pipeline, start: threading.Barrier = barrier) -> None:
            start.wait()
            try:
                won.append(ledger.acquire(name, "r"))  # noqa: B023
            except BaseException as error:
                others.append(error)  # noqa: B023

        threads = [threading.Thread(target=race, args=(ledger,)) for ledger in ledgers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert [type(e) for e in others] == [LeaseHeldError] * 3
        won[0].verify()


def _row(url: str) -> dict[str, object]:
    with open_engine(url).connect() as connection:
        return dict(connection.execute(schema.lease.select()).mappings().one())


def _expire(url: str) -> None:
    with open_engine(url).begin() as connection:
        connection.execute(schema.lease.update().values(expires=0.0))


def test_a_ledger_that_is_gone_does_not_hide_why_a_run_failed(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)

    def fail() -> None:
        with open_engine(ledger_url).begin() as connection:
            schema.lease.drop(connection)
        raise ValueError("the real reason")

    with pytest.raises(ValueError, match="the real reason"), ledger.acquire("gone", "mine"):
        fail()


def test_process_ids_of_another_namespace_say_nothing() -> None:
    """Two containers of one machine may have the same host name, and count processes each for itself."""
    theirs = replace(Holder.me("r"), started="another process of this id")
    assert theirs.is_dead()
    namespace = os.readlink("/proc/self/ns/pid")
    assert namespace in theirs.boot
    assert not replace(theirs, boot=theirs.boot.replace(namespace, "pid:[1]")).is_dead()


def _held_by(ledger: Ledger, holder: Holder) -> None:
    with ledger._engine.begin() as connection:
        connection.execute(schema.lease.update().values(holder=asdict(holder), expires=2**40))


@pytest.mark.parametrize("network", ["nfs4", None])
def test_two_machines_do_not_write_one_file_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: str | None
) -> None:
    monkeypatch.setattr("sluice.ledger.lease.network_of", lambda _: network)
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    with ledger.acquire("other", "r"):
        pass
    elsewhere = replace(Holder.me("theirs"), host="elsewhere", boot="another")
    _held_by(ledger, elsewhere)
    if network is None:  # a container of this machine, say, before it was recreated
        with ledger.acquire("p", "mine"):
            return
    with pytest.raises(ConfigError, match="elsewhere writes it now") as caught:
        ledger.acquire("p", "mine")
    assert "PostgreSQL" in caught.value.next_step
    _held_by(ledger, replace(elsewhere, host=socket.gethostname()))
    with ledger.acquire("p", "mine"):
        pass
