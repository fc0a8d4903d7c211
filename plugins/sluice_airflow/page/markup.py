"""Rebuilds a page from the tags that can do nothing but show text.

Great Expectations writes values of records into its pages as they are, so any markup may be in them. What is not on the
lists here is left out. Each character is looked at a fixed number of times, whatever the page holds: ``html.parser``
takes quadratic time for tags that are not closed.
"""

from __future__ import annotations

import posixpath
import re
from urllib.parse import unquote

__all__ = ["harmless"]

_SHOWN = (
    "a abbr b blockquote br caption code col colgroup dd del details div dl dt em footer h1 h2 h3 h4 h5 h6 header hr i "
    "ins kbd label li main nav ol p pre s section small span strong sub summary sup table tbody td tfoot th thead tr u "
    "ul"
)
_TAGS = frozenset(_SHOWN.split())
_VOID = frozenset(("br", "col", "hr"))
_ATTRIBUTES = frozenset(("class", "id", "colspan", "rowspan", "scope", "title", "data-toggle"))

_WITH_CONTENT = ("script", "style", "title", "textarea", "iframe", "noembed", "noframes", "xmp")
_BOUNDS = {
    **{tag: re.compile(rf"<(/?){tag}(?![^\s/>])[^>]*>?", re.I) for tag in _WITH_CONTENT},
    "!--": re.compile(r"(?:<!--|(--!?>))"),
}
"""Where the content of what is left out as a whole ends (the group matches), or where the next one begins."""

_OPEN = re.compile(r"<(?:(!--)|[!?][^>]*>?|(/?)([a-zA-Z][^\s/>]*))")
_SPACE = re.compile(r"[\s/]*")
_NAME = re.compile(r"=?[^\s/>=]*")
_EQUALS = re.compile(r"\s*=\s*")
_BARE = re.compile(r"[^\s>]*")
_ADDRESS = re.compile(r"[\w./%~+,@=?#-]+")


def harmless(html: str, page: str) -> str:
    """Return what a page shows, without what it could do: the content of its body, for a body.

    A link is kept if it leads to another page of the same site.

    Parameters
    ----------
    page
        The path of the page within its site.
    """
    made: list[str] = []
    at = 0
    while (start := html.find("<", at)) >= 0:
        made.append(html[at:start])
        opened = _OPEN.match(html, start)
        if opened is None:
            made.append("&lt;")
            at = start + 1
            continue
        at = opened.end()
        comment, closes, name = opened.groups()
        tag = (comment or name or "").lower()
        if name is not None:
            given, at = _attributes(html, at)
            if at < 0:  # it ends within a tag: that is text
                return "".join(made) + html[start:].replace("<", "&lt;")
            if tag in _TAGS:
                made.append(f"</{tag}>" * (tag not in _VOID) if closes else f"<{tag}{_kept(given, tag, page)}>")
        if not closes and tag in _BOUNDS:
            # one that is not closed would hide what follows it, such as a failed expectation
            bound = _BOUNDS[tag].search(html, at)
            at = bound.end() if bound is not None and bound[1] else at
    return "".join(made) + html[at:]


def _attributes(html: str, at: int) -> tuple[dict[str, str], int]:
    """Return the attributes of a tag, and where it ends; -1 if it does not."""
    found: dict[str, str] = {}
    while True:
        at = _SPACE.match(html, at).end()  # type: ignore[union-attr]
        if at == len(html):
            return found, -1
        if html[at] == ">":
            return found, at + 1
        name = _NAME.match(html, at)
        at = name.end()  # type: ignore[union-attr]
        value = ""
        equals = _EQUALS.match(html, at)
        if equals is not None:
            at = equals.end()
            quote = html[at : at + 1]
            if quote in ('"', "'"):
                end = html.find(quote, at + 1)
                if end < 0:
                    return found, -1
                value, at = html[at + 1 : end], end + 1
            else:
                bare = _BARE.match(html, at)
                value, at = bare[0], bare.end()  # type: ignore[index,union-attr]
        found.setdefault(name[0].lower(), value)  # type: ignore[index]


def _kept(given: dict[str, str], tag: str, page: str) -> str:
    kept = {name: value for name, value in given.items() if name in _ATTRIBUTES}
    if tag == "a" and _leads_within(given.get("href", ""), page):
        kept["href"] = given["href"]
    return "".join(f' {name}="{value.replace(chr(34), "&quot;")}"' for name, value in kept.items())


def _leads_within(address: str, page: str) -> bool:
    # neither a colon nor an entity: no scheme, however it is written
    if not _ADDRESS.fullmatch(address):
        return False
    path = unquote(re.split(r"[?#]", address, maxsplit=1)[0])
    if not path:
        return True
    reached = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
    return "\\" not in path and not reached.startswith(("/", ".."))
