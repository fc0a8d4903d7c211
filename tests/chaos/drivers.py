"""Drivers that sleep at a point while another one takes their pipeline over; and offsets that runs lost."""

from __future__ import annotations

import signal
from collections import Counter

from tests.fixtures.runs import Driver, Offset, Sandbox

__all__ = ["asleep", "lost", "woken"]


def asleep(sandbox: Sandbox, point: str, run: str = "zombie") -> Driver:
    """Start a driver that stops at a point, frozen, and its lease is up; the transform must be one of ``gate``."""
    driver = sandbox.start(run, gate_at=point)
    driver.await_gate()
    driver.signal(signal.SIGSTOP)  # or it would renew its lease before its heir has asked for it
    sandbox.execute("UPDATE sluice_lease SET expires = 0")
    return driver


def woken(driver: Driver) -> str:
    """Let it go on; it must end as one that was replaced. Return its message."""
    driver.open_gate()
    driver.signal(signal.SIGCONT)
    end = driver.wait()
    assert end.code == 40, end.stderr[-4000:]
    return end.message


def lost(sandbox: Sandbox) -> Counter[Offset]:
    """Offsets that are open as lost."""
    spans = [row.range for row in sandbox.ledger.lost(sandbox.name)]
    return Counter((r.topic, r.partition, offset) for r in spans for offset in range(r.start, r.end))
