"""Seams: how many files of the product a new fact or action touches; other kinds come from the toy package alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest
from tests.fixtures.books import split
from tests.fixtures.ledgers import attempt

from sluice import facts
from sluice.facts import FACTS, BatchFact
from sluice.ledger import Ledger, events
from sluice.ledger import facts as queries
from sluice.ledger.events import batch_committed
from sluice.run.actions import ACTIONS, Action

ROOT = Path(__file__).parents[2]


@cache
def product() -> dict[Path, str]:
    found = (file for room in ("include", "plugins", "spark_jobs", "dags") for file in (ROOT / room).rglob("*.py"))
    return {file: file.read_text(encoding="utf-8") for file in found}


VERBS = {name: action for name, action in ACTIONS.items() if name != "run"}
"""A run is what the product is for: many places ask for one."""


@pytest.mark.parametrize("action", VERBS.values(), ids=VERBS)
def test_action_is_named_in_four_files_beside_that_of_actions(action: type[Action]) -> None:
    name = action.__name__
    told = re.compile(rf"(from sluice\.run\.actions import [^\n]*|actions\.)\b{name}\b")
    naming = sorted(str(file.relative_to(ROOT)) for file, text in product().items() if told.search(text))
    assert 0 < len(naming) <= 4, naming
    assert find_spec(action.by.partition(":")[0]), "who carries it out"


@dataclass(frozen=True)
class Cooled(BatchFact):
    """How many rows of a batch were cooled."""

    name: ClassVar[str] = "cooled"
    event: ClassVar[str] = "RowsCooled"

    rows: int

    def __or__(self, later: Self) -> Self:
        return type(self)(self.rows + later.rows)

    def account(self) -> dict[str, Any]:
        return {"cooled": self.rows}

    @classmethod
    def lines(cls, account: Any) -> Iterator[str]:
        yield f"{account['cooled']} rows were cooled"


def test_fact_goes_from_the_batch_to_the_account_by_its_class_and_the_list_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = (*FACTS, Cooled)
    monkeypatch.setattr(facts, "FACTS", listed)
    monkeypatch.setattr(queries, "FACTS", listed)
    monkeypatch.setattr(events, "_FACTS", {fact.event: fact for fact in listed})
    assert facts.facts_in(facts.noted([Cooled(3)])) == [Cooled(3)]
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    with attempt(ledger, "r") as lease:
        for batch in (0, 1):
            ledger.record(lease, *batch_committed(1, batch, [split(batch * 9, batch * 9 + 9)], facts=[Cooled(3)]))
    account = ledger.runs.account("p", "r")
    assert (account["cooled"], facts.lines(account)) == (6, ["6 rows were cooled"])
