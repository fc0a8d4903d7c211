"""Which segments a write-ahead log holds: from Delta's log, and from the seals beside the segments."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import unquote

from sluice.delta.names import log_app_id
from sluice.delta.notes import last_batch, note_of
from sluice.delta.table import opened
from sluice.errors import SinkError, described
from sluice.ranges import OffsetRange
from sluice.storage import file_system
from sluice.wal.segment import Segment, batch_of, is_segment

__all__ = ["SEAL", "Catalog", "seal_text"]

"""The key of Sluice's commit metadata."""

SEAL = "_seal.json"
"""The file with the handles of a batch's segments, beside them; written before the commit that seals the batch."""


def seal_text(segments: Iterable[Segment]) -> str:
    """Return the content of :data:`SEAL`."""
    return json.dumps({"segments": [s.as_dict() for s in segments]}, indent=1)


_CHANGES = {"DELETE", "UPDATE", "MERGE"}
"""Delta operations that change rows; OPTIMIZE only moves them."""


class Catalog:
    """The write-ahead log of one pipeline, by path or URL; it need not exist yet.

    An open log is a snapshot; :meth:`refresh` shows what was sealed or cleaned since.

    The log is a Delta table, and other programs may change it. Segments that OPTIMIZE replaced are read from their own
    files until the next cleaning restores them in the table. Segments that DELETE or RESTORE removed completely count
    as cleaned. If rows were changed, or VACUUM removed the files of replaced segments, every operation that needs old
    segments is refused; landing and applying do not need them.

    Parameters
    ----------
    path
        The Delta table's root, a path or URL.
    pipeline
        The name of the log's pipeline.
    """

    def __init__(self, path: str, pipeline: str) -> None:
        self.path = path
        self.pipeline = pipeline
        self.fs: Any
        self.fs, self.root = file_system(path)
        self._table: Any = None
        self._seals: dict[str, dict[str, Segment]] = {}
        self._told: dict[str, Segment] | None = None
        self._closed = False

    def app_id(self, epoch: int) -> str:
        """Return the application id of an epoch's seals in Delta's log."""
        return log_app_id(self.pipeline, epoch)

    def refresh(self) -> None:
        """Load the newest version of the log.

        Raises
        ------
        SinkError
            If it cannot be read.
        """
        if self._closed:
            raise ValueError(f"the log {self.path} was closed")
        self._table = opened(
            self.path,
            lambda error: SinkError(
                f"the write-ahead log {self.path} cannot be read: {described(error)}",
                state="nothing was read or written now",
                next_step="fix the storage, then run again",
            ),
        )
        self._seals.clear()
        self._told = None

    def close(self) -> None:
        """Release the memory. Later calls raise ``ValueError``."""
        self._table = None
        self._seals.clear()
        self._closed = True

    def version(self, epoch: int) -> int:
        """Return the newest sealed batch of an epoch; -1 if there is none."""
        return last_batch(self.there(), self.app_id(epoch))

    # --- handles -------------------------------------------------------------------------------------------------

    def segments(
        self, ranges: Iterable[OffsetRange] | None = None, *, epoch: int | None = None, batch: int | None = None
    ) -> list[Segment]:
        """Return the handles of sealed segments, in the order of topic, partition and offset.

        Parameters
        ----------
        ranges
            Only segments that account for some of these offsets. They are found by the statistics in Delta's log: no
            segment is opened, and only their seals are read.
        epoch, batch
            Only segments of this epoch or batch.

        Raises
        ------
        SinkError
            If the log, or a seal that is needed, cannot be read.
        """
        wanted = None if ranges is None else list(ranges)
        known = [
            (path, span)
            for path, span in self.known()
            if epoch in (None, batch_of(path)[0]) and batch in (None, batch_of(path)[1])
        ]
        found = [self.handle(path) for path in (_near(known, wanted) if wanted is not None else [p for p, _ in known])]
        if wanted is not None:
            found = [s for s in found if any(s.range.cut(item) for item in wanted)]
        return sorted(found, key=lambda s: s.range)

    def there(self) -> Any:
        if self._table is None:
            self.refresh()
        return self._table

    def known(self) -> list[tuple[str, OffsetRange]]:
        import pyarrow as pa

        table = self.there()
        if table is None:
            return []
        actions = pa.table(table.get_add_actions(flatten=True))
        if actions.num_rows == 0:
            return []
        columns = [actions.column(c).to_pylist() for c in ("path", "min.topic", "min.partition", "min.offset")]
        columns.append(actions.column("max.offset").to_pylist())
        known = [(p, OffsetRange(t, n, lo, hi + 1)) for p, t, n, lo, hi in zip(*columns, strict=True) if is_segment(p)]
        return known + [(s.path, s.range) for s in self.replaced(actions)]

    def replaced(self, actions: Any) -> list[Segment]:
        """Return the segments that OPTIMIZE replaced by other files; their own files exist until a VACUUM.

        Raises
        ------
        SinkError
            If they do not have as many records as the other files.
        """
        paths, counts = actions.column("path").to_pylist(), actions.column("num_records").to_pylist()
        others = sum(count for path, count in zip(paths, counts, strict=True) if not is_segment(path))
        if all(is_segment(path) for path in paths):
            return []
        self.fs.invalidate_cache()
        deleted: set[str] = set()
        for commit in self._table.history():
            if commit.get("operation") in _CHANGES:
                removed = self._only_removed(int(commit["version"]))
                if removed is None:
                    raise self._rewritten(f"rows of it were changed ({commit['operation']})")
                deleted |= removed
        missing = [s for path, s in self._sealed().items() if path not in paths and path not in deleted]
        found = [s for s in missing if self.fs.exists(f"{self.root}/{s.path}")]
        records = sum(s.records for s in found)
        if records != others:
            raise self._rewritten(
                f"OPTIMIZE replaced segments of {others} records, and segments of {records} records are still there, "
                "as after a VACUUM"
            )
        return found

    def _only_removed(self, version: int) -> set[str] | None:
        """Return the files that a commit removed; None if it also added some, or can no longer be read."""
        try:
            with self.fs.open(f"{self.root}/_delta_log/{version:020}.json", "rb") as file:
                actions = [json.loads(line) for line in file.read().splitlines()]
        except (OSError, ValueError):
            return None
        if any("add" in action or "cdc" in action for action in actions):
            return None
        return {unquote(action["remove"]["path"]) for action in actions if "remove" in action}

    def _rewritten(self, what: str) -> SinkError:
        return SinkError(
            f"the write-ahead log {self.path} was changed by another program: {what}. Its old segments are unusable",
            state="nothing was read or written now. Landing and applying go on without the old segments: what is "
            "sealed and not applied yet is applied from its own files",
            next_step="restore the segments' files from a copy; or delete the log's old records, with Spark: "
            f"DELETE FROM delta.`{self.path}` WHERE true; then: sluice clean {self.pipeline}",
        )

    def _sealed(self) -> dict[str, Segment]:
        """Return, by path, every segment that was sealed and not cleaned, according to the table's history."""
        if self._told is None:
            notes = [n for commit in self.there().history() if (n := note_of(commit)) is not None]
            gone = {path for note in notes for path in note.get("forgotten", ())}
            found = [Segment.from_dict(s) for note in notes for s in note.get("segments", ())]
            self._told = {s.path: s for s in found if s.path not in gone}
        return self._told

    def handle(self, path: str) -> Segment:
        folder, _, _ = path.rpartition("/")
        if folder not in self._seals:
            try:
                with self.fs.open(f"{self.root}/{folder}/{SEAL}", "rb") as file:
                    handles = [Segment.from_dict(s) for s in json.loads(file.read())["segments"]]
                self._seals[folder] = {s.path: s for s in handles}
            except FileNotFoundError as error:  # a full VACUUM removes it as an unknown file
                self._seals[folder] = {p: s for p, s in self._sealed().items() if p.rpartition("/")[0] == folder}
                if not self._seals[folder]:
                    raise self._broken_seal(folder, error) from error
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise self._broken_seal(folder, error) from error
        try:
            return self._seals[folder][path]
        except KeyError as error:
            raise self._broken_seal(folder, error) from error

    def _broken_seal(self, folder: str, error: Exception) -> SinkError:
        return SinkError(
            f"the seal {self.path}/{folder}/{SEAL} is damaged: {described(error)}",
            state="nothing was read or written now; the segments beside it may be intact",
            next_step="restore the file from a copy; or remove it: the table's history has the same content, as far as "
            f"it reaches back. So has the ledger: sluice ledger {self.pipeline} --json, event SegmentSealed",
        )


def _near(known: Sequence[tuple[str, OffsetRange]], wanted: Sequence[OffsetRange]) -> list[str]:
    """Return the files that may account for these ranges.

    These are the files with records of the ranges. If a range begins or ends in an offset gap, the neighbouring file is
    included, because the gap may belong to it.
    """
    chosen: set[str] = set()
    for item in wanted:
        here = sorted(((s, p) for p, s in known if (s.topic, s.partition) == (item.topic, item.partition)))
        inside = [i for i, (span, _) in enumerate(here) if span.cut(item)]
        begins = inside and here[inside[0]][0].start <= item.start
        ends = inside and here[inside[-1]][0].end >= item.end
        before = [] if begins else [i for i, (span, _) in enumerate(here) if span.end <= item.start][-1:]
        behind = [] if ends else [i for i, (span, _) in enumerate(here) if span.start >= item.end][:1]
        chosen.update(here[i][1] for i in (*before, *inside, *behind))
    return sorted(chosen)
