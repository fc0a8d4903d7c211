"""A consistent snapshot of ledger and tables, even while a driver is at work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import sleep
from typing import Any

from sluice.audit.books import Books
from sluice.delta.names import app_id, interval_app_id, quarantine_app_id
from sluice.delta.table import Table
from sluice.facts import Windows
from sluice.ledger import REDRIVEN, Ledger
from sluice.ranges import RangeAccount

__all__ = ["Snapshot", "last_commits"]

_ATTEMPTS, _PAUSE = 5, 0.5


@dataclass
class Snapshot:
    """The ledger's entries and the versions of the tables that belong to them.

    Attributes
    ----------
    runs
        The run id of each account.
    windowed
        The runs that wrote windows; they may have read no record, and so have no account.
    problems
        A message for each writer whose last batch differs in ledger and sink.
    moves
        What batches did to windows since all rows last left the sink: :meth:`sluice.ledger.facts.Facts.told`.
    """

    books: Books
    runs: dict[RangeAccount, str]
    windowed: set[str]
    sink: Table
    quarantine: Table
    problems: list[str]
    moves: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def take(cls, ledger: Ledger, pipeline: str, path: str, refused: str) -> Snapshot:
        """Read the ledger, then the tables; retry if a driver committed in between.

        A driver commits to the sink, then to the quarantine, then to the ledger. If the sink, opened last, ends with
        the same batches as the ledger did at first, nothing was committed meanwhile. If it never does, that is a
        problem, and the tables are read without the commits that the ledger does not know yet.

        Parameters
        ----------
        path, refused
            The paths of the sink and of its quarantine.

        Raises
        ------
        ValueError
            If an account does not balance; with the range.
        SinkError
            If a table exists and cannot be read.
        """
        for attempt in range(_ATTEMPTS):
            if attempt:
                sleep(_PAUSE)
            ends = last_commits(ledger, pipeline)
            books = Books.read(ledger, pipeline)
            live = (r for r in ledger.runs.newest(pipeline, limit=1 << 31) if r.kind != "interval")
            runs = {a: r.run for r in live for a in ledger.offsets.accounts(pipeline, r.run, standing=True)}
            windowed = ledger.facts.runs_with(pipeline, Windows)
            moves = ledger.facts.told(pipeline, Windows, standing=True)
            quarantine, sink = Table.open("quarantine", refused), Table.open("sink", path)
            held = {name: sink.batch(name) for name in ends}
            if all(held[name] == batch for name, (_, batch) in ends.items()):
                break
        problems = [
            _difference(sink, what, batch, held[name]) for name, (what, batch) in ends.items() if held[name] != batch
        ]
        if any(held[name] > batch for name, (_, batch) in ends.items()):
            upto = {name: batch for name, (_, batch) in ends.items()}
            sink.go_back(upto)
            quarantine.go_back({quarantine_app_id(name): batch for name, batch in upto.items()})
        return cls(books, runs, windowed, sink, quarantine, problems, moves)


def last_commits(ledger: Ledger, pipeline: str) -> Mapping[str, tuple[str, int]]:
    """Return, by application id, the writer's name in messages and the batch that the sink must end with.

    A closed epoch ends with the commit that closed it. Epochs before a reset that took all rows out are left out: the
    sink may have been removed meanwhile.
    """
    newest, base = ledger.offsets.epoch(pipeline).number, ledger.offsets.resets(pipeline).base
    last = ledger.offsets.last_batches(pipeline)
    ends = {
        app_id(pipeline, e): (
            f"epoch {e}" if e != REDRIVEN else "what was redriven",
            last.get(e, -1) + (REDRIVEN < e < newest),
        )
        for e in (*range(base, newest + 1), REDRIVEN)
    }
    for known in ledger.offsets.intervals(pipeline):
        name = interval_app_id(pipeline, known.interval)
        ends[name] = (f"interval {known.interval}", last.get(-known.number, -1))
    return ends


def _difference(sink: Table, what: str, known: int, held: int) -> str:
    if held > known:
        return (
            f"the sink {sink.path} holds batch {held} of {what}, the ledger ends with batch {known}: a driver is at "
            "work, or died between the two and the next run enters the batch. It is left out of what follows"
        )
    there = "there is no table" if sink.delta is None else f"the table ends with batch {held}"
    return f"the ledger has batch {known} of {what}, but {there} at {sink.path}: it was removed or rolled back"
