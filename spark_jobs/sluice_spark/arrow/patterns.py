"""Regular expressions that mean the same to Java, which Spark uses, and to RE2, which Arrow uses."""

from __future__ import annotations

import re
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sluice_spark.arrow.functions import NotInSubsetError

__all__ = ["LINE_ENDS", "Pattern", "translated"]

LINE_ENDS = "[\n\r\u0085\u2028\u2029]"
"""What Java takes for the end of a line. RE2 knows the first only."""

_SPACE = r"\t\n\x0B\f\r "
"""What Java's ``\\s`` stands for; RE2's leaves one out."""

_ESCAPE = r"\\[!-/:-@\[-\^`{-~]"
_ITEM = rf"(?:\\[dws]|{_ESCAPE}|[a-z]-[a-z]|[A-Z]-[A-Z]|[0-9]-[0-9]|[A-Za-z0-9 !\"#$%'()*+,./:;<=>?@_`{{|}}~])"
_TOKEN = re.compile(
    rf"(?P<set>\[\^?-?{_ITEM}+-?\])|(?P<class>\\[dDwWsS])|(?P<char>{_ESCAPE}|[A-Za-z0-9 !\"#%&',/:;<=>@_`~-])"
    r"|(?P<any>\.)|(?P<edge>[\^$])|(?P<open>\((?:\?:|(?!\?)))|(?P<close>\))|(?P<or>\|)"
    r"|(?P<times>(?:[*+?]|\{[0-9]{1,3}(?:,[0-9]{0,3})?\})\??)"
)
_ATOMS = ("set", "class", "char", "any")


class Pattern(NamedTuple):
    """A pattern for RE2.

    Attributes
    ----------
    lines
        Whether it may mean something else to Java in a text with :data:`LINE_ENDS`.
    """

    text: str
    lines: bool


def translated(pattern: str) -> Pattern:
    """Return the pattern for RE2 that is found in exactly the texts in which Java finds the given one.

    Only what is known to mean the same is translated: ASCII characters, sets of them, ``\\d``, ``\\w``, ``\\s``,
    groups, alternatives, edges of the text, and repetitions; of a group only if nothing in it is repeated.

    Raises
    ------
    NotInSubsetError
        If it has anything else.
    """
    made: list[str] = []
    repeated = [False]  # of each open group, whether something in it is repeated or an edge
    before, inside, lines, at = "", False, False, 0
    while at < len(pattern):
        found = _TOKEN.match(pattern, at)
        if found is None:
            raise NotInSubsetError(f"the pattern {pattern!r} may mean something else to Arrow from {pattern[at:]!r}")
        kind, text, at = found.lastgroup or "", found.group(), found.end()
        if kind == "open":
            repeated.append(False)
        elif kind == "close":
            if len(repeated) == 1:
                raise NotInSubsetError(f"the pattern {pattern!r} has a parenthesis too many")
            inside = repeated.pop()
            repeated[-1] |= inside
        elif kind == "times":
            if before not in (*_ATOMS, "close") or (before == "close" and inside and text[0] != "?"):
                raise NotInSubsetError(f"the pattern {pattern!r} repeats what is repeated")
            repeated[-1] = True
        elif kind == "edge":
            repeated[-1] = True
        lines |= kind == "any" or text == "$"
        made.append(_spaces(kind, text))
        before = kind
    if len(repeated) > 1:
        raise NotInSubsetError(f"the pattern {pattern!r} lacks a parenthesis")
    whole = "".join(made)
    try:
        pc.match_substring_regex(pa.array([""]), whole)
    except pa.ArrowInvalid as error:
        raise NotInSubsetError(f"the pattern {pattern!r} cannot be read by Arrow") from error
    return Pattern(whole, lines)


def _spaces(kind: str, text: str) -> str:
    if kind == "class" and text[1] in "sS":
        return f"[{'^' if text[1] == 'S' else ''}{_SPACE}]"
    if kind == "set":
        return re.sub(r"\\(.)", lambda found: _SPACE if found[1] == "s" else found[0], text)
    return text
