"""One body for all sources and sinks: drivers that are killed neither lose nor double a record.

``python -m tests.chaos.states --kind kill`` kills each scenario at each point that its run passes, under one strategy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.chaos.boxed import KINDS, TOY, exact, made
from tests.chaos.cases import DIRECT, LONG
from tests.chaos.states.origins import SocketBox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

STRATEGIES = {
    "replay": ("run-planned", "session-started", "rows-staged", *DIRECT),
    "wal": ("segments-staged", "before-seal", "sealed", "seal-recorded", "batch-started", *DIRECT, "query-ended"),
    "hot": ("rows-staged", *DIRECT),
    "ignore_range": ("quarantine-staged", *DIRECT),
    "ignore_batch": DIRECT,
}
LANDING = ("rows-landed", "position-committed")
OWN = {
    "kafka": ("records-sent",), "foreach": ("rows-handed-over",), "console": ("rows-handed-over",),
    "jdbc": LANDING, "jdbc-time": LANDING, "socket": LANDING,
}  # fmt: skip
FAST = [
    *((sink, "replay", "sink-committed") for sink in ("iceberg", "files", "postgres", "kafka", "console", "toy")),
    ("file-json", "replay", None),
    ("jdbc", "replay", "rows-landed"),
    ("redis", "replay", None),
    ("nats", "replay", None),
    ("rate", "replay", None),
    ("socket", "wal", "position-committed"),
]
"""In each run of the suite: a kill for each sink, one at a step of a source's own, and none for sources whose steps are
those of others. `delta` dies in test_driver_killed.py, `foreach` and tables that are upserted in test_sinks.py, several
sinks in test_also.py; `wal`, `ignore_range` and `ignore_batch` have files of their names; `hot` needs the cluster of
test_hot.py; topics by a pattern and clusters have test_patterns.py and test_failover.py."""


def every() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """All points of each source and sink under each strategy; a socket knows of one driver that died."""
    for name in KINDS:
        for recovery, points in STRATEGIES.items():
            one_after_the_other = (*OWN.get(name, ()), *points)
            if name == "socket":
                yield from ((name, recovery, (point,)) for point in one_after_the_other if recovery == "wal")
            elif (name, recovery) != ("clusters", "wal"):
                yield name, recovery, one_after_the_other


@pytest.mark.parametrize(
    ("name", "recovery", "points"),
    [
        *(pytest.param(n, r, (p,) if p else (), id=f"{n}-{r}-{p}") for n, r, p in FAST),
        *(pytest.param(n, r, p, id=f"{n}-{r}-{'all' if len(p) > 1 else p[0]}", marks=LONG) for n, r, p in every()),
    ],
)
@pytest.mark.parametrize("engine", ["auto", pytest.param("spark", marks=LONG)])
def test_kills_neither_lose_nor_double(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, name: str, recovery: str, points: tuple[str, ...],
    engine: str,
) -> None:  # fmt: skip
    if name == "toy":
        monkeypatch.syspath_prepend(str(TOY))
    scenario = replace(KINDS[name], strategy=recovery, earlier=None)
    box = made(scenario.box, request)
    scenario.prepare(box)
    box.configure(**{**box.spec, "engine": engine})
    for point in points:
        box.run("killed", kill_at=point)
        if isinstance(box, SocketBox):
            box.mortal = len(box.sent) - 1
        box.feed(8, bad_every=3)
    box.run("killed")
    exact(box, scenario.oracle(box))
    if recovery in ("replay", "wal", "hot"):
        assert box.ledger.offsets.lost(box.name) == []
