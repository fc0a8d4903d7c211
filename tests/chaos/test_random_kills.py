"""Drivers die at random moments: under every strategy each record ends in one place, once.

``SLUICE_CHAOS_KILLS`` says how many die under each strategy, ``SLUICE_CHAOS_SEED`` repeats the moments of a session
whose seed was printed, as far as a machine can.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from tests.chaos.commands import drain
from tests.chaos.drivers import lost
from tests.fixtures.runs import KILLED, Driver, Sandbox, await_that

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka, pytest.mark.long]

KILLS = int(os.environ.get("SLUICE_CHAOS_KILLS", "1"))
SEED = int(os.environ.get("SLUICE_CHAOS_SEED", random.SystemRandom().randrange(1 << 32)))

FED = 10


@dataclass
class Drawn:
    """A sandbox whose drivers die by chance: at some length of their logs and a little later, whatever the pace is."""

    sandbox: Sandbox
    chance: random.Random
    env: dict[str, str]
    kills: int = 0
    attempts: int = 0
    longest: int = 500
    """The length of the longest log so far, but for the line that a run ends with."""

    def attempt(self) -> None:
        """Feed, start a driver (of the same run or another) and kill it, unless it is through before its moment."""
        self.attempts += 1
        self.sandbox.feed(self.chance.randrange(FED + 1), bad_every=7)
        driver = self.sandbox.start(f"run-{self.attempts // 2}", **self.env)
        try:
            alive = self.await_moment(driver)
        finally:
            with contextlib.suppress(ProcessLookupError):
                driver.signal(signal.SIGKILL)
        end = driver.wait()
        assert end.code in (0, KILLED), end.stderr[-6000:]
        self.kills += alive and end.code == KILLED
        seen = self.sandbox.sink() + self.sandbox.quarantine()
        when = f"kill {self.kills}, {len(end.stderr)} bytes into its log"
        assert set(seen.values()) <= {1}, f"rows are visible twice after {when}"
        assert seen <= Counter(self.sandbox.produced), f"rows of nothing after {when}"

    def await_moment(self, driver: Driver) -> bool:
        """Return when the moment has come: True when the driver still lives."""
        # the last lines of a log come at once: a moment among them is mostly one behind the end
        length, later = self.chance.randrange(self.longest * 3 // 4), self.chance.random() / 2
        await_that(lambda: driver.log.stat().st_size >= length or driver.process.poll() is not None, "a moment to die")
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.process.wait(later)
        said = driver.log.read_bytes()
        self.longest = max(self.longest, len(said.partition(b" sluice: seconds")[0]))
        return driver.process.poll() is None


@pytest.mark.timeout(600 + 120 * KILLS)
@pytest.mark.parametrize("strategy", ["replay", "wal", "hot", "ignore_range", "ignore_batch"])
def test_drivers_that_die_at_random_moments_leave_each_record_in_one_place_once(
    sandbox: Sandbox, strategy: str, summary: Callable[[str], None]
) -> None:
    print(f"SLUICE_CHAOS_SEED={SEED}")
    chance = random.Random(f"{SEED} {strategy}")
    ignores = strategy.startswith("ignore")
    poison = {"transform": {"python": "poison:dying"}} if ignores else {}
    sandbox.configure(recovery=strategy, kafka={"max_records_per_batch": 8}, **poison)
    deadly = [n for n in range(FED * (4 * KILLS + 6)) if n % 11 == 5 and n % 7] if ignores else []
    drawn = Drawn(sandbox, chance, {"POISON_IDS": ",".join(map(str, deadly))})
    while drawn.kills < KILLS and drawn.attempts < 10 * (KILLS + 1):
        drawn.attempt()
    assert drawn.kills == KILLS
    drain(sandbox, 2, "last", **drawn.env)

    seen, gone, fed = sandbox.sink() + sandbox.quarantine(), lost(sandbox), Counter(sandbox.produced)
    doubled = sum(n - 1 for n in (seen + gone).values())
    unaccounted = sum((fed - seen - gone).values())
    summary(
        f"{strategy:13} {drawn.kills:3} kills in {drawn.attempts:3} runs, {sum(seen.values()):4} rows, "
        f"{sum(gone.values()):3} lost, {doubled} doubled, {unaccounted} unaccounted   SLUICE_CHAOS_SEED={SEED}"
    )
    assert seen + gone == fed
    if strategy == "ignore_range":
        assert gone == Counter(place for n, place in enumerate(sandbox.produced) if n in set(deadly))
    if not ignores:
        assert not gone
    assert sum(gone.values()) == sandbox.total("lost")
    assert sum(sandbox.sink().values()) == sandbox.total("written")
    sandbox.assert_balanced()
    for path in ("table", "table_quarantine", f"logs/{sandbox.name}"):
        assert sandbox.orphans(path) == set()
