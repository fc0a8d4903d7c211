"""The kinds of durable step in a recording, and the named points of ``sluice.faults`` between which each lies."""

from __future__ import annotations

import re
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

from tests.chaos.states.recorder import Recording
from tests.chaos.states.tree import Operation, Tree

__all__ = ["BEGIN", "BETWEEN", "UnknownStepError", "kinds", "unguarded"]

BEGIN = "(begin)"
"""Of the run: counts as a point that was passed once."""

Window = tuple[frozenset[str], frozenset[str]]


class UnknownStepError(Exception):
    """Files changed in a way that this module has no name for."""


def _window(opens: str, closes: str = "") -> Window:
    return frozenset(opens.split()), frozenset(closes.split())


_PLANNING = _window(BEGIN, "run-planned")
_BETWEEN_BATCHES = _window("session-started batch-recorded", "batch-started query-ended")
_LANDING = _window("session-started seal-recorded", "segments-staged query-ended")
_AFTER = _window("query-ended run-planned")
_ENTERING = _window("sink-committed", "batch-recorded")
_SWITCHING = _window("epoch-closed", "epoch-opened")
# of retractions and resets
_TAKING_BACK = _window("before-sink-commit", "sink-committed epoch-closed")
_TAKING_OUT = _window("epoch-closed", "quarantine-emptied")

_OF_A_COMMIT = (
    "BatchCommitted", "WindowsMoved", "DuplicatesDropped", "RangeLost", "SchemaEvolved", "RowsProfiled",
    "RangeRedriven", "RangeRetracted",
)  # fmt: skip

BETWEEN: Mapping[str, tuple[Window, ...]] = {
    # of the run's frame; what is recorded before a plan has no consequence: one point for all of it
    "ledger schema": (_PLANNING,),
    "ledger lease": (_PLANNING, _AFTER, _BETWEEN_BATCHES),
    "ledger IntervalResolved": (_PLANNING,),
    "ledger TimesFound": (_PLANNING,),
    "ledger RunPlanned": (_PLANNING,),
    "ledger Judged": (_window("query-ended run-planned", "judged"),),
    "ledger RunClosed": (_AFTER, _PLANNING),  # planning closes what was left open
    # Spark's own; it has no room for a point between its files, so each state between them is a recorded one
    "checkpoint metadata": (_window("session-started"),),
    "checkpoint start": (_window("session-started"),),
    "checkpoint offsets": (_BETWEEN_BATCHES, _LANDING),
    "checkpoint commits": (_BETWEEN_BATCHES, _LANDING),
    # of an epoch with state: what it is of, then versions of it
    "checkpoint definition": (_window("session-started", "window-defined"),),
    "checkpoint operators": (_window("session-started", "batch-started"),),
    "checkpoint state": (_window("batch-started", "rows-staged"),),
    # of a source that gives its records their offsets itself: a book of files, landed rows, when rows began
    "source files": (_PLANNING,),
    "source commit": (_PLANNING, _AFTER),
    # landing
    "log files": (_window("session-started seal-recorded", "segments-staged"),),
    "log note": (_window("session-started seal-recorded", "segments-staged"), _window("segments-staged", "sealed")),
    "log commit": (_window("before-seal", "sealed"), _SWITCHING, _window("query-ended", "segments-forgotten")),
    "ledger SegmentSealed": (_window("sealed", "seal-recorded"), _PLANNING),
    # a batch; what a dead driver left undone is made good while the next run plans
    "ledger BatchStarted": (
        _window("session-started batch-recorded", "batch-started"),
        _window("run-planned", "batch-started"),  # of a retraction, which needs no session
    ),
    "sink files": (
        _window("session-started", "query-ended"),  # batches are read ahead, and while they are landed
        _TAKING_BACK,
    ),
    "quarantine files": (
        _TAKING_OUT,
        _window("rows-staged", "before-sink-commit"),
        _window("sink-committed", "quarantine-committed"),
        _PLANNING,
    ),
    # of a catalog of Iceberg: metadata that it does not name yet, and the transaction that names it
    "sink metadata": (
        _window("before-sink-commit", "sink-committed"),
        _window("session-started", "batch-started"),  # of the table, when it is made
        _PLANNING,
    ),
    # a writer of the user's gets rows in the place of a commit, and then the batch is put on record
    "sink rows": (_window("before-sink-commit", "rows-handed-over"),),
    "sink catalog": (
        _window("before-sink-commit", "sink-committed"),
        _window("session-started", "batch-started"),
        _PLANNING,  # an empty one
    ),
    "sink commit": (
        _window("before-sink-commit", "sink-committed"),
        _window("session-started", "epoch-closed"),
        _TAKING_BACK,
    ),
    "quarantine commit": (_window("sink-committed", "quarantine-committed"), _TAKING_OUT, _PLANNING),
    "ledger Degraded": (
        _window("session-started batch-recorded", "batch-started"),
        _window("rows-staged quarantine-staged", "before-sink-commit"),  # what an interval left out
    ),
    **{f"ledger {event}": (_ENTERING, _PLANNING) for event in _OF_A_COMMIT},
    "ledger StateMeasured": (_window("session-started", "query-ended"),),
    "ledger PipelineReset": (_SWITCHING, _PLANNING),
    # one event of a command that changes nothing else: it is there or not
    "ledger VerdictAccepted": (_window(BEGIN),),
    "ledger BatchGivenUp": (_window(BEGIN),),
    "sink sweep": (
        _window("session-started", "query-ended"),  # attempts, and what was read for nothing
        _ENTERING,
        _SWITCHING,
        _PLANNING,
    ),
    "sweep": (
        _ENTERING,
        _window("sealed seal-recorded", "segments-staged query-ended"),
        _SWITCHING,
        _window("segments-forgotten", "segments-removed"),
        _PLANNING,
    ),
    "ledger SegmentsCleaned": (_window("segments-removed"),),
    # changing the strategy
    "ledger EpochOpened": (_window("epoch-closed run-planned", "epoch-opened session-started"), _PLANNING),
}
"""Per kind the windows in which it may lie: behind a point that opens it, before one that closes it.

A kind that is missing here fails: give it points in :mod:`sluice.faults`, or a window here and the reason why.
"""

