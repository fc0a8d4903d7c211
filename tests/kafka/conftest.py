"""A pipeline whose runs are played against a real broker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from sluice.home import Home
from sluice.lag import Backlog
from sluice.lag.current import Known, backlog, backlogs
from sluice.ledger import Ledger
from sluice.ledger.cache import Cache
from sluice.ledger.events import RunClosed, RunPlanned, batch_committed
from sluice.local.kafka import Broker, Topics
from sluice.pipeline import Pipeline
from sluice.ranges import Counts, OffsetRange, RangeAccount
from sluice.sources.kafka import Cluster, KafkaSettings

Make = Callable[..., str]


@dataclass
class Line:
    """A pipeline whose runs are played: they write the checkpoint and the ledger that real ones would."""

    topic: str
    home: Home
    ledger: Ledger
    cluster: Cluster
    batch: int = -1
    position: dict[int, int] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    remembered: Cache[Known] = field(default_factory=Cache)

    def spec(self, **lag: Any) -> Pipeline:
        return Pipeline.model_validate(
            {
                "pipeline": "line", "source": {"kafka": {"topics": [self.topic], **self.options}},
                "decode": {"text": {}}, "sink": {"delta": {"path": "line"}}, "lag": lag,
            }
        )  # fmt: skip

    def look(self, **how: Any) -> Backlog:
        found = backlog(self.spec(), self.cluster, home=self.home, ledger=self.ledger, **how)
        if not how:  # among many pipelines it is the same, whatever was remembered of it
            kept: Any = {"home": self.home, "ledger": self.ledger, "remembered": self.remembered}
            together = backlogs([self.spec()], self.cluster, **kept)
            whole = attrgetter("verdict", "records", "lost", "running", "held", "last")
            part = attrgetter("key", "status", "position", "records")
            same, of_all = ((whole(b), [*map(part, b.partitions)]) for b in (found, together[found.pipeline]))
            assert same == of_all
        return found

    def commit(self, position: dict[int, int], *, done: bool = True) -> None:
        """Write a batch's offsets, and that it is done."""
        root = Path(self.home.checkpoint("line", 1))
        for name in ("offsets", "commits", "sources/0"):
            (root / name).mkdir(parents=True, exist_ok=True)
        self.batch += 1
        text = json.dumps({self.topic: {str(p): o for p, o in position.items()}})
        (root / "offsets" / str(self.batch)).write_text(f"v1\n{{}}\n{text}")
        if self.batch == 0:
            start = json.dumps({self.topic: {str(p): 0 for p in position}})
            (root / "sources" / "0" / "0").write_text(f"\0v1\n{start}")
        if done:
            (root / "commits" / str(self.batch)).write_text("v1\n{}")
            self.position = position

    def run(self, name: str, to: dict[int, int] | None = None, *, fails: bool = False) -> None:
        """Play a run that reads up to ``to``, or plans that and fails."""
        (state,) = self.cluster.snapshot([self.topic])
        to = to or {p: s.end for p, s in state.partitions.items()}
        ranges = [OffsetRange(self.topic, p, self.position.get(p, 0), o) for p, o in to.items()]
        with self.ledger.acquire("line", name) as lease:
            ids = {self.topic: state.topic_id}
            self.ledger.record(lease, RunPlanned(kind="live", recovery="replay", epoch=1, ranges=ranges, topic_ids=ids))
            if not fails:
                self.commit(to)
                accounts = [RangeAccount(r, Counts(written=len(r))) for r in ranges]
                self.ledger.record(lease, *batch_committed(1, self.batch, accounts))
            self.ledger.record(lease, RunClosed(state="failed" if fails else "done"))


@pytest.fixture
def line(broker: Broker, topics: Topics, topic: Make, tmp_path: Path) -> Iterator[Callable[..., Line]]:
    """Make a pipeline on a fresh topic."""
    cluster = Cluster(KafkaSettings(broker.bootstrap, {"bootstrap.servers": broker.bootstrap}), timeout=10)

    def make(partitions: int = 1, *, source: dict[str, Any] | None = None, **config: object) -> Line:
        home = Home(str(tmp_path))
        ledger = Ledger.open(home.ledger_url)
        return Line(topic(partitions, **config), home, ledger, cluster, options=source or {})

    yield make
    cluster.close()


def fill(topics: Topics, line: Line, *counts: int, aged: float = 0) -> None:
    stamp = int((time.time() - aged) * 1000)
    topics.produce(line.topic, [(p, None, b"v", stamp) for p, count in enumerate(counts) for _ in range(count)])
