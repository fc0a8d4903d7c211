"""Drivers that are held at a point, sleep there, or are let go; and offsets that runs lost."""

from __future__ import annotations

import signal
from collections import Counter
from typing import Any

from tests.fixtures.runs import Driver, Offset, Outcome, Sandbox

__all__ = ["PASSING", "asleep", "ended", "gated", "lost", "opened", "woken"]

PASSING: dict[str, Any] = {"transform": {"python": "gate:passing"}}
"""A pipeline whose drivers can be held."""


def gated(sandbox: Sandbox, point: str, run: str = "r", **options: Any) -> Driver:
    """Start a driver that stops at a point; the transform must be one of ``gate``."""
    driver = sandbox.start(run, gate_at=point, **options)
    driver.await_gate()
    return driver


def ended(driver: Driver, expect: int = 0) -> Outcome:
    """Wait for the end of a driver, and check its exit code."""
    end = driver.wait()
    assert end.code == expect, f"exit code {end.code}, not {expect}:\n{end.stderr[-6000:]}"
    return end


def opened(driver: Driver, expect: int = 0) -> Outcome:
    """Let a driver pass its gate, and wait for its end."""
    driver.open_gate()
    return ended(driver, expect)


def asleep(sandbox: Sandbox, point: str, run: str = "zombie") -> Driver:
    """Start a driver that stops at a point, frozen, and its lease is up."""
    driver = gated(sandbox, point, run)
    driver.signal(signal.SIGSTOP)  # or it would renew its lease before its heir has asked for it
    sandbox.execute("UPDATE sluice_lease SET expires = 0")
    return driver


def woken(driver: Driver) -> str:
    """Let it go on; it must end as one that was replaced. Return its message."""
    driver.open_gate()
    driver.signal(signal.SIGCONT)
    return ended(driver, 40).message


def lost(sandbox: Sandbox) -> Counter[Offset]:
    """Offsets that are open as lost."""
    spans = [row.range for row in sandbox.ledger.offsets.lost(sandbox.name)]
    return Counter((r.topic, r.partition, offset) for r in spans for offset in range(r.start, r.end))
