"""What every run refuses before it does anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from tests.fixtures.books import Place, split

from sluice.errors import ConfigError
from sluice.ledger import Lease
from sluice.pipeline import load
from sluice.recovery import Recovery
from sluice_spark.runs.context import RunContext
from sluice_spark.runs.run import Run


class Driven(RuntimeError):
    """The run was let in."""


class Retraction(Run):
    """A run of another kind than the ledger's."""

    kind: ClassVar[str] = "retract"

    def _drive(self, lease: Lease) -> str | None:
        raise Driven


def test_a_verdict_is_not_lost_to_a_run_of_another_kind_under_its_id(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.commit("a", split(0, 5))

    def run() -> Any:
        never = cast(Any, None)
        context = RunContext(load(str(place.file)), "a", place.ledger, place.home, never, Recovery.REPLAY, None)
        return Retraction(context).execute()

    with pytest.raises(Driven):
        run()  # without a verdict there is nothing to lose
    place.ledger.judged(None, "p", "a", verdict="failed", judgement={"reasons": ["x"]})
    with pytest.raises(ConfigError, match="'a' is the id of another run of 'p', of the kind live"):
        run()
    row = place.ledger.known_run("p", "a")
    assert (row.kind, row.verdict) == ("live", "failed")
