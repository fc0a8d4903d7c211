"""What may be refused or lost."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.pipeline.quality import Quality
from sluice.ranges import Counts
from sluice.run.verdict import WARNS
from sluice_spark.quality.judgement import Judgement
from sluice_spark.quality.limits import excesses

NONE: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("keys", "counts", "verdict", "limits"),
    [
        # what the file says, what became of the offsets, and what that makes of the verdict
        (NONE, Counts(written=98, quarantined=2), "failed", ["max_quarantined"]),
        (NONE, Counts(written=2, quarantined=98), "failed", ["max_quarantined"]),
        (NONE, Counts(quarantined=5), "failed", ["max_quarantined", "nothing_written"]),
        (NONE, Counts(written=99, quarantined=1), "passed", []),
        (NONE, Counts(written=98, quarantined=1, filtered=1), "passed", []),
        (NONE, Counts(written=98, quarantined=1, absent=900), "failed", ["max_quarantined"]),
        (NONE, Counts(filtered=7, absent=3), "empty", []),
        (NONE, Counts(), "empty", []),
        (NONE, Counts(written=10**9, lost=1), "warned", ["max_lost"]),
        (NONE, Counts(lost=1), "warned", ["max_lost", "nothing_written"]),
        ({"max_lost": 0}, Counts(written=10**9, lost=1), "failed", ["max_lost"]),
        ({"max_lost": 1}, Counts(written=10**9, lost=1), "passed", []),
        ({"max_lost": "10%"}, Counts(written=9, lost=1), "passed", []),
        ({"max_lost": "10 %"}, Counts(written=8, lost=1), "failed", ["max_lost"]),
        ({"max_lost": "100%"}, Counts(lost=3), "warned", ["nothing_written"]),
        ({"max_quarantined": 0}, Counts(written=10**9, quarantined=1), "failed", ["max_quarantined"]),
        ({"max_quarantined": 7}, Counts(quarantined=7), "warned", ["nothing_written"]),
        ({"max_quarantined": "0.001%"}, Counts(written=99_999, quarantined=1), "passed", []),
        ({"max_quarantined": "0.001%"}, Counts(written=99_998, quarantined=1), "failed", ["max_quarantined"]),
        ({"max_quarantined": "100%"}, Counts(written=1, quarantined=99), "passed", []),
    ],
)
def test_what_may_be_refused_or_lost(keys: dict[str, Any], counts: Counts, verdict: str, limits: list[str]) -> None:
    found = tuple(excesses(Quality.model_validate(keys), counts))
    assert [e.limit for e in found] == limits
    judgement = Judgement("s", counts.written, excesses=found, wrote=counts.written > 0)
    assert judgement.verdict == verdict
    assert [why.removesuffix(WARNS) for why in judgement.reasons] == [str(e) for e in found]


def test_a_reason_has_the_numbers() -> None:
    (excess,) = excesses(Quality(), Counts(written=989_999, quarantined=10_001))
    assert str(excess) == "max_quarantined: 10,001 of 1,000,000 records (1 %) are in quarantine, and 1% may be"
