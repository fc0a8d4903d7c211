"""The part of the build that pyproject.toml cannot say: what a wheel carries beside the three packages.

``force-include`` would also copy these files beside an editable install, where they would go stale.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FOLDERS = ("dags", "include/pipelines", "include/expectations")
_FILES = ("include/jars.lock", "include/spark-log4j2.properties", "include/pipeline.schema.json")


class ShippedFiles(BuildHookInterface[Any]):
    """Puts them below ``sluice/data`` under the names that they have in a checkout; see ``sluice/shipped.py``."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files to hatch, but not for an editable install."""
        if version == "editable":
            return
        mains = (f"spark_jobs/{main.name}" for main in Path(self.root, "spark_jobs").glob("*.py"))
        build_data["force_include"] |= {name: f"sluice/data/{name}" for name in (*_FOLDERS, *_FILES, *mains)}
