"""Facts of batches: each is declared once, and commit metadata, ledger, accounts and commands take it from here.

A new fact is a class in this package, listed in :data:`FACTS`, and the place that adds it to a prepared batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sluice.facts.base import BatchFact
from sluice.facts.columns import ChangedColumns
from sluice.facts.duplicates import Duplicates
from sluice.facts.origins import Origins
from sluice.facts.profile import Profile
from sluice.facts.rescued import Rescued
from sluice.facts.windows import Windows

__all__ = [
    "FACTS",
    "BatchFact",
    "ChangedColumns",
    "Duplicates",
    "Origins",
    "Profile",
    "Rescued",
    "Windows",
    "facts_in",
    "lines",
    "noted",
]

FACTS: tuple[type[BatchFact], ...] = (ChangedColumns, Windows, Duplicates, Rescued, Origins, Profile)
"""In the order of their events."""


def noted(facts: Iterable[BatchFact]) -> dict[str, Any]:
    """Return facts as the metadata of the sink's commit has them."""
    return {fact.name: fact.as_dict() for fact in facts if fact}


def facts_in(note: Mapping[str, Any]) -> list[BatchFact]:
    """Return the facts that the metadata of a commit has."""
    return [kind.from_dict(note[kind.name]) for kind in FACTS if note.get(kind.name)]


def lines(account: Mapping[str, Any]) -> list[str]:
    """Return the facts of a run's account in words, a line of each."""
    return [line for kind in FACTS for line in kind.lines(account)]
