"""Paths of files in a Delta table's log: which of them delta-rs can remove, and whether it did.

delta-rs percent-encodes the path of each action that it writes. A remove action takes away the file whose add action
has the same text; where another program encoded less of it, as Spark leaves letters beyond ASCII as they are, it takes
away none, and says nothing.
"""

from __future__ import annotations

import string
from collections.abc import Collection, Iterable
from urllib.parse import quote, unquote

from sluice.errors import ConfigError, SinkError

__all__ = ["check_gone", "check_removable", "logged"]

_AS_THEY_ARE = "".join(set(string.printable) - set(string.whitespace) - set('"#%*<>?[\\]^`{|}'))


def logged(path: str) -> str:
    """Return a path as delta-rs writes it to the log: object_store's encoding."""
    return quote(path, safe=_AS_THEY_ARE)


def check_removable(table: str, paths: Iterable[str]) -> None:
    """Refuse to replace files whose path delta-rs would log in another form.

    Parameters
    ----------
    table
        Path or URL of the table.
    paths
        As the log has them.

    Raises
    ------
    ConfigError
        With one of the files.
    """
    other = next((path for path in map(str, paths) if logged(unquote(path)) != path), None)
    if other is not None:
        raise ConfigError(
            f"the table {table} has files that another program logged in a form which delta-rs cannot remove, such as "
            f"{other}: rows that are to be replaced would stay beside the new ones",
            state="nothing was changed",
            next_step="partition by a column with values of ASCII letters, or by none, into a table of another path: "
            "set sink.delta.path, then sluice reset PIPELINE --from earliest, which writes all rows again. Runs that "
            "only append go on without that",
        )


def check_gone(table: str, there: Collection[str], removed: Iterable[str], version: int) -> None:
    """Compare a table's files after a commit with those that it removed.

    Parameters
    ----------
    there
        The paths of the files after the commit.
    version
        The table's version before it.

    Raises
    ------
    SinkError
        If one is there still.
    """
    left = sorted(set(removed) & set(there))
    if left:
        raise SinkError(
            f"{len(left)} files that were replaced in {table} are there still, such as {left[0]}",
            state="the table holds their rows beside those that were to take their place",
            next_step=f"go back: RESTORE the table to version {version}, and report this",
        )
