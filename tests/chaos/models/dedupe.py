"""Keys of ``dedupe``: each is in the sink once.

Spark's shuffle decides which duplicate of a batch comes first. The model takes that one from the sink, and checks that
it is a duplicate of that batch.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from tests.chaos.models.planned import EPOCH, FUTURE, Place, Planned, minute
from tests.fixtures.runs import Sandbox

__all__ = ["DEDUPE", "WITHIN", "Made", "Stream", "event"]

WITHIN = timedelta(hours=1)
DEDUPE: dict[str, Any] = {"keys": ["id"], "time": "at", "within": "1h"}

Made = tuple[datetime, int] | None
"""Event time and id of a sound record; None if it is refused."""
Chunk = dict[Place, tuple[datetime, int]]


def event(at: datetime | None, key: int | None) -> bytes:
    return json.dumps({"at": at.isoformat() if at else None, "id": key}).encode()


@dataclass
class Stream(Planned):
    """Records of few ids, and the keys that are remembered."""

    sandbox: Sandbox
    records: dict[Place, Made] = field(default_factory=dict)
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    batch: int = 10
    recovery: str = "replay"
    epoch: int = 1
    begins: dict[int, int] = field(default_factory=dict)
    earlier: list[Chunk] = field(default_factory=list)
    """The batches of earlier epochs whose keys are remembered."""

    def configure(self, dedupe: dict[str, Any] | None = DEDUPE, **keys: Any) -> None:
        self.sandbox.configure(
            decode={"json": {"schema": "at TIMESTAMP, id INT"}},
            quality={"max_quarantined": "100%"},
            kafka={"max_records_per_batch": self.batch},
            recovery=self.recovery,
            **({"dedupe": dedupe} if dedupe else {}),
            **keys,
        )

    def feed(
        self, first: int, last: int, count: int = 10, *, bad: bool = False, ids: int = 6, run: str | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        """Produce records of few ids with event times between two minutes, in random order; and let a run follow."""
        made: list[tuple[int, bytes, bytes, Made]] = []
        for n in range(count):
            record = minute(self.chance.randrange(first, last)), self.chance.randrange(ids)
            made.append((n % 2, b"", event(*record), record))
        if bad:  # not JSON, without an event time, without an id, and of the far future
            refused = [b"{", event(None, 1), event(minute(first), None), event(FUTURE, 1)]
            made += [(n % 2, b"", value, None) for n, value in enumerate(refused)]
        self.put(made)
        if run is not None:
            self.sandbox.run(run, **options)

    def put(self, made: Sequence[tuple[int, bytes, bytes, Made]]) -> None:
        placed = self.sandbox.produce([m[:3] for m in made])
        for (_, partition, offset), (*_, record) in zip(placed, made, strict=True):
            self.records[partition, offset] = record

    def batches(self) -> Iterator[Chunk]:
        """Yield the sound records of each batch that the checkpoints have."""
        yield from self.earlier
        for _, places in self.places():
            yield {place: record for place in places if (record := self.records[place]) is not None}

    def held(self) -> Chunk:
        """Return the rows that the sink holds, by place; each is as it was produced."""
        found = self.sandbox.rows_of_sink()
        places = {(row["_partition"], row["_offset"]): (row["at"], row["id"]) for row in found}
        assert len(places) == len(found), "no record is there twice"
        assert {row["_topic"] for row in found} <= {self.sandbox.topic}
        assert all(self.records[place] == row for place, row in places.items())
        return places

    def model(self) -> tuple[set[Place], int, int, dict[int, datetime]]:
        """Return the places that the sink must hold, the late ones' and duplicates' number, and the keys remembered."""
        held, due = self.held(), set[Place]()
        late = doubled = 0
        older = now = EPOCH
        remembered: dict[int, datetime] = {}
        for records in self.batches():
            timely = {place: record for place, record in records.items() if record[0] > older}
            late += len(records) - len(timely)
            for key in {record[1] for record in timely.values()}:
                candidates = [place for place, record in timely.items() if record[1] == key]
                doubled += len(candidates)
                if key not in remembered:
                    (chosen,) = [place for place in candidates if place in held]
                    due.add(chosen)
                    remembered[key] = timely[chosen][0] + WITHIN
                    doubled -= 1
            remembered = {key: until for key, until in remembered.items() if until > now}
            older, now = now, max([now, *(at - WITHIN for at, _ in records.values())])
        return due, late, doubled, remembered

    def assert_exact(self) -> dict[str, int]:
        """The sink holds the model's records, and the account has the fate of each other one; return their number."""
        due, late, doubled, _ = self.model()
        assert set(self.held()) == due
        assert self.counted("dedupe", "duplicate", "late") == Counter({"duplicate": doubled, "late": late})
        self.assert_split(late + doubled)
        assert self.sandbox.total("written") == len(due)
        return {"late": late, "duplicate": doubled}

    def assert_open(self) -> dict[str, Any]:
        """``sluice state`` counts the model's keys; return what it says."""
        said = self.state()
        assert said["keys"] == len(self.model()[-1])
        assert said["definition"] == {"keys": ["id"], "time": "at"}
        return said
