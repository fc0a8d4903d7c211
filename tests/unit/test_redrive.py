"""What a redriving takes at a time."""

from __future__ import annotations

import random

from sluice.ranges import OffsetRange, subtract
from sluice_spark.redrive import portions


def test_portions_are_all_of_it_and_none_is_too_large() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        ranges, start = [], 0
        for _ in range(chance.randrange(9)):
            start += chance.randrange(1, 5)
            end = start + chance.randrange(30)
            ranges.append(OffsetRange("t", 0, start, end))
            start = end
        found = list(portions(ranges, 7, 3))
        assert all(sum(map(len, portion)) <= 7 and 0 < len(portion) <= 3 for portion in found)
        flat = [item for portion in found for item in portion]
        assert sum(map(len, flat)) == sum(map(len, ranges))
        assert subtract([r for r in ranges if len(r)], flat) == []
