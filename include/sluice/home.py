"""Where a run keeps its state: one folder, ``SLUICE_HOME``, laid out in one place."""

from __future__ import annotations

import os
from dataclasses import dataclass

from sluice.errors import ConfigError
from sluice.shipped import base

__all__ = ["Home"]


def _is_url(path: str) -> bool:
    return "://" in path


@dataclass(frozen=True)
class Home:
    """The layout below ``SLUICE_HOME`` (default ``var/`` of the checkout, or of the working directory without one).

    A path, which every machine that works for a run reaches under the same name. A single sink may be a URL.
    """

    root: str

    @classmethod
    def from_env(cls) -> Home:
        """Read ``SLUICE_HOME``; a relative path is taken from the checkout, and only without one from where we are.

        Raises
        ------
        ConfigError
            For a URL: Data Docs and the SQLite ledger are files.
        """
        raw = os.environ.get("SLUICE_HOME") or "var"
        if _is_url(raw):
            raise ConfigError(
                "SLUICE_HOME is a URL, and must be a path",
                state="nothing was read or written",
                next_step="name a folder that all machines share; a sink's path in the pipeline file may be a URL",
            )
        return cls(str((base() / raw).resolve()))

    def join(self, *parts: str) -> str:
        """Return a path below the home."""
        return "/".join((self.root, *parts))

    def resolve(self, path: str) -> str:
        """Return ``path`` itself when absolute or a URL, otherwise below the home (a sink's relative path)."""
        return path if _is_url(path) or path.startswith("/") else self.join(path)

    def checkpoint(self, pipeline: str, epoch: int) -> str:
        """Return the live checkpoint of one epoch. Its identity is pipeline and epoch, never a run or a try."""
        return self.join("checkpoints", pipeline, f"epoch-{epoch}")

    def log(self, pipeline: str) -> str:
        """Return the write-ahead log of a pipeline: one for all its epochs."""
        return self.join("logs", pipeline)

    @property
    def ledger_url(self) -> str:
        """``SLUICE_LEDGER_URL``, or a SQLite file in the home."""
        return os.environ.get("SLUICE_LEDGER_URL") or f"sqlite:///{self.root}/ledger.db"

    @property
    def data_docs(self) -> str:
        """The folder of Great Expectations' file context; its Data Docs lie below it."""
        return self.join("quality")
