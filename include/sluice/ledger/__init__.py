"""The account of runs: append-only events, and the tables that questions need."""

from sluice.ledger.lease import Holder, Lease
from sluice.ledger.ledger import BatchRow, Ledger, RunRow

__all__ = ["BatchRow", "Holder", "Lease", "Ledger", "RunRow"]
