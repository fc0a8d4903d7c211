"""Builds Data Docs, and limits their size and build time."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["KEPT_RUNS", "build", "prune"]

KEPT_RUNS = 50
"""Number of runs whose pages are retained; the ledger retains verdicts and results of all runs."""


def prune(folder: Path, keep: int = KEPT_RUNS) -> None:
    """Remove results and pages of all but the newest runs from a Great Expectations project."""
    uncommitted = folder / "gx" / "uncommitted"
    for parent in (uncommitted / "validations", uncommitted / "data_docs" / "local_site" / "validations"):
        for suite in parent.glob("*/"):
            runs = sorted((p for p in suite.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime)
            for old in runs[: max(0, len(runs) - keep)]:
                shutil.rmtree(old, ignore_errors=True)


def build(context: Any, folder: Path, pages: Sequence[Any]) -> str:
    """Build these pages of a Great Expectations project, or all pages if there are none yet.

    By default Great Expectations would render every stored result again. The index is always recreated, and pages of
    pruned results are removed.

    Returns
    -------
    str
        The path of the index.
    """
    from sluice_spark.quality.pages import with_kept_templates  # it imports Great Expectations

    index = folder / "gx" / "uncommitted" / "data_docs" / "local_site" / "index.html"
    # not in the project's file: whoever opens it may lack this package
    context.variables.data_docs_sites = with_kept_templates(context.variables.data_docs_sites)
    context.build_data_docs(resource_identifiers=list(pages) if index.exists() else None)
    return str(index)
