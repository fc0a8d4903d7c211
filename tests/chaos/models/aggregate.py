"""Words that are counted over all runs: a record is a line of several, one or none of them."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.models.planned import Place, Planned
from tests.fixtures.runs import Sandbox

__all__ = ["Words"]


@dataclass
class Words(Planned):
    """A row for each word, with the number of its occurrences in all lines that were ever read."""

    sandbox: Sandbox
    recovery: str = "replay"
    output: str = "update"
    limit: int = 10
    records: dict[Place, list[str] | None] = field(default_factory=dict)
    chance: random.Random = field(default_factory=lambda: random.Random(7))
    epoch: int = 1
    begins: dict[int, int] = field(default_factory=dict)

    def configure(self, **keys: Any) -> None:
        self.sandbox.configure(
            **{
                "decode": {"json": {"schema": "line STRING"}},
                "transform": {"sql": "SELECT *, explode(filter(split(line, ' '), w -> w <> '')) AS k FROM source"},
                "rows": "many",
                "aggregate": {"by": ["k"], "aggregates": {"n": "count(*)", "total": "sum(length(k))"},
                              "output": self.output},
                "quality": {"max_quarantined": "100%"},
                "kafka": {"max_records_per_batch": self.limit},
                "recovery": self.recovery,
                **keys,
            }
        )  # fmt: skip

    def feed(self, *, bad: bool = False) -> None:
        """Produce some lines, an empty one among them, and one that is refused."""
        lines = [self.chance.choices(["a", "bb", "ccc", "ä"], k=self.chance.randrange(4)) for _ in range(8)]
        made: list[tuple[int, bytes, list[str] | None]] = [
            (n % 2, json.dumps({"line": " ".join(line)}).encode(), line) for n, line in enumerate([*lines, []])
        ]
        made += [(0, b"{", None)] * bad
        placed = self.sandbox.produce([(partition, b"", value) for partition, value, _ in made])
        for (_, partition, offset), (*_, line) in zip(placed, made, strict=True):
            self.records[partition, offset] = line

    def held(self) -> Counter[Any]:
        """Return the rows that the sink holds."""
        return Counter((row["k"], row["n"], row["total"]) for row in self.sandbox.rows_of_sink())

    def assert_exact(self) -> None:
        """The sink holds each word once, and the account has the fate of each line."""
        lines = [line for _, places in self.places() for place in places if (line := self.records[place]) is not None]
        count = Counter(word for line in lines for word in line)
        assert self.held() == Counter((word, n, n * len(word)) for word, n in count.items())
        self.assert_split(sum(not line for line in lines))

    def assert_open(self) -> None:
        """``sluice state`` has as many groups as there are words."""
        assert self.state()["keys"] == len(self.held())
