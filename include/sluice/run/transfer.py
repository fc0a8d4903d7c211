"""Moves state that was made beside an epoch's checkpoint into it, so that the epoch's stream goes on with it.

Spark keeps state by the number of a batch, and knows nothing of the source that its rows came from. So state that one
bounded query made of stored records serves another query with the same operator, once the checkpoint has the plan and
the commit of a batch that read nothing.
"""

from __future__ import annotations

import json
from contextlib import suppress

from sluice.ranges import Positions
from sluice.run.checkpoint import Checkpoint
from sluice.sources.kafka.clusters import bare_positions

__all__ = ["Transfer"]

_DONE = "sluice-rebuilt.json"


class Transfer(Checkpoint):
    """The checkpoint of an epoch whose state is made anew, and a folder beside it in which that is done.

    Killed between any two steps, it is not :meth:`done`: everything is done again, and the same comes of it. The caller
    must hold the pipeline's lease.
    """

    @property
    def beside(self) -> str:
        """The folder beside it, as ``path``."""
        return f"{self.path}-rebuilt"

    @property
    def records(self) -> str:
        """Where the records are stored of which the state is made."""
        return f"{self.beside}/records"

    def done(self) -> bool:
        """Return whether the epoch has the state, or there was nothing of which to make any."""
        return bool(self.committed()) or _DONE in self._names("")

    def clear(self) -> None:
        """Remove the folder beside it."""
        self._fs.invalidate_cache()
        with suppress(FileNotFoundError):
            self._fs.rm(f"{self._root}-rebuilt", recursive=True)

    def plan(self, positions: Positions) -> None:
        """Write the plan of a first batch that reads nothing, with the settings of the query beside it.

        Call it when that query has planned its batch, and before the sink has anything of this epoch.
        """
        lines = Checkpoint(self.beside)._content("offsets/0").splitlines()
        where = {t: {str(p): o for p, o in parts.items()} for t, parts in bare_positions(positions).items()}
        self._put("offsets/0", b"\n".join([*lines[:2], json.dumps(where, separators=(",", ":")).encode()]))

    def take(self, watermark: int) -> None:
        """Take the state of the query beside it, which has ended, and go on from a watermark.

        Parameters
        ----------
        watermark
            What is closed by it is let out by the next batch, in milliseconds since 1970. It goes no further back than
            that of the query.
        """
        beside = Checkpoint(self.beside)
        self._fs.invalidate_cache()
        for name in ("state", "offsets/1"):
            with suppress(FileNotFoundError):  # of an attempt that died here
                self._fs.rm(f"{self._root}/{name}", recursive=True)
        self._fs.mv(f"{self._root}-rebuilt/state", f"{self._root}/state", recursive=True)
        self._put("metadata", beside._content("metadata"))
        commit = beside._content("commits/0")
        last = beside.watermark(0)
        self._fs.invalidate_cache()
        self.plan_closing(1, max(watermark, last))
        self.sync(0)
        self._put("commits/0", commit)
        self.clear()

    def pass_over(self) -> None:
        """Note that there is nothing of which to make state."""
        self._put(_DONE, b"{}")
        self.clear()
