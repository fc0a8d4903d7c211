"""The manifest of a folder of Parquet files: a numbered file for each commit, which says what it added and removed.

``_sluice/00000000000000000007.json`` is commit 7. It appears under its name at once and whole, or not at all, and no
two writers make the same one: it is written beside and linked. Each 50th commit also has a ``.snapshot.json``, which
lists everything that is there after it. So whoever wants the files reads a snapshot and at most 49 commits.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sluice.atomic_file import made_once

__all__ = ["FOLDER", "BrokenManifestError", "Manifest", "State", "files_of"]

FOLDER = "_sluice"
"""The folder of the manifest, below that of the files; readers of folders skip a name that begins like this."""
_DIGITS = 20
_EVERY = 50
_SNAPSHOT = ".snapshot.json"


class BrokenManifestError(Exception):
    """A commit is missing or damaged."""


@dataclass
class State:
    """What a folder holds after a commit.

    Attributes
    ----------
    version
        The number of the commit; -1 before the first.
    files
        The entry of each file, by its path below the folder.
    batches
        The newest batch of each writer.
    note
        The commit metadata of the newest commit.
    schema
        The columns, as the newest commit with rows had them.
    replaced
        The files that are out of use and may still be there, with the time at which that was committed, in
        milliseconds since 1970.
    """

    version: int = -1
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    batches: dict[str, int] = field(default_factory=dict)
    note: dict[str, Any] = field(default_factory=dict)
    schema: Any = None
    replaced: dict[str, int] = field(default_factory=dict)

    def apply(self, commit: Mapping[str, Any]) -> None:
        """Go on to the next commit."""
        for path in commit["removed"]:
            self.files.pop(path, None)
            self.replaced[path] = commit["at"]
        for path in commit["forgotten"]:
            self.replaced.pop(path, None)
        self.files.update({entry["path"]: entry for entry in commit["added"]})
        self.version, self.note = commit["version"], commit["note"]
        self.batches[self.note["app_id"]] = self.note["version"]
        self.schema = commit.get("schema") or self.schema


class Manifest:
    """The manifest of one folder, which need not exist yet."""

    def __init__(self, root: str) -> None:
        self._folder = Path(root) / FOLDER

    def state(self) -> State:
        """Return what the folder holds now.

        Raises
        ------
        BrokenManifestError
            If a commit is missing, or one since the newest snapshot is damaged.
        """
        numbers, snapshots = self._numbers()
        if numbers and numbers != list(range(len(numbers))):
            missing = next(n for n, number in enumerate(numbers) if n != number)
            raise BrokenManifestError(f"commit {missing} is missing")
        state = State()
        for number in reversed(snapshots):  # one that is damaged is only slower
            with suppress(ValueError, KeyError, TypeError):
                state = State(**self._read(number, _SNAPSHOT))
                break
        if state.version >= len(numbers):
            raise BrokenManifestError(f"commit {state.version} is missing")
        for number in range(state.version + 1, len(numbers)):
            state.apply(self._commit(number))
        return state

    def notes(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the number and the commit metadata of all commits, newest first."""
        for number in reversed(self._numbers()[0]):
            yield number, self._commit(number)["note"]

    def commit(
        self,
        state: State,
        added: Sequence[Mapping[str, Any]],
        removed: Sequence[str],
        note: Mapping[str, Any],
        schema: Any = None,
        forgotten: Sequence[str] = (),
    ) -> bool:
        """Add the commit after a state; return False if another program did, and nothing was changed.

        Parameters
        ----------
        forgotten
            Files that were replaced and are no longer there.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        number = state.version + 1
        commit = {
            "version": number, "at": int(time.time() * 1000), "added": list(added), "removed": list(removed),
            "forgotten": list(forgotten), "note": dict(note), "schema": schema,
        }  # fmt: skip
        if not self._write(f"{number:0{_DIGITS}}.json", commit):
            return False
        if number % _EVERY == _EVERY - 1:
            state.apply(commit)
            with suppress(OSError):  # the commits say the same
                self._write(f"{number:0{_DIGITS}}{_SNAPSHOT}", vars(state))
        return True

    def _write(self, name: str, content: Mapping[str, Any]) -> bool:
        return made_once(self._folder / name, json.dumps(content).encode())

    def _numbers(self) -> tuple[list[int], list[int]]:
        """Return the numbers of the commits, and those that have a snapshot."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return [], []
        whole = [name for name in names if name[:_DIGITS].isdecimal()]
        commits = sorted(int(name[:_DIGITS]) for name in whole if name[_DIGITS:] == ".json")
        return commits, sorted(int(name[:_DIGITS]) for name in whole if name[_DIGITS:] == _SNAPSHOT)

    def _commit(self, number: int) -> dict[str, Any]:
        try:
            found = self._read(number, ".json")
        except (OSError, ValueError) as error:
            raise BrokenManifestError(f"commit {number} is damaged: {error}") from error
        if found.get("version") != number:
            raise BrokenManifestError(f"commit {number} says that it is {found.get('version')}")
        return found

    def _read(self, number: int, ending: str) -> dict[str, Any]:
        text = (self._folder / f"{number:0{_DIGITS}}{ending}").read_text(encoding="utf-8")
        found: dict[str, Any] = json.loads(text)
        return found


def files_of(root: str) -> list[str]:
    """Return the files that a folder holds now, with their whole path: what a reader opens.

    Raises
    ------
    BrokenManifestError
        If a commit is missing, or one since the newest snapshot is damaged.
    """
    return [f"{root}/{path}" for path in Manifest(root).state().files]
