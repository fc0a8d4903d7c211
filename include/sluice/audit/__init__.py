"""Proves that offsets are conserved: from the ledger alone, or also against the tables."""

from sluice.audit.books import audit
from sluice.audit.deep import deep_audit
from sluice.audit.report import AuditReport

__all__ = ["AuditReport", "audit", "deep_audit"]
