"""The command line: tables for people by default, ``--json`` for programs. The operators call the same code."""

from sluice.cli.main import main

__all__ = ["main"]
