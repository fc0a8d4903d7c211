"""The pipeline files, each parsed once for as long as it does not change."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

from sluice.errors import ConfigError
from sluice.pipeline import Pipeline, load, pipelines_folder
from sluice.pipeline.defaults import DEFAULTS
from sluice.pipeline.load import find, name_written

__all__ = ["Files"]

_RETRY = 60.0
"""Seconds after which a file that is not valid is read again: a suite that it names may be there by now."""

_State = tuple[tuple[int, int] | None, tuple[int, int] | None]


class Files:
    """The valid pipeline files of the folder of pipelines, and of those below it."""

    def __init__(self) -> None:
        self._read: dict[Path, tuple[_State, float, Pipeline | str]] = {}
        self._lock = threading.Lock()

    def named(self, name: str) -> Pipeline | None:
        """Return one pipeline; only its file is read if that is called like the pipeline."""
        try:
            file = pipelines_folder() / f"{name}.yaml"
        except ConfigError:
            return None
        found = self._pipeline(file) if "/" not in name else None
        return found if isinstance(found, Pipeline) and found.name == name else self.valid().get(name)

    def load(self, reference: str) -> Pipeline:
        """Return a pipeline, given by its name or its file.

        Raises
        ------
        ConfigError
            If there is none, or if its file has a mistake.
        """
        file = find(reference)
        found = self._pipeline(file)
        return found if isinstance(found, Pipeline) else load(file)

    def valid(self) -> dict[str, Pipeline]:
        """Return all of them by name; of two with one name, the one that is higher up.

        Nothing if there is no folder: the ledger still has its pipelines.
        """
        return self.read_all()[0]

    def broken(self) -> dict[str, str]:
        """Return what is wrong with each file that is not valid, by the name that it gives its pipeline."""
        return self.read_all()[1]

    def read_all(self) -> tuple[dict[str, Pipeline], dict[str, str]]:
        """Return :meth:`valid` and :meth:`broken`, by one look at the folder."""
        valid, broken = dict[str, Pipeline](), dict[str, str]()
        for file, spec in self._all():
            if isinstance(spec, Pipeline):
                valid.setdefault(spec.name, spec)
            elif spec is not None:
                broken[name_written(file)] = spec
        return valid, broken

    def _all(self) -> Iterator[tuple[Path, Pipeline | str | None]]:
        try:
            folder = pipelines_folder()
        except ConfigError:
            return
        files = sorted(folder.rglob("*.yaml"), key=lambda file: (len(file.parts), file))
        with self._lock:
            for gone in self._read.keys() - set(files):
                del self._read[gone]
        for file in files:
            if file.name != DEFAULTS and not file.name.startswith("."):
                yield file, self._pipeline(file)

    def _pipeline(self, file: Path) -> Pipeline | str | None:
        """Return what a file has, or what is wrong with it; None if it is gone."""
        state = _stat(file), _stat(file.parent / DEFAULTS)
        if state[0] is None:
            return None
        with self._lock:  # so that threads that come at once share the work
            known, at, spec = self._read.get(file, (None, 0.0, ""))
            if known != state or (isinstance(spec, str) and time.monotonic() > at + _RETRY):
                try:
                    spec = load(file)
                except ConfigError as error:
                    spec = error.what
                except Exception as error:  # whatever is wrong with it, the others are shown
                    spec = f"{file.name}: {type(error).__name__}"
                self._read[file] = state, time.monotonic(), spec
        return spec


def _stat(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except (OSError, ValueError):  # a name may come from an address, with a NUL
        return None
    return found.st_mtime_ns, found.st_size
