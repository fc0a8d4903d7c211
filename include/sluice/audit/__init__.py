"""Proves the one law: from the ledger alone, or against the tables themselves."""

from sluice.audit.books import audit
from sluice.audit.deep import deep_audit
from sluice.audit.report import AuditReport

__all__ = ["AuditReport", "audit", "deep_audit"]