_OF_EPOCH = r"checkpoints/[^/]+/[^/]+/"
_COMMIT = r"/_delta_log/\d+\.(json|checkpoint\.parquet)"
_STEPS = (
    (_OF_EPOCH + r"metadata", "checkpoint metadata"),
    (_OF_EPOCH + r"sources/0/0", "checkpoint start"),
    (_OF_EPOCH + r"offsets/\d+", "checkpoint offsets"),
    (_OF_EPOCH + r"commits/\d+", "checkpoint commits"),
    (_OF_EPOCH + r"sluice-(window(-types|-panes|-former)?|dedupe|processor)\.json", "checkpoint definition"),
    (_OF_EPOCH + r"state/.*/_metadata/.*", "checkpoint operators"),
    (_OF_EPOCH + r"state/.*", "checkpoint state"),
    (r"sources/[^/]+/(.+/)?_delta_log/(\d+\.(json|checkpoint\.parquet)|_last_checkpoint)", "source commit"),
    (r"sources/[^/]+/([^/]+\.json|id)", "source commit"),
    (r"sources/[^/]+/.*\.parquet", "source files"),
    (rf"logs/[^/]+{_COMMIT}|logs/[^/]+/_delta_log/_last_checkpoint", "log commit"),
    (r"logs/[^/]+/batches/[^/]+/_seal\.json", "log note"),
    (r"logs/[^/]+/batches/.*\.parquet", "log files"),
    (rf"(quarantine/[^/]+|[^/]+_quarantine){_COMMIT}", "quarantine commit"),
    (r"(quarantine/[^/]+|[^/]+_quarantine)/batches/.*\.parquet", "quarantine files"),
    (r"lake/.*/metadata/.*", "sink metadata"),
    (r"catalog\.db", "sink catalog"),
    (r"[^/]+/_sluice/\d+(\.snapshot)?\.json|staged/(foreach|console)/.*", "sink commit"),
    (r"lake/.*/batches/.*\.parquet|staged/.*\.parquet", "sink files"),
    (r"collected/.*", "sink rows"),
    (rf"[^/]+{_COMMIT}", "sink commit"),
    (r"[^/]+/batches/.*\.parquet", "sink files"),
)
_IN_PASSING = re.compile(
    r".*(\.crc|\.tmp|\.sluice|#\d+)$|.*/_temporary(/.*)?|ledger\.db(-wal|-journal)?$"
    r"|catalog\.db-journal$|.*/\.[0-9a-f]{32}$"
)
"""Files that become others, or are looked at as a whole."""


