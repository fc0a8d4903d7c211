"""Keeps Data Docs from growing without end: each build reads every stored result again."""

from __future__ import annotations

import shutil
from pathlib import Path

__all__ = ["KEPT_RUNS", "prune"]

KEPT_RUNS = 50
"""Runs whose pages stay; verdicts and results of all runs stay in the ledger."""


def prune(folder: Path, keep: int = KEPT_RUNS) -> None:
    """Remove results and pages of all but the newest runs from a Great Expectations project."""
    uncommitted = folder / "gx" / "uncommitted"
    for parent in (uncommitted / "validations", uncommitted / "data_docs" / "local_site" / "validations"):
        for suite in parent.glob("*/"):
            runs = sorted((p for p in suite.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime)
            for old in runs[: max(0, len(runs) - keep)]:
                shutil.rmtree(old, ignore_errors=True)
