"""From what a user types to a pipeline's name."""

from __future__ import annotations

from sluice.ledger import Ledger
from sluice.pipeline import load

__all__ = ["name_of"]


def name_of(ledger: Ledger, text: str) -> str:
    """Return the name of a pipeline that is given by name or file.

    The ledger remembers pipelines whose file is gone.

    Raises
    ------
    ConfigError
        When neither the ledger nor a pipeline file knows it: a misspelt name must not look like an empty pipeline.
    """
    if not text.endswith((".yaml", ".yml")) and ledger.runs(text, limit=1):
        return text
    return load(text).name
