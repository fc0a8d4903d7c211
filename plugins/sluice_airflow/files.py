"""The pipeline files, each parsed once for as long as it does not change."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from sluice.errors import ConfigError
from sluice.pipeline import Pipeline, load, pipelines_folder
from sluice.pipeline.defaults import DEFAULTS
from sluice.pipeline.load import find

__all__ = ["Files"]

_RETRY = 60.0
"""Seconds after which a file that is not valid is read again: a suite that it names may be there by now."""

_State = tuple[tuple[int, int] | None, tuple[int, int] | None]


class Files:
    """The valid pipeline files of the folder of pipelines, and of those below it."""

    def __init__(self) -> None:
        self._read: dict[Path, tuple[_State, float, Pipeline | None]] = {}
        self._lock = threading.Lock()

    def named(self, name: str) -> Pipeline | None:
        """Return one pipeline; only its file is read if that is called like the pipeline."""
        try:
            file = pipelines_folder() / f"{name}.yaml"
        except ConfigError:
            return None
        found = self._pipeline(file) if "/" not in name else None
        return found if found is not None and found.name == name else self.valid().get(name)

    def load(self, reference: str) -> Pipeline:
        """Return a pipeline, given by its name or its file.

        Raises
        ------
        ConfigError
            If there is none, or if its file has a mistake.
        """
        file = find(reference)
        return self._pipeline(file) or load(file)

    def valid(self) -> dict[str, Pipeline]:
        """Return all of them by name; of two with one name, the one that is higher up.

        Nothing if there is no folder: the ledger still tells of its pipelines.
        """
        try:
            folder = pipelines_folder()
        except ConfigError:
            return {}
        files = sorted(folder.rglob("*.yaml"), key=lambda file: (len(file.parts), file))
        with self._lock:
            for gone in self._read.keys() - set(files):
                del self._read[gone]
        found: dict[str, Pipeline] = {}
        for file in files:
            spec = self._pipeline(file) if file.name != DEFAULTS and not file.name.startswith(".") else None
            if spec is not None:
                found.setdefault(spec.name, spec)
        return found

    def _pipeline(self, file: Path) -> Pipeline | None:
        state = _stat(file), _stat(file.parent / DEFAULTS)
        if state[0] is None:
            return None
        with self._lock:  # so that threads that come at once share the work
            known, at, spec = self._read.get(file, (None, 0.0, None))
            if known != state or (spec is None and time.monotonic() > at + _RETRY):
                try:
                    spec = load(file)
                except Exception:  # whatever is wrong with it, the others are shown
                    spec = None
                self._read[file] = state, time.monotonic(), spec
        return spec


def _stat(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except (OSError, ValueError):  # a name may come from an address, with a NUL
        return None
    return found.st_mtime_ns, found.st_size
