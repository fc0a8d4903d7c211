"""The folders below a table that attempts at a batch write their files to."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from fsspec.implementations.local import LocalFileSystem

from sluice.errors import described
from sluice.storage import file_system
from sluice_spark.engine.logs import logger

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["attempted", "new_folder", "remove", "stray", "written_to"]

_TOKEN = 8
"""Length of the random suffix that distinguishes the attempts at one batch."""


def new_folder(batch: str) -> str:
    """Return a folder for one more attempt at a batch, relative to the table."""
    return f"batches/{batch}-{uuid.uuid4().hex[:_TOKEN]}"


def written_to(path: str, batch: str) -> list[str]:
    """Return the folders of all attempts at a batch, as paths of the table's file system."""
    fs, base = file_system(path)
    form = re.compile(rf"{re.escape(batch)}-[0-9a-f]{{{_TOKEN}}}")
    return [folder for folder in _folders(fs, base) if form.fullmatch(folder.rsplit("/", 1)[-1])]


def remove(root: str, folders: Iterable[str]) -> None:
    """Remove folders of attempts, paths of the root's file system; what cannot be removed is logged, and stays.

    A later sweep finds it. The batch is committed, so that the run must not end by it.
    """
    fs, _ = file_system(root)
    for folder in folders:
        try:
            fs.rm(folder, recursive=True)
        except Exception as error:  # of any client
            logger.warning("%s, which no commit names, could not be removed: %s", folder, described(error))


def attempted(path: str, stem: str, *, newer_than: int) -> set[int]:
    """Return the numbers of batches with folders of attempts, of those with a higher number than ``newer_than``.

    Parameters
    ----------
    stem
        What the names of the batches begin with, up to the hyphen before the number.
    """
    fs, base = file_system(path)
    fs.invalidate_cache()
    names = (folder.rsplit("/", 1)[-1] for folder in _folders(fs, base))
    form = re.compile(rf"{re.escape(stem)}-(\d{{6,}})-[0-9a-f]{{{_TOKEN}}}")
    return {n for name in names if (match := form.fullmatch(name)) and (n := int(match[1])) > newer_than}


def _folders(fs: AbstractFileSystem, base: str) -> list[str]:
    """Return the paths of all folders of attempts; by a listing, for a glob reads brackets in the path as a pattern."""
    place = f"{base}/batches"
    try:
        if isinstance(fs, LocalFileSystem):  # whose ls asks for the state of each entry
            return [f"{place}/{name}" for name in os.listdir(place)]
        return [str(folder) for folder in fs.ls(place, detail=False)]
    except OSError:  # there is no folder yet; or it cannot be read, and what only cleans may wait
        return []


def stray(folders: Iterable[str], files: pa.ChunkedArray) -> list[str]:
    """Return those of the folders that hold none of a table's files.

    Parameters
    ----------
    files
        The paths of the table's files, as its log has them.
    """
    found = []
    for folder in folders:
        name = folder.rsplit("/", 1)[-1]
        # the log encodes file names, but the attempt's suffix has no character that would be encoded
        near = files.filter(pc.match_substring(files, f"{name[-_TOKEN - 1 :]}/")).to_pylist()
        if not any(f"/batches/{name}/" in f"/{unquote(path)}" for path in near):
            found.append(folder)
    return found
