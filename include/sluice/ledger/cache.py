"""Answers about many pipelines, which are found again only where the ledger has news."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Generic, TypeVar

from sluice.ledger.ledger import Ledger

__all__ = ["Cache"]

_OVERLAP = 500
"""Events that are looked at again: in PostgreSQL, one of a lower id may become visible later."""

_Answer = TypeVar("_Answer")


class Cache(Generic[_Answer]):
    """Answers about pipelines, by name, until the ledger records an event of the pipeline."""

    def __init__(self) -> None:
        self._known: dict[str, _Answer] = {}
        self._newest = 0
        self._lock = threading.Lock()

    def of(
        self,
        ledger: Ledger,
        names: Collection[str],
        find: Callable[[list[str]], dict[str, _Answer]],
        holds: Callable[[str, _Answer], bool] = lambda _name, _answer: True,
    ) -> dict[str, _Answer]:
        """Return the answers of some pipelines.

        Parameters
        ----------
        find
            Finds those that are not known; what it leaves out is asked again.
        holds
            Says whether a known answer is true still, by other signs than the ledger's.
        """
        with self._lock:  # threads that come at once share the work
            newest, changed = ledger.runs.changed(self._newest - _OVERLAP)
            if newest < self._newest:  # another ledger
                self._known.clear()
            self._newest = newest
            for name in changed:
                self._known.pop(name, None)
            known = self._known
            asked = [name for name in names if name not in known or not holds(name, known[name])]
            for name in asked:
                known.pop(name, None)
            known |= find(asked)
            return {name: self._known[name] for name in names if name in self._known}
