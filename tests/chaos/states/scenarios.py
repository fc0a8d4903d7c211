"""What a scenario is; and those of the strategies: number of batches, what went before, kind of run. One row each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.chaos.states.boxes import Box
from tests.chaos.states.oracle import Oracle
from tests.fixtures.runs import Outcome, good

__all__ = ["RECOVERIES", "RUN", "Scenario"]

RUN = "recorded"
_DAY = 86_400_000
_EPOCH = 1_362_096_000_000  # the first of March 2013
_FOREVER = "36500d"
_DYING = {"transform": {"python": "poison:dying"}}


@dataclass(frozen=True)
class Scenario:
    """One run to record, and what is there before it.

    Attributes
    ----------
    kind
        ``live``, ``interval``, ``lost`` or ``quarantined`` (the last two redrive).
    records, size
        How many records wait, and about how many are a batch.
    killed_at
        An earlier attempt of the same run died there.
    earlier
        The strategy of an earlier run, which drained what was there before.
    deadly
        Ids of the records of which the transform dies.
    keep
        How long the log keeps segments.
    box
        The kind of sandbox: source and sink.
    grows
        Whether more comes behind what is fed: another file, or another topic.
    """

    name: str
    strategy: str
    kind: str = "live"
    records: int = 6
    size: int = 100
    killed_at: str | None = None
    earlier: str | None = None
    deadly: tuple[int, ...] = ()
    validate: bool = False
    keep: str = _FOREVER
    box: type[Box] = Box
    grows: bool = False

    @property
    def options(self) -> dict[str, Any]:
        asked: dict[str, Any] = {"validate": self.validate}
        if self.kind == "interval":
            asked["interval"] = ("2013-03-02", "2013-03-04")
        elif self.kind in ("lost", "quarantined"):
            asked["redriven"] = self.kind
        return asked | self.poison

    @property
    def poison(self) -> dict[str, str]:
        """The environment that makes the transform die."""
        return {"POISON_IDS": ",".join(map(str, self.deadly))} if self.deadly and self.kind == "live" else {}

    def prepare(self, box: Box) -> None:
        """Make what is there before the run that is recorded."""
        if self.earlier:
            self._configure(box, self.earlier, wal={"keep": _FOREVER})
            box.produce([(n % 2, b"k", good(n) if n % 3 else b"{", _EPOCH) for n in range(4)])
            box.run("earlier")
        self._configure(box, self.strategy)
        _PREPARE[self.kind](self, box)
        if self.grows:
            box.grow()
        if self.killed_at:
            box.run(RUN, kill_at=self.killed_at, **self.options)

    @property
    def ends(self) -> int:
        """The exit code of what is recorded."""
        return 0

    @property
    def settles(self) -> bool:
        """Whether there is nothing more to do behind the run."""
        return True

    def command(self, box: Box) -> tuple[list[str], dict[str, str]]:
        """Return the command line and the environment of what is recorded."""
        env = box.env(**self.poison)
        submit = box.submission(RUN, env, **{k: v for k, v in self.options.items() if k not in self.poison})
        return submit.argv(), {**env, **submit.env}

    def go(self, box: Box, *, kill_at: str | None = None) -> Outcome:
        """Do once more what was recorded, as a retry would; or let it be killed."""
        return box.run(RUN, kill_at=kill_at, expect=None, **self.options)

    def beside(self, box: Box) -> None:
        """Do what others may do before that; of each second state."""

    def later(self, box: Box) -> bool:
        """Go on until all records are where they belong; return whether there was something to do."""
        return False

    @property
    def only_live(self) -> bool:
        """Whether only live runs ran: then the ledger's sums are those of the tables."""
        return self.kind in ("live", "evolve", "split")

    def last(self, box: Box) -> Oracle:
        """Return what judges its states after :meth:`later`."""
        return Oracle(box)

    def also(self, box: Box) -> list[str]:
        """Return what else is wrong in the end."""
        return []

    def oracle(self, box: Box) -> Oracle | None:
        """Return what judges its states before :meth:`later`; None if nothing can be said of them."""
        if self.kind == "interval":
            return Oracle(box, more=lambda r: {"version": 2 if 1 <= (r.timestamp - _EPOCH) // _DAY < 3 else 1})
        deadly = self.deadly if self.kind == "live" else ()
        return Oracle(box, deadly=deadly, exactly=self.strategy != "ignore_batch")

    def _configure(self, box: Box, strategy: str, **keys: Any) -> None:
        keys = {"recovery": strategy, "wal": {"keep": self.keep}, **(_DYING if self.deadly else {}), **keys}
        box.configure(kafka={"max_records_per_batch": self.size}, **keys)

    # --- what is there before, by kind -----------------------------------------------------------------------------

    def _live(self, box: Box) -> None:
        box.feed(self.records, bad_every=5)

    def _interval(self, box: Box) -> None:
        """Four days, two of which are reprocessed; each has records in sink and quarantine."""
        self._configure(box, self.strategy, transform=_version(1))
        for day in range(4):
            numbered = [(n, good(10 * day + n) if n else b"{") for n in range(4)]
            box.produce([(n % 2, b"k", value, _EPOCH + day * _DAY + 60_000 * n) for n, value in numbered])
        box.run("live")
        self._configure(box, self.strategy, transform=_version(2))

    def _lost(self, box: Box) -> None:
        box.feed(self.records, bad_every=5)
        if self.strategy == "wal":  # a lost range that only the log has
            box.run("lossy", expect=1, POISON_IDS=",".join(map(str, self.deadly)))
        self._configure(box, "ignore_range")
        box.run("lossy", POISON_IDS=",".join(map(str, self.deadly)))

    def _quarantined(self, box: Box) -> None:
        box.produce([(n % 2, b"k", b'{"id": "%d", "name": "late"}' % n if n % 3 else b"{") for n in range(6)])
        box.feed(2)
        box.run("refusing")
        cast = "SELECT cast(id AS BIGINT) AS id, name, _topic, _partition, _offset, _timestamp FROM source"
        self._configure(
            box, self.strategy, decode={"json": {"schema": "id STRING, name STRING"}}, transform={"sql": cast}
        )


_PREPARE = {
    "live": Scenario._live,
    "interval": Scenario._interval,
    "lost": Scenario._lost,
    "quarantined": Scenario._quarantined,
}


def _version(number: int) -> dict[str, Any]:
    return {"sql": f"SELECT *, {number} AS version FROM source"}


RECOVERIES = (
    Scenario("replay-one", "replay"),
    Scenario("replay-many", "replay", records=10, size=6),
    Scenario("replay-half", "replay", records=10, size=6, killed_at="before-sink-commit"),
    Scenario("replay-committed", "replay", records=10, size=6, killed_at="sink-committed"),
    Scenario("replay-judged", "replay", validate=True),
    Scenario("wal-one", "wal"),
    Scenario("wal-many", "wal", records=10, size=6),
    Scenario("wal-half", "wal", records=10, size=6, killed_at="sealed"),
    Scenario("wal-unsealed", "wal", records=10, size=6, killed_at="before-seal"),
    Scenario("wal-judged", "wal", validate=True),
    Scenario("wal-clean", "wal", earlier="wal", keep="1h"),
    Scenario("wal-after-replay", "wal", earlier="replay"),
    Scenario("replay-after-wal", "replay", earlier="wal"),
    Scenario("hot-one", "hot"),
    Scenario("hot-many", "hot", records=10, size=6),
    Scenario("hot-half", "hot", records=10, size=6, killed_at="before-sink-commit"),
    Scenario("hot-after-wal", "hot", earlier="wal", validate=True),
    Scenario("ignore_range-one", "ignore_range", records=8, deadly=(3,)),
    Scenario("ignore_range-many", "ignore_range", records=10, size=6, deadly=(3,)),
    Scenario("ignore_range-half", "ignore_range", records=8, deadly=(3,), killed_at="before-sink-commit"),
    Scenario("ignore_range-after-wal", "ignore_range", deadly=(6,), earlier="wal", validate=True),
    Scenario("ignore_batch-one", "ignore_batch", records=6, deadly=(3,)),
    Scenario("ignore_batch-many", "ignore_batch", records=10, size=6, deadly=(3,)),
    Scenario("ignore_batch-half", "ignore_batch", records=10, size=6, deadly=(3,), killed_at="before-sink-commit"),
    Scenario("ignore_batch-beside", "ignore_batch", records=12, size=6, deadly=(3,)),
    Scenario("ignore_batch-after-wal", "ignore_batch", deadly=(6,), earlier="wal", validate=True),
    Scenario("interval", "replay", kind="interval"),
    Scenario("interval-half", "replay", kind="interval", killed_at="sink-committed"),
    Scenario("interval-unsunk", "replay", kind="interval", killed_at="before-sink-commit"),
    Scenario("interval-wal", "wal", kind="interval"),
    Scenario("interval-wal-half", "wal", kind="interval", killed_at="sink-committed"),
    Scenario("lost", "replay", kind="lost", records=8, deadly=(3,)),
    Scenario("lost-half", "replay", kind="lost", records=8, deadly=(3,), killed_at="before-sink-commit"),
    Scenario("lost-wal", "wal", kind="lost", records=8, deadly=(3,)),
    Scenario("lost-wal-half", "wal", kind="lost", records=8, deadly=(3,), killed_at="before-sink-commit"),
    Scenario("quarantined", "replay", kind="quarantined"),
    Scenario("quarantined-unsunk", "replay", kind="quarantined", killed_at="before-sink-commit"),
    Scenario("quarantined-half", "replay", kind="quarantined", killed_at="sink-committed"),
)
