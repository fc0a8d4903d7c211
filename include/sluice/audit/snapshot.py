"""Ledger and tables as of one moment, though a driver may be at work."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from sluice.audit.books import Books
from sluice.audit.tables import Table
from sluice.ledger import REDRIVEN, Ledger
from sluice.ranges import RangeAccount

__all__ = ["Snapshot"]

_ATTEMPTS, _PAUSE = 5, 0.5


@dataclass
class Snapshot:
    """What the ledger says, and the tables that it speaks of.

    Attributes
    ----------
    runs
        Which run each account belongs to.
    problems
        Where ledger and sink do not end with the same batch.
    """

    books: Books
    runs: dict[RangeAccount, str]
    sink: Table
    quarantine: Table
    problems: list[str]

    @classmethod
    def take(cls, ledger: Ledger, pipeline: str, path: str) -> Snapshot:
        """Read the ledger, then the tables; again when a driver committed in between.

        A driver commits to the sink, to the quarantine, then to the ledger. When the sink, opened last, ends with the
        very batches that the ledger began with, nothing was committed meanwhile. If it never does, that is a problem,
        and what the ledger does not know yet is left out of the tables.

        Raises
        ------
        ValueError
            When an account does not add up; it names the range.
        SinkError
            When a table is there and cannot be read.
        """
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE)
            ends = _ends(ledger, pipeline)
            books = Books.read(ledger, pipeline)
            runs = {a: r.run for r in ledger.runs(pipeline, limit=1 << 31) for a in ledger.accounts(pipeline, r.run)}
            quarantine, sink = Table.open("quarantine", f"{path}_quarantine"), Table.open("sink", path)
            held = {epoch: sink.batch(_app_id(pipeline, epoch)) for epoch in ends}
            if ends == held:
                break
        problems = [_difference(sink, epoch, ends[epoch], held[epoch]) for epoch in ends if held[epoch] != ends[epoch]]
        if any(held[epoch] > ends[epoch] for epoch in ends):
            upto = {_app_id(pipeline, epoch): batch for epoch, batch in ends.items()}
            sink.go_back(upto)
            quarantine.go_back({f"{app_id}:quarantine": batch for app_id, batch in upto.items()})
        return cls(books, runs, sink, quarantine, problems)


def _app_id(pipeline: str, epoch: int) -> str:
    """Return the application id of a sink's commits, as ``sluice_spark.tables`` has it."""
    return f"sluice:{pipeline}:{epoch if epoch != REDRIVEN else 'redriven'}"


def _ends(ledger: Ledger, pipeline: str) -> Mapping[int, int]:
    """Return for each epoch the batch that the sink must end with; a closed one ends with the commit that closed it."""
    newest = ledger.epoch(pipeline).number
    last = {epoch: ledger.last_batch(pipeline, epoch) for epoch in (*range(1, newest + 1), REDRIVEN)}
    return {e: (row.batch if row else -1) + (REDRIVEN < e < newest) for e, row in last.items()}


def _difference(sink: Table, epoch: int, known: int, held: int) -> str:
    what = f"epoch {epoch}" if epoch != REDRIVEN else "what was redriven"
    if held > known:
        return (
            f"the sink {sink.path} holds batch {held} of {what}, the ledger ends with batch {known}: a driver is at "
            "work, or died between the two and the next run enters it. What follows leaves that batch out"
        )
    there = "there is no table" if sink.delta is None else f"the table ends with batch {held}"
    return f"the ledger has batch {known} of {what}, but {there} at {sink.path}: it was removed or taken back"
