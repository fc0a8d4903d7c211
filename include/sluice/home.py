"""The layout of ``SLUICE_HOME``, the folder in which runs keep their state."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import unquote

from sluice.errors import ConfigError
from sluice.shipped import base
from sluice.storage import ESCAPED, is_url

__all__ = ["Home"]

_OF_RECORDS = ("logs", "quality", "quarantine", "sources", "staged")


@dataclass(frozen=True)
class Home:
    """The layout below ``SLUICE_HOME`` (default ``var/`` of the checkout, or of the working directory without one).

    It is a path, which every machine of a run must reach under the same name. A single sink may be a URL.
    """

    root: str

    @classmethod
    def from_env(cls) -> Home:
        """Read ``SLUICE_HOME``; a relative path begins at the checkout, or without one at the working directory.

        Raises
        ------
        ConfigError
            If it is blank, or a URL: Data Docs and the SQLite ledger are files. If it has a percent sign before two hex
            digits: delta-rs would look for tables elsewhere.
        """
        raw = os.environ.get("SLUICE_HOME") or "var"
        if not raw.strip():
            raise ConfigError(
                "SLUICE_HOME is blank",
                state="nothing was read or written",
                next_step="name a folder, or unset it",
            )
        if is_url(raw):
            raise ConfigError(
                "SLUICE_HOME is a URL, and must be a path",
                state="nothing was read or written",
                next_step="name a folder that all machines share; a sink's path in the pipeline file may be a URL",
            )
        root = str((base() / os.path.expanduser(raw)).resolve())
        if found := ESCAPED.search(root):
            raise ConfigError(
                f"SLUICE_HOME {root} has {found[0]}, which delta-rs reads as {unquote(found[0])!r}",
                state="nothing was read or written",
                next_step="name a folder without it",
            )
        return cls(root)

    def create(self) -> None:
        """Create the home and the folders that keep records, for this user alone. Existing ones stay as they are.

        Raises
        ------
        OSError
            If one cannot be created.
        """
        for folder in (self.root, *map(self.join, _OF_RECORDS)):
            os.makedirs(folder, 0o700, exist_ok=True)

    def join(self, *parts: str) -> str:
        """Return a path below the home."""
        return "/".join((self.root, *parts))

    def resolve(self, path: str) -> str:
        """Return ``path`` itself if it is absolute or a URL, otherwise the path below the home."""
        return path if is_url(path) or path.startswith("/") else self.join(path)

    def checkpoint(self, pipeline: str, epoch: int) -> str:
        """Return the live checkpoint of an epoch. All runs of the epoch, and their retries, share it."""
        return self.join("checkpoints", pipeline, f"epoch-{epoch}")

    def applied(self, pipeline: str, epoch: int) -> str:
        """Return the second checkpoint of an epoch with state whose records come by way of the write-ahead log.

        The first one is that of the stream from the source into the log; this one is that of the stream from the log
        into the sink, which has batches of its own, and the state.
        """
        return self.join("checkpoints", pipeline, f"epoch-{epoch}-applied")

    def log(self, pipeline: str) -> str:
        """Return the write-ahead log of a pipeline; all its epochs share it."""
        return self.join("logs", pipeline)

    def source(self, pipeline: str) -> str:
        """Return the folder in which a pipeline's source keeps what it has to remember, if it has to."""
        return self.join("sources", pipeline)

    @property
    def ledger_url(self) -> str:
        """``SLUICE_LEDGER_URL``, or a SQLite file in the home; a relative path begins as :meth:`from_env` says."""
        quoted = self.root.replace("%", "%25").replace("?", "%3F")  # what has a meaning in a database URL
        url = os.environ.get("SLUICE_LEDGER_URL") or f"sqlite:///{quoted}/ledger.db"
        # as SLUICE_HOME: each working directory would have a ledger of its own
        relative = re.match(r"sqlite(\+\w+)?:///(?!/|file:|:memory:)(?=.)", url)
        return f"{relative[0]}{base().resolve()}/{url[relative.end() :]}" if relative else url

    @property
    def data_docs(self) -> str:
        """The folder of Great Expectations' file context, which contains the Data Docs."""
        return self.join("quality")
