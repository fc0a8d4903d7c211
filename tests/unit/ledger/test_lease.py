"""One driver at a time writes a pipeline: leases, their holders, and fences."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace

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


def _row(url: str) -> dict[str, object]:
    with open_engine(url).connect() as connection:
        return dict(connection.execute(schema.lease.select()).mappings().one())


def _expire(url: str) -> None:
    with open_engine(url).begin() as connection:
        connection.execute(schema.lease.update().values(expires=0.0))


def test_lease_is_held_for_one_pipeline_until_it_is_given_back(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    assert ledger.running("p") is None
    with ledger.acquire("p", "mine") as first, ledger.acquire("q", "r"):
        assert (ledger.running("p"), ledger.running("other")) == ("mine", None)
        assert Lease.holders(ledger._engine, "p", now=lambda: time.time() + TTL + 1) == {}
        with pytest.raises(LeaseHeldError, match=r"run 'mine', process \d+") as caught:
            ledger.acquire("p", "yours")
        assert caught.value.state == "nothing was read or written"
    assert ledger.running("p") is None
    with ledger.acquire("p", "b") as second:
        assert second.token > first.token


def test_killed_driver_is_succeeded_at_once_and_a_frozen_one_is_not(ledger: Ledger, sqlite_url: str) -> None:
    """Also one that its parent has not waited for: a zombie."""
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, sqlite_url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "1\n"
        assert ledger.running("p") == "theirs"
        other.send_signal(signal.SIGSTOP)
        with pytest.raises(LeaseHeldError, match=f"run 'theirs', process {other.pid}"):
            ledger.acquire("p", "mine")
        other.kill()
        holder = Holder(**_row(sqlite_url)["holder"])  # type: ignore[arg-type]
        while not holder.is_dead():
            assert other.returncode is None
        assert ledger.running("p") is None
        assert ledger.acquire("p", "mine").token == 2


def test_process_id_of_another_process_host_boot_or_namespace_says_nothing() -> None:
    """Two containers of one machine may have the same host name, and count processes each for itself."""
    me = Holder.me("r")
    assert not me.is_dead()
    recycled = replace(me, started="1")
    assert recycled.is_dead()
    assert not replace(recycled, host="elsewhere").is_dead()
    assert not replace(recycled, boot="another boot").is_dead()
    namespace = os.readlink("/proc/self/ns/pid")
    assert namespace in me.boot
    assert not replace(recycled, boot=me.boot.replace(namespace, "pid:[1]")).is_dead()


def test_lease_of_a_driver_elsewhere_ends_with_its_time(ledger_url: str) -> None:
    ledger, engine = Ledger.open(ledger_url), open_engine(ledger_url)
    with ledger.acquire("p", "a"):
        elsewhere = {**_row(ledger_url)["holder"], "host": "elsewhere"}  # type: ignore[dict-item]
        with engine.begin() as connection:
            connection.execute(schema.lease.update().values(holder=elsewhere))
        now = time.time()
        with pytest.raises(LeaseHeldError, match="elsewhere"):
            Lease.acquire(engine, "p", "b", now=lambda: now + TTL / 2)
        assert Lease.acquire(engine, "p", "b", now=lambda: now + TTL + 1).token == 2


def test_fenced_driver_writes_nothing(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    fenced = ledger.acquire("p", "old")
    _expire(ledger_url)
    fenced.verify()  # expired, and not taken by another driver
    heir = ledger.acquire("p", "new")
    with pytest.raises(LeaseHeldError, match="'new'"):
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
    fenced.release()  # gives nothing of its heir's back
    heir.verify()
    with pytest.raises(LeaseHeldError):
        ledger.acquire("p", "third")


@pytest.mark.parametrize("existing", [False, True], ids=["first of all", "after others"])
def test_one_of_several_drivers_gets_the_lease(ledger_url: str, existing: bool) -> None:
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


def test_lost_ledger_does_not_hide_why_a_run_failed(ledger: Ledger, sqlite_url: str) -> None:
    def fail() -> None:
        with open_engine(sqlite_url).begin() as connection:
            schema.lease.drop(connection)
        raise ValueError("the real reason")

    with pytest.raises(ValueError, match="the real reason"), ledger.acquire("gone", "mine"):
        fail()


def _held_by(ledger: Ledger, holder: Holder) -> None:
    with ledger._engine.begin() as connection:
        connection.execute(schema.lease.update().values(holder=asdict(holder), expires=2**40))


@pytest.mark.parametrize("network", ["nfs4", None])
def test_two_machines_do_not_write_one_sqlite_file_on_a_network(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, network: str | None
) -> None:
    monkeypatch.setattr("sluice.ledger.lease.network_of", lambda _: network)
    with ledger.acquire("other", "r"):
        pass
    elsewhere = replace(Holder.me("theirs"), host="elsewhere", boot="another")
    _held_by(ledger, elsewhere)
    if network is None:  # a container of this machine, say, before it was recreated
        with ledger.acquire("p", "mine"):
            return
    with pytest.raises(ConfigError, match="elsewhere") as caught:
        ledger.acquire("p", "mine")
    assert "PostgreSQL" in caught.value.next_step
    _held_by(ledger, replace(elsewhere, host=socket.gethostname()))
    with ledger.acquire("p", "mine"):
        pass
