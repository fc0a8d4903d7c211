"""The account of what a partition holds, without a broker."""

from __future__ import annotations

import random

from sluice.local.fed import Fed, accounts


def test_a_sequence_in_order_is_one_range() -> None:
    fed = Fed(4)
    assert [fed.add(rank) for rank in range(3)] == [b"4:0-0", b"4:0-1", b"4:0-2"]
    assert fed.ranges == [(0, 2)]


def test_a_gap_that_closes_joins_its_ranges() -> None:
    fed = Fed(2, [(0, 4), (10, 12)])
    assert fed.missing(2, 20) == [(5, 9), (13, 20)]
    assert fed.add(5) == b"2:10-12,0-5"
    for rank in range(6, 9):
        fed.add(rank)
    assert fed.add(9) == b"2:10-12,0-9"
    assert fed.add(13) == b"2:0-13"
    assert (fed.count, fed.missing(0, 13), fed.missing(0, 15)) == (14, [], [(14, 15)])


def test_the_newest_headeraccounts_for_all_wherever_the_feeder_was_killed() -> None:
    dice = random.Random(1)
    truth: set[int] = set()
    log: list[bytes] = []
    fed = Fed(1)
    for _ in range(200):
        first = dice.randrange(300)
        todo = [rank for a, b in fed.missing(first, first + dice.randrange(40)) for rank in range(a, b + 1)]
        for rank in todo[: dice.randrange(len(todo) + 1)]:
            assert rank not in truth
            truth.add(rank)
            log.append(fed.add(rank))
        if log:
            fed = accounts([(0, log[-1])], newest_only=True)[0]
            assert {rank for a, b in fed.ranges for rank in range(a, b + 1)} == truth
            assert accounts([(0, header) for header in log])[0].ranges == fed.ranges
    assert len(truth) > 200
