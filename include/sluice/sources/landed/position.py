"""How far a table was read, and up to which key nothing can come any more. Pure.

A key that grows is not the order of commits: a transaction may take key 2, and commit after key 3 was read. Sluice
therefore reads all rows that it can see, whatever their keys, and reads again from the *floor* on: a key up to which no
row can come any more. Rows that were landed before are known by the columns that identify them.

The floor follows from marks. A mark is a key that was visible in some snapshot, and the transactions that were running
after that snapshot. Take a transaction that adds a key that is not greater than the mark's, and that the snapshot does
not show. A transaction takes its keys while it runs, and keys are given in ascending order; so it began before the
mark's key was visible. So it is one of the mark's running transactions, or it ended before these were listed. Once all
of them have ended, a *later* snapshot shows each row up to the mark's key. When the rows of such a snapshot are landed,
the mark's key is the floor.

The list is that of PostgreSQL's virtual transaction ids, which a transaction has from its first statement on. Its
``pg_snapshot`` would not do: a transaction gets an id there with its first write, after it took its key.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Mark", "Position", "settled", "thinned"]

_MARKS = 24


@dataclass(frozen=True)
class Mark:
    """A key that was visible, and who might still add one that is not greater.

    Attributes
    ----------
    key
        The key, as a whole number.
    at
        When it was seen, in seconds since 1970, by the server's clock.
    running
        The virtual ids of the transactions that were running after that.
    """

    key: int
    at: float
    running: tuple[str, ...]


@dataclass(frozen=True)
class Position:
    """What the commit that lands rows says of how far the table was read.

    Attributes
    ----------
    end
        The offset of the next row that will be landed.
    floor
        The key up to which nothing can come any more; None if there is none yet.
    marks
        Keys that may become the floor.
    what
        What the rows were read from: the server, the table, the key and the columns that identify a row.
    written
        The server's timeline, and up to where its log was on disk, before the rows were read; None if it is not known.
    """

    end: int = 0
    floor: int | None = None
    marks: tuple[Mark, ...] = ()
    what: dict[str, Any] | None = None
    written: tuple[int, int] | None = None

    def to_json(self) -> str:
        """Return a text that :meth:`from_json` reads."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Position:
        """Read what :meth:`to_json` wrote."""
        data = json.loads(text)
        marks = tuple(Mark(m["key"], m["at"], tuple(m["running"])) for m in data.pop("marks"))
        written = data.pop("written", None)
        return cls(**data, marks=marks, written=None if written is None else (written[0], written[1]))


def settled(
    floor: int | None, marks: Sequence[Mark], running: Collection[str] | None, at: float, lag: float
) -> tuple[int | None, tuple[Mark, ...]]:
    """Return the floor of a snapshot that begins after ``running`` was listed, and the marks that are still of use.

    Parameters
    ----------
    running
        The virtual ids of the transactions that run now; None if one is prepared (two-phase commit), since it has lost
        its virtual id, and cannot be told from others.
    at
        The server's clock, in seconds since 1970.
    lag
        Seconds that a mark has to be old.
    """
    ended = [m.key for m in marks if running is not None and not set(running) & set(m.running) and at - m.at >= lag]
    found = max([*ended, *([] if floor is None else [floor])], default=None)
    return found, tuple(m for m in marks if found is None or m.key > found)


def thinned(marks: Sequence[Mark]) -> tuple[Mark, ...]:
    """Return at most so many marks as can be kept; each one that is left out may let the floor come later."""
    return tuple(marks) if len(marks) <= _MARKS else (*marks[: _MARKS // 2], *marks[-_MARKS // 2 :])
