"""Reads a Structured Streaming checkpoint: which batches were planned, which were committed, up to where.

Progress is the engine's; this module writes nothing, and removes only what is no part of it. The layout (Spark 4.2,
offset log v1): ``offsets/N`` holds a version line, a metadata line and one JSON line per source; ``commits/N`` exists
once batch N is done; ``sources/0/0`` holds the offsets that the first batch started from, behind a zero byte and a
version line.
"""

from __future__ import annotations

import json
from typing import Any

from sluice.errors import CheckpointError
from sluice.ranges import OffsetRange, Positions, ranges_between

__all__ = ["Checkpoint"]


def _positions(line: str) -> Positions:
    return {t: {int(p): int(o) for p, o in parts.items()} for t, parts in json.loads(line).items()}


class Checkpoint:
    """One checkpoint directory, by path or URL; it need not exist yet.

    Parameters
    ----------
    start
        Where its epoch starts when another epoch came before it.
    """

    def __init__(self, path: str, start: Positions | None = None) -> None:
        import fsspec

        self.path = path
        self._start = start
        self._fs: Any
        self._fs, self._root = fsspec.core.url_to_fs(path)

    def _names(self, folder: str) -> list[str]:
        self._fs.invalidate_cache()
        try:
            return [name.rsplit("/", 1)[-1] for name in self._fs.ls(f"{self._root}/{folder}", detail=False)]
        except FileNotFoundError:
            return []

    def _numbers(self, folder: str) -> list[int]:
        return sorted(int(n) for n in self._names(folder) if n.isdigit())

    def _text(self, name: str) -> str:
        with self._fs.open(f"{self._root}/{name}", "rb") as file:
            return bytes(file.read()).decode()

    def planned(self) -> list[int]:
        """Return the ids of batches whose ranges are logged (Spark keeps about the last hundred)."""
        return self._numbers("offsets")

    def committed(self) -> list[int]:
        """Return the ids of batches that are done."""
        return self._numbers("commits")

    def open_batch(self) -> int | None:
        """Return the batch that was planned and not committed: the next run starts with it."""
        planned, committed = self.planned(), self.committed()
        return planned[-1] if planned and (not committed or committed[-1] < planned[-1]) else None

    def clear(self) -> None:
        """Remove unfinished files of a driver that died while Spark wrote down its first plan.

        Spark's own leftovers would keep it from ever beginning: it wants ``offsets`` empty before the first batch.
        Does nothing once a batch is planned.
        """
        if not self.planned():
            for name in self._names("offsets"):
                if name.startswith(".") and name.removesuffix(".crc").endswith(".tmp"):
                    self._fs.rm_file(f"{self._root}/offsets/{name}")

    def initial(self) -> Positions | None:
        """Return where the first batch started, or is to start; None when that is for the broker to say."""
        try:
            text = self._text("sources/0/0")
        except FileNotFoundError:
            return self._start
        return _positions(text.lstrip("\0").splitlines()[-1])

    def end_of(self, batch: int) -> Positions:
        """Return the position that batch ``batch`` leads to.

        Raises
        ------
        CheckpointError
            When the file is damaged or not of a single Kafka source.
        """
        try:
            lines = self._text(f"offsets/{batch}").splitlines()
            return _positions(lines[2])
        except (IndexError, ValueError, AttributeError, OSError) as error:
            raise CheckpointError(
                f"{self.path}/offsets/{batch} cannot be read: {error}",
                state="the sink holds what was committed before; nothing was written now",
                next_step="restore the file from a copy of the checkpoint, or start a new epoch",
            ) from error

    def start_of(self, batch: int) -> Positions:
        """Return the position that batch ``batch`` starts from."""
        return self.end_of(batch - 1) if batch > 0 else (self.initial() or {})

    def ranges_of(self, batch: int) -> list[OffsetRange]:
        """Return the ranges that batch ``batch`` was planned with."""
        return ranges_between(self.start_of(batch), self.end_of(batch))

    def positions(self) -> Positions | None:
        """Return the committed positions: next offset to read, per partition; None before the first batch."""
        committed = self.committed()
        return self.end_of(committed[-1]) if committed else self.initial()
