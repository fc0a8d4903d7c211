"""The command line. Human tables by default, ``--json`` for programs; the same code that the operators call."""

from sluice.cli.main import main

__all__ = ["main"]
