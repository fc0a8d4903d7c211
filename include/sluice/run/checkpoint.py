"""Reads a Structured Streaming checkpoint: planned batches, committed batches and positions.

Spark owns the checkpoint. This module removes only files that Spark can recreate, and writes only what an epoch with
state needs: its definition, and the plan of a batch that Spark would have planned itself had its driver lived. Spark
syncs no file of it to the disk: for a batch with state, :meth:`Checkpoint.sync` does.

The layout (Spark 4.2, offset log v1): ``offsets/N`` has a version line, a metadata line and one JSON line per source.
``commits/N`` is there once batch N is done. ``sources/0/0`` has the offsets at which the first batch started, after a
zero byte and a version line.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.atomic_file import made_once
from sluice.errors import CheckpointError, begin_again
from sluice.ranges import OffsetRange, Positions, ranges_between
from sluice.sources.clusters import named_positions
from sluice.storage import file_system, is_url

__all__ = ["Checkpoint", "Clock"]

_DEFINITION = re.compile(r"sluice-(?!flushed)([a-z_]+)\.json")
"""Where the definition lies of what the checkpoint keeps state for, by its key in the pipeline file."""

_TYPES = "sluice-window-types.json"
_PANES = "sluice-window-panes.json"
_FORMER = "sluice-window-former.json"
_FLUSHED = "sluice-flushed.json"


@dataclass(frozen=True)
class Clock:
    """The times of a batch, in milliseconds since 1970. A batch that is repeated has the same.

    Parameters
    ----------
    late
        The watermark by which its records are late: that of the batch before.
    closing
        The watermark by which it closes windows.
    now
        When the batch was planned.
    """

    late: int
    closing: int
    now: int


class Checkpoint:
    """One checkpoint directory, by path or URL; it need not exist yet.

    Parameters
    ----------
    start
        Where its epoch starts, if it follows another epoch.
    prefix
        What the names of its streams begin with: :meth:`sluice.sources.base.SourceConfig.prefix_at`. Spark knows
        topics, and not of which cluster.
    """

    def __init__(self, path: str, start: Positions | None = None, *, prefix: str = "") -> None:
        self.path = path
        self._start = start
        self.prefix = prefix
        self._fs: Any
        self._fs, self._root = file_system(path)

    def _names(self, folder: str) -> list[str]:
        self._fs.invalidate_cache()
        with self._readable(folder):
            try:
                return [name.rsplit("/", 1)[-1] for name in self._fs.ls(f"{self._root}/{folder}", detail=False)]
            except FileNotFoundError:
                return []

    def _numbers(self, folder: str) -> list[int]:
        return sorted(int(n) for n in self._names(folder) if n.isascii() and n.isdigit())

    def _content(self, name: str) -> bytes:
        with self._fs.open(f"{self._root}/{name}", "rb") as file:
            return bytes(file.read())

    def _line(self, name: str, number: int) -> Positions:
        with self._readable(name):
            positions = self._json(name, number)
            found = {t: {int(p): int(o) for p, o in parts.items()} for t, parts in positions.items()}
            return named_positions(self.prefix, found)

    def _milliseconds(self, name: str, key: str) -> int:
        with self._readable(name):
            return int(self._json(name, 1)[key])

    def _json(self, name: str, number: int) -> dict[str, Any]:
        with self._readable(name):
            return dict(json.loads(self._content(name).lstrip(b"\0").splitlines()[number]))

    @contextmanager
    def _readable(self, name: str) -> Iterator[None]:
        try:
            yield
        except (LookupError, ValueError, ArithmeticError, TypeError, AttributeError, RecursionError, OSError) as error:
            raise CheckpointError(
                f"{self.path}/{name} cannot be read: {error}",
                state="the sink holds what was committed before; nothing was written now",
                next_step="give this user the right to read it, or restore it from a copy of the checkpoint; or go on "
                f"with a fresh one: {begin_again(Path(self.path).parent.name)}",
            ) from error

    def planned(self) -> list[int]:
        """Return the ids of batches whose ranges are logged (Spark retains about the last hundred)."""
        return self._numbers("offsets")

    def committed(self) -> list[int]:
        """Return the ids of batches that are done."""
        return self._numbers("commits")

    def open_batch(self) -> int | None:
        """Return the batch that was planned and not committed, or None. The next run starts with it."""
        planned, committed = self.planned(), self.committed()
        return planned[-1] if planned and (not committed or committed[-1] < planned[-1]) else None

    def mend(self, held: int) -> list[str]:
        """Remove incomplete files of a dead driver or a power cut that no commit depends on; Spark recreates them.

        Spark renames its files into place without syncing them, so the newest may be empty after a power cut. An empty
        ``offsets/N`` is removed if no table holds batch N, an empty ``commits/N`` if one does. Before the first plan,
        leftover temporary files are removed, because Spark requires an empty ``offsets`` then.

        Spark does not sync its state either. If only that of the newest committed batch is empty, its commit is
        removed with it: Spark makes the state again, from the same ranges. Nothing else is touched.

        The caller must hold the pipeline's lease. Idempotent.

        Parameters
        ----------
        held
            The last batch in the table that the stream fills; -1 if there is none.

        Returns
        -------
        The names of the files that were removed: they were empty, or rested on one that was.
        """
        removed = self._mend_state(held)
        planned, committed = self.planned(), self.committed()
        done = committed[-1] if committed else -1
        if done in planned and done <= held:
            removed += self._remove_empty(f"commits/{done}")
        if planned and planned[-1] > max(held, done):
            removed += self._remove_empty(f"offsets/{planned[-1]}")
        if not self.planned():
            for name in self._names("offsets"):
                if name.startswith(".") and name.removesuffix(".crc").endswith(".tmp"):
                    self._fs.rm_file(f"{self._root}/offsets/{name}")
            removed += [name for file in ("metadata", "sources/0/0") for name in self._remove_empty(file)]
        if not self.committed():  # Spark's first batch describes its state, unless something does
            removed += [name for file in self._descriptions() for name in self._remove_empty(file)]
        return removed

    def _descriptions(self) -> list[str]:
        self._fs.invalidate_cache()
        found = (path.removeprefix(f"{self._root}/") for path in self._fs.find(f"{self._root}/state"))
        return sorted(name for name in found if "/_metadata/" in name and not name.endswith(".crc"))

    def _remove_empty(self, name: str) -> list[str]:
        try:
            if self._content(name).strip(b"\0"):
                return []
        except FileNotFoundError:
            return []
        return self._remove(name)

    def _remove(self, name: str) -> list[str]:
        folder, _, base = name.rpartition("/")
        with suppress(FileNotFoundError):  # the checksum file of Hadoop's local file system
            self._fs.rm_file("/".join(filter(None, [self._root, folder, f".{base}.crc"])))
        self._fs.rm_file(f"{self._root}/{name}")
        return [name]

    def _mend_state(self, held: int) -> list[str]:
        planned, committed, torn = self.planned(), self.committed(), self.torn_state()
        # once a table holds rows of a batch behind it, that one's plan must stay, and Spark would go on with it
        if not planned or not committed or committed[-1] != held or torn != [held + 1]:
            return []
        removed: list[str] = []
        if planned[-1] > held:
            self.drop_state(planned[-1])  # planned again, the batch may have other records
            removed += self._remove(f"offsets/{planned[-1]}")
        removed += self._remove(f"commits/{held}")
        self.drop_state(held)
        return removed

    def initial(self) -> Positions | None:
        """Return the position at which the first batch starts; None if ``starting_offsets`` still decides it.

        Raises
        ------
        CheckpointError
            If the file is damaged.
        """
        return self._line("sources/0/0", -1) if "0" in self._names("sources/0") else self._start

    def end_of(self, batch: int) -> Positions:
        """Return the position at which batch ``batch`` ends.

        Raises
        ------
        CheckpointError
            If the file is damaged, or not that of a single source.
        """
        return self._line(f"offsets/{batch}", 2)

    def start_of(self, batch: int) -> Positions:
        """Return the position at which batch ``batch`` starts."""
        return self.end_of(batch - 1) if batch > 0 else (self.initial() or {})

    def ranges_of(self, batch: int) -> list[OffsetRange]:
        """Return the ranges that batch ``batch`` was planned with."""
        return ranges_between(self.start_of(batch), self.end_of(batch))

    def positions(self) -> Positions | None:
        """Return the committed positions: next offset to read, per partition; None before the first batch."""
        committed = self.committed()
        return self.end_of(committed[-1]) if committed else self.initial()

    # --- state -----------------------------------------------------------------------------------------------------

    def clock_of(self, batch: int) -> Clock:
        """Return the times of a planned batch.

        Raises
        ------
        CheckpointError
            If a file is damaged.
        """
        before = self._milliseconds(f"offsets/{batch - 1}", "batchWatermarkMs") if batch > 0 else 0
        name = f"offsets/{batch}"
        return Clock(before, self._milliseconds(name, "batchWatermarkMs"), self._milliseconds(name, "batchTimestampMs"))

    def closing_due(self) -> int | None:
        """Return the number of the batch without records that has to close windows and that was not planned, or None.

        Spark plans it after a run's last batch with records, in the same run. A driver that died in between leaves the
        watermark of ``commits/N`` ahead of that of ``offsets/N``, and Spark does not make the batch up.
        """
        planned, committed = self.planned(), self.committed()
        if not committed or not planned or planned[-1] != committed[-1]:
            return None
        last = committed[-1]
        behind = self._milliseconds(f"offsets/{last}", "batchWatermarkMs") < self._next_watermark(last)
        return last + 1 if behind else None

    def last_read(self) -> Clock | None:
        """Return the times of the newest batch that had records; None if Spark retains none."""
        batch = self.newest_read()
        return None if batch is None else self.clock_of(batch)

    def flushed(self) -> bool:
        """Return whether :meth:`note_flushed` was called since the newest batch that had records."""
        return _FLUSHED in self._names("") and self._json(_FLUSHED, 0)["batch"] == self.newest_read()

    def note_flushed(self, read: int) -> None:
        """Note that what no record would emit was emitted, or that there was nothing of it.

        Parameters
        ----------
        read
            What :meth:`newest_read` returned, before it was looked for.
        """
        self._put(_FLUSHED, json.dumps({"batch": read}).encode())

    def newest_read(self) -> int | None:
        """Return the newest batch that had records; None if Spark retains none."""
        planned = self.planned()
        for batch in reversed(planned):
            if batch == 0 or (batch - 1 in planned and self.ranges_of(batch)):
                return batch
        return None

    def plan_closing(self, batch: int, watermark: int | None = None) -> None:
        """Write the plan of a batch without records, which closes windows: the offsets of the batch before.

        The caller must hold the pipeline's lease.

        Parameters
        ----------
        watermark
            Windows that end there or before are closed; None means the watermark that Spark committed.

        Raises
        ------
        CheckpointError
            If another program has planned the batch meanwhile; its plan stays. An object store cannot tell.
        """
        lines = self._content(f"offsets/{batch - 1}").splitlines()
        told = json.loads(lines[1])
        told["batchWatermarkMs"] = self._next_watermark(batch - 1) if watermark is None else watermark
        told["batchTimestampMs"] = time.time_ns() // 1_000_000
        lines[1] = json.dumps(told, separators=(",", ":")).encode()
        name, content = f"offsets/{batch}", b"\n".join(lines)
        if is_url(self.path):
            self._put(name, content)
            return
        with suppress(FileNotFoundError):  # the checksum, in Hadoop's local file system, of a file that is gone
            self._fs.rm_file(f"{self._root}/offsets/.{batch}.crc")
        if not made_once(Path(f"{self._root}/{name}"), content):
            raise CheckpointError(
                f"another driver has planned batch {batch} in {self.path} meanwhile",
                state="nothing was written; that plan stays as it is",
                next_step="run again: if that driver died, the run goes on with its plan",
            )

    def watermark(self, batch: int | None = None) -> int:
        """Return the watermark after a committed batch, by default the last one, in milliseconds since 1970.

        It is 0 before the first batch.
        """
        committed = self.committed() if batch is None else [batch]
        return self._next_watermark(committed[-1]) if committed else 0

    def shares(self) -> int | None:
        """Return into how many shares state is divided, which the first batch fixed; None before it."""
        planned = self.planned()
        if not planned:
            return None
        with self._readable(f"offsets/{planned[-1]}"):
            return int(self._json(f"offsets/{planned[-1]}", 1)["conf"]["spark.sql.shuffle.partitions"])

    def state_bytes(self) -> int:
        """Return the size of all files of the state: the newest version, and those that Spark retains."""
        self._fs.invalidate_cache()
        return sum(int(info["size"]) for info in self._fs.find(f"{self._root}/state", detail=True).values())

    def torn_state(self) -> list[int]:
        """Return the versions of the state that the next batch needs and that are empty, as after a power cut."""
        committed = self.committed()
        if not committed:
            return []
        self._fs.invalidate_cache()
        shares: dict[str, dict[tuple[int, str], int]] = {}
        for path, info in self._fs.find(f"{self._root}/state", detail=True).items():
            folder, _, name = path.rpartition("/")
            number, _, kind = name.partition(".")
            if number.isdigit() and kind in ("changelog", "zip"):
                shares.setdefault(folder, {})[int(number), kind] = 0 if self._dark(path) else int(info["size"])
        newest, torn = committed[-1] + 1, set[int]()
        for files in shares.values():
            whole = [number for (number, kind), size in files.items() if kind == "zip" and size and number <= newest]
            needed = range(max(whole, default=0) + 1, newest + 1)
            torn |= {number for number in needed if files.get((number, "changelog")) == 0}
        return sorted(torn)

    def _dark(self, path: str) -> bool:
        """Return whether a file has nothing but zeros, as after a power cut; an object is there as a whole."""
        if is_url(self.path):
            return False
        with open(path, "rb") as file:
            return not file.read(64).strip(b"\0")  # what Spark writes begins with other bytes

    def sync(self, batch: int) -> None:
        """Bring to the disk what a batch rests on, its plan and its state: a power cut leaves that whole then.

        Call it when the state is made, before the sink commits the batch: what the sink holds has its state, always.
        What batches before it rest on was brought there with them. In an object store nothing is to be done.
        """
        if is_url(self.path):
            return
        folders = {os.path.dirname(self._root), os.path.dirname(os.path.dirname(self._root))}
        for folder, _, names in os.walk(self._root):
            folders.add(folder)
            for name in names:
                number = name.lstrip(".").partition(".")[0]
                # a plan has the batch's number, its state the next one, the commit before it the one before
                if not number.isdigit() or batch - 1 <= int(number) <= batch + 1:
                    _sync(os.path.join(folder, name))
        for folder in sorted(folders):
            _sync(folder)

    def drop_state(self, batch: int) -> bool:
        """Remove the state that an attempt at a batch made; return whether there was any. Spark makes it again.

        Spark does not replace such files: a second attempt would go on with its own state until its run ends, and the
        next run with that of the first attempt, whose rows no table holds.

        The caller must hold the pipeline's lease, and no query may run.
        """
        self._fs.invalidate_cache()
        made = {f"{batch + 1}.{kind}" for kind in ("changelog", "zip")}  # a state's version is its batch's number + 1
        made |= {f".{name}.crc" for name in made}
        found = [name for name in self._fs.find(f"{self._root}/state") if name.rsplit("/", 1)[-1] in made]
        for name in sorted(found, key=lambda name: not name.endswith(".crc")):
            self._fs.rm_file(name)
        return bool(found)

    def _next_watermark(self, batch: int) -> int:
        return self._milliseconds(f"commits/{batch}", "nextBatchWatermarkMs")

    def definition(self) -> tuple[str, dict[str, Any]] | None:
        """Return what the state here is of: a key of the pipeline file, and its definition; None if there is none."""
        found = next(filter(None, map(_DEFINITION.fullmatch, self._names(""))), None)
        return None if found is None else (found[1], self._json(found[0], 0))

    def defined(self) -> bool:
        """Return whether there is, or will be, state: whether :meth:`define` was called."""
        return any(map(_DEFINITION.fullmatch, self._names("")))

    def define(self, key: str, definition: Mapping[str, Any]) -> None:
        """Note of what the state will be, before Spark makes any."""
        self._put(f"sluice-{key}.json", json.dumps(definition).encode())

    def types(self) -> dict[str, str] | None:
        """Return the types of columns whose values the state has without their types; None if they were not noted."""
        return {str(k): str(v) for k, v in self._json(_TYPES, 0).items()} if _TYPES in self._names("") else None

    def note_types(self, types: Mapping[str, str]) -> None:
        """Note what :meth:`types` returns."""
        self._put(_TYPES, json.dumps(dict(types)).encode())

    def panes(self) -> dict[str, Any] | None:
        """Return of what panes the state here consists; None if it has windows, or they were not noted."""
        return (self._json(_PANES, 0) or None) if _PANES in self._names("") else None

    def note_panes(self, panes: Mapping[str, Any] | None) -> None:
        """Note what :meth:`panes` returns, before Spark makes any state."""
        self._put(_PANES, json.dumps(dict(panes or {})).encode())

    def former_to(self) -> int | None:
        """Return up to which end windows are those of earlier epochs, in milliseconds since 1970; None if none are."""
        return self._json(_FORMER, 0)["to"] if _FORMER in self._names("") else None

    def note_former(self, to: int | None) -> None:
        """Note what :meth:`former_to` returns, before Spark makes any state."""
        self._put(_FORMER, json.dumps({"to": to}).encode())

    def _put(self, name: str, content: bytes) -> None:
        """Write a file that appears as a whole."""
        target = f"{self._root}/{name}"
        if is_url(self.path):  # an object appears as a whole
            self._fs.pipe_file(target, content)
            return
        folder, _, base = target.rpartition("/")
        self._fs.makedirs(folder, exist_ok=True)
        with suppress(FileNotFoundError):  # the checksum, in Hadoop's local file system, of a file that is gone
            self._fs.rm_file(f"{folder}/.{base}.crc")
        temporary = f"{folder}/.{base}.sluice"
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())  # a power cut must not leave it empty
        os.replace(temporary, target)


def _sync(path: str) -> None:
    with suppress(FileNotFoundError):  # Spark cleans up
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
