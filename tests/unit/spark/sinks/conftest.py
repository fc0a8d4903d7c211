"""Sinks of the contract tests, for what is particular to a kind."""

from tests.contract.sinks import case

__all__ = ["case"]
