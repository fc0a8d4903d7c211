"""The verdict of a run whose batches were each judged before their commit."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.fixtures.books import Place, split

from sluice.pipeline import load
from sluice_spark.quality.judgement import Judgement
from sluice_spark.runs.gate import Gate


def test_what_an_earlier_attempt_of_the_run_lost_is_told(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.configure()
    place.commit("r", split(0, 5))
    judge: Any = SimpleNamespace(name="s")
    gate = Gate(load(str(place.file)), "r", place.ledger, judge, [Judgement("s", 5, wrote=True)])
    found = gate.summary(["r"])
    assert found is not None
    assert (found.verdict, found.excesses) == ("passed", ())
    place.commit("r", split(5, 9, lost=4))
    found = gate.summary(["r"])
    assert found is not None
    assert (found.verdict, [str(e) for e in found.excesses]) == (
        "warned", ["max_lost: 4 offsets are lost, by an earlier attempt"],
    )  # fmt: skip
