"""Finds the pipeline that a user names."""

from __future__ import annotations

from sluice.ledger import Ledger
from sluice.pipeline import load

__all__ = ["name_of"]


def name_of(ledger: Ledger, text: str) -> str:
    """Return the name of a pipeline, given by name or file.

    The ledger also has pipelines whose file was deleted.

    Raises
    ------
    ConfigError
        If neither the ledger nor a pipeline file has it: a misspelt name must not look like an empty pipeline.
    """
    if not text.endswith((".yaml", ".yml")) and ledger.runs.newest(text, limit=1):
        return text
    return load(text).name
