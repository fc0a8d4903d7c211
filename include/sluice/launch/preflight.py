"""Checks that the folders of a run can be written, before Spark is started for it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from sluice.errors import SinkError
from sluice.home import Home
from sluice.pipeline import Pipeline
from sluice.pipeline.load import places
from sluice.storage import file_system, is_url

__all__ = ["check_places"]


def check_places(pipeline: Pipeline) -> None:
    """Create what is missing of the home, and write a file where each local table of the pipeline is or will be.

    A folder of the quarantine that is missing is created for this user alone: it holds records as they came.

    Raises
    ------
    SinkError
        If a place cannot be written. URLs, catalogs and databases are checked by the run itself.
    ConfigError
        If nothing here can open the URL of the quarantine.
    """
    home = Home.from_env()
    found = places(pipeline)
    if is_url(found["quarantine"]):
        file_system(found["quarantine"])  # else the first refused record would tell, behind batches that are committed
    local = {what: place for what, place in found.items() if not is_url(place)}
    for what, place in {"home": home.root, **local}.items():
        try:
            if what == "home":
                home.create()
            _write(Path(place))
            if what == "quarantine":
                os.makedirs(place, 0o700, exist_ok=True)
        except OSError as error:
            raise SinkError(
                f"cannot write to {place}, the {what} of pipeline {pipeline.name!r}: {error.strerror or error}",
                state="nothing was read or written",
                next_step=f"give this user the right to write there, or set another place: "
                f"{'SLUICE_HOME' if what == 'home' else pipeline.file.name}",
            ) from None


def _write(place: Path) -> None:
    """Write where a folder is, or in the nearest one above it, and leave nothing behind."""
    if place.exists():
        with tempfile.TemporaryFile(dir=place):
            return
    above = next(folder for folder in place.parents if folder.exists())
    with tempfile.TemporaryDirectory(dir=above, prefix=f".{place.name}-"):
        return
