"""Unions of ranges answer as sets of offsets do."""

from __future__ import annotations

import random

from tests.fixtures.books import span

from sluice.audit.cover import Cover


def test_covers_count_and_cut_as_sets_do() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        ranges = [span(a, a + rng.randint(0, 6)) for a in rng.choices(range(16), k=rng.randint(0, 6))]
        start = rng.randint(0, 16)
        asked = span(start, start + rng.randint(0, 12))
        inside = {o for r in ranges for o in range(r.start, r.end)} & set(range(asked.start, asked.end))
        cover = Cover(ranges)
        assert cover.length(asked.start, asked.end) == len(inside)
        assert {o for r in cover.cut(asked) for o in range(r.start, r.end)} == inside
        assert {o for r in cover.holes(asked) for o in range(r.start, r.end)} == (
            set(range(asked.start, asked.end)) - inside
        )
