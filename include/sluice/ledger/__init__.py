"""The account of runs: append-only events, and tables derived from them for queries."""

from sluice.ledger.history import Glance, RunLine, Span
from sluice.ledger.lease import Holder, Lease
from sluice.ledger.ledger import Ledger
from sluice.ledger.rows import (
    BatchRow,
    Entry,
    Epoch,
    IntervalRow,
    LostRow,
    PartitionTime,
    RunRow,
    StateRow,
    Unannounced,
)
from sluice.ledger.runs import UnknownRunError
from sluice.ledger.store import LedgerError
from sluice.recovery import REDRIVEN

__all__ = [
    "REDRIVEN",
    "BatchRow",
    "Entry",
    "Epoch",
    "Glance",
    "Holder",
    "IntervalRow",
    "Lease",
    "Ledger",
    "LedgerError",
    "LostRow",
    "PartitionTime",
    "RunLine",
    "RunRow",
    "Span",
    "StateRow",
    "Unannounced",
    "UnknownRunError",
]
