"""What passed before, so that the long way through all crash tests can be gone in several invocations."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from sluice.shipped import CHECKOUT

__all__ = ["Passed", "code"]


def code(*folders: str) -> str:
    """Name the code in folders of the project."""
    digest = hashlib.sha256()
    for folder in folders:
        for file in sorted((CHECKOUT / folder).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


@dataclass
class Passed:
    """Names of tests, a line each, in a file that goes by the code that they passed with, and by what was asked of it.

    ``SLUICE_CHAOS_FOLDER`` names the folder; without it nothing is remembered.
    """

    file: Path | None

    @classmethod
    def from_env(cls) -> Passed:
        """Return what is on record for the code as it is."""
        folder = os.environ.get("SLUICE_CHAOS_FOLDER")
        asked = [os.environ.get(name, "") for name in ("SLUICE_CHAOS_KILLS", "SLUICE_CHAOS_SEED")]
        name = "-".join(["passed", code("include", "spark_jobs", "plugins", "tests"), *filter(None, asked)])
        return cls(Path(folder) / name if folder else None)

    def names(self) -> set[str]:
        """Return the tests that need not run any more."""
        return set(self.file.read_text().splitlines()) if self.file and self.file.exists() else set()

    def add(self, name: str) -> None:
        """Put a test on record."""
        if self.file:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a") as out:
                out.write(name + "\n")
