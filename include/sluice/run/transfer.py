"""Moves state that was made beside an epoch's checkpoint into it, so that the epoch's stream goes on with it.

Spark keeps state by the number of a batch, and knows nothing of the source that its rows came from. So state that one
bounded query made of stored records serves another query with the same operator, once the checkpoint has the plan and
the commit of a batch that read nothing.
"""

from __future__ import annotations

import json
from contextlib import suppress

from sluice.errors import LeaseHeldError
from sluice.ranges import Positions
from sluice.run.checkpoint import Checkpoint

__all__ = ["Transfer"]

_BESIDE = "-rebuilding-"


class Transfer(Checkpoint):
    """The checkpoint of an epoch whose state is made again, and a folder beside it in which that is done.

    Killed between any two steps, it is not :meth:`done`: everything is done again, and the same comes of it. The caller
    must hold the pipeline's lease, and verify it before each call that changes anything.

    Parameters
    ----------
    token
        The lease's token: each driver has a folder of its own, so that one that was frozen, and wakes, harms no other.
    """

    def __init__(self, path: str, token: int = 0) -> None:
        super().__init__(path)
        self._token = token

    @property
    def beside(self) -> str:
        """The folder beside it, as ``path``."""
        return f"{self.path}{_BESIDE}{self._token}"

    @property
    def records(self) -> str:
        """Where the records are stored of which the state is made."""
        return f"{self.beside}/records"

    def done(self) -> bool:
        """Return whether the epoch has the state.

        A driver that was frozen may commit a batch whose state another one has removed since, to make it again.
        """
        committed = self.committed()
        return bool(committed) and (committed[-1] > 0 or "state" in self._names(""))

    def clear(self) -> None:
        """Remove the folders beside it, of this driver and earlier ones, and what these had brought here of the state.

        The epoch's own stream has not begun: once it has the state, nothing here is removed.
        """
        self._fs.invalidate_cache()
        if not self.done():
            for name in ("state", "offsets/1"):
                with suppress(FileNotFoundError):
                    self._fs.rm(f"{self._root}/{name}", recursive=True)
        parent, _, name = self._root.rpartition("/")
        with suppress(FileNotFoundError):
            for path in self._fs.ls(parent, detail=False):
                own, _, token = path.rsplit("/", 1)[-1].rpartition(_BESIDE)
                if own == name and int(token) <= self._token:
                    self._fs.rm(path, recursive=True)

    def plan(self, positions: Positions) -> None:
        """Write the plan of a first batch that reads nothing, with the settings of the query beside it.

        Call it when that query has planned its batch, and before the sink has anything of this epoch.
        """
        lines = Checkpoint(self.beside)._content("offsets/0").splitlines()
        # as sources in Python write it: Spark compares texts
        parts = sorted(positions.items())
        where = json.dumps({stream: {str(p): o for p, o in sorted(each.items())} for stream, each in parts})
        self._put("offsets/0", b"\n".join([*lines[:2], where.encode()]))

    def take(self, watermark: int) -> None:
        """Take the state of the query beside it, which has ended, and go on from a watermark.

        Parameters
        ----------
        watermark
            The next batch emits what it closes, in milliseconds since 1970. It goes no further back than
            that of the query.

        Raises
        ------
        LeaseHeldError
            If another driver has given the epoch state meanwhile; nothing was changed.
        """
        beside = Checkpoint(self.beside)
        commit, metadata = beside._content("commits/0"), beside._content("metadata")
        until = max(watermark, beside.watermark(0))
        self._fs.invalidate_cache()
        if self._fs.exists(f"{self._root}/state"):
            raise LeaseHeldError(
                f"another driver has made the state in {self.path} meanwhile",
                state="nothing of it was changed",
                next_step="run again",
            )
        self._fs.mv(f"{self._root}{_BESIDE}{self._token}/state", f"{self._root}/state", recursive=True)
        self._put("metadata", metadata)
        self._fs.invalidate_cache()
        if until:
            self.plan_closing(1, until)
        self.sync(0)
        self._fs.rm(f"{self._root}{_BESIDE}{self._token}", recursive=True)
        self._put("commits/0", commit)
