"""The portions in which records are redriven."""

from __future__ import annotations

import random

import numpy as np

from sluice.ranges import OffsetRange, runs_of, subtract
from sluice_spark.runs.redrive import portions, windows


def test_redrive_portions_hold_all_offsets_and_none_is_too_large() -> None:
    for seed in range(100):
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


def test_redrive_windows_hold_each_offset_once_and_few_stretches() -> None:
    for seed in range(100):
        chance = random.Random(seed)
        came = {
            (f"t{n}", n): np.array(sorted(chance.sample(range(60), chance.randrange(1, 40))), dtype=np.int64)
            for n in range(chance.randrange(4))
        }
        most, stretches = chance.randrange(1, 20), chance.randrange(1, 6)
        taken: list[tuple[str, int, int]] = []
        for window in windows(came, most, stretches):
            inside = [(r, came[r.topic, r.partition]) for r in window]
            held = [(r, [int(o) for o in numbers if r.start <= o < r.end]) for r, numbers in inside]
            assert 0 < sum(len(offsets) for _, offsets in held) <= most
            assert sum(len(runs_of(r.topic, r.partition, offsets)) for r, offsets in held) <= stretches
            taken += [(r.topic, r.partition, offset) for r, offsets in held for offset in offsets]
        assert taken == [(*key, int(o)) for key, numbers in sorted(came.items()) for o in numbers]


def test_redrive_cuts_a_million_scattered_offsets_into_commits_of_a_readable_size() -> None:
    came = {("t", 0): np.arange(0, 2_000_000, 2, dtype=np.int64)}
    found = list(windows(came, 500_000))
    assert len(found) == 200
    assert sum((r.end - r.start + 1) // 2 for window in found for r in window) == 1_000_000