def unguarded(recording: Recording) -> list[str]:
    """Return the steps of a recording that lie in no window of their kind."""
    passed: Counter[str] = Counter({BEGIN: 1})
    found = []
    for kind in kinds(recording):
        if kind.startswith("point "):
            passed[kind.removeprefix("point ")] += 1
        elif not any(_open(passed, *window) for window in BETWEEN.get(kind, ())):
            found.append(f"{kind} after {dict(passed)}")
    return found


def _open(passed: Counter[str], opens: frozenset[str], closes: frozenset[str]) -> bool:
    return sum(passed[p] for p in opens) > sum(passed[p] for p in closes)


def kinds(recording: Recording) -> Iterator[str]:
    """Yield what each durable step is, and ``point NAME`` where the driver passed one.

    Raises
    ------
    UnknownStepError
        When a step is none of those that are known.
    """
    tree, ledger = recording.before.copy(), _Ledger()
    ledger.news(tree)
    for op in recording.operations:
        tree.apply(op)
        if op.kind == "mark":
            yield f"point {op.to}"
        elif op.path.startswith("ledger.db"):
            if op.kind == "sync":
                yield from ledger.news(tree)
        elif op.kind in ("unlink", "rmdir"):
            if not _IN_PASSING.match(op.path):
                yield "sink sweep" if re.match(r"(lake/.+/|quarantine/)?[^/]+/batches/|staged/", op.path) else "sweep"
        elif op.kind not in ("mkdir", "sync"):
            yield from _published(op, tree)


def _published(op: Operation, tree: Tree) -> Iterator[str]:
    place = op.to or op.path
    if _IN_PASSING.match(place) or (op.kind == "rename" and place in tree.folders):
        return
    for pattern, kind in _STEPS:
        if re.fullmatch(pattern, place):
            yield kind
            return
    raise UnknownStepError(f"no kind of durable step is known for: {op}")


class _Ledger:
    """Tells what a commit brought into the ledger."""

    def __init__(self) -> None:
        self._seen = 0
        self._schema: object = None
        self._rest: object = None

    def news(self, tree: Tree) -> Iterator[str]:
        return iter(self._news(tree))

    def _news(self, tree: Tree) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            for name in ("ledger.db", "ledger.db-wal"):
                if name in tree.files:
                    (Path(folder) / name).write_bytes(tree.files[name].data)
            with closing(sqlite3.connect(Path(folder) / "ledger.db")) as database:
                schema = database.execute("SELECT name, sql FROM sqlite_master").fetchall()
                known = {name for name, _ in schema}
                events = database.execute("SELECT type FROM sluice_event ORDER BY id").fetchall() if (
                    "sluice_event" in known) else []  # fmt: skip
                rest = database.execute("SELECT * FROM sluice_lease").fetchall() if "sluice_lease" in known else []
        news = [f"ledger {kind}" for (kind,) in events[self._seen :]]
        if schema != self._schema:
            news.append("ledger schema")
        elif rest != self._rest and not news:
            news.append("ledger lease")
        self._seen, self._schema, self._rest = len(events), schema, rest
        return news
