"""Great Expectations' views of Data Docs, with compiled templates that are kept; named in a site's configuration.

A view compiles its templates again, and each kind of page has a view of its own: most of the time that a run's pages
take goes into that.
"""

from __future__ import annotations

import contextlib
from copy import deepcopy
from typing import Any

from great_expectations.render.view.view import DefaultJinjaIndexPageView, DefaultJinjaPageView
from jinja2 import FileSystemBytecodeCache
from jinja2.bccache import Bucket

__all__ = ["IndexView", "PageView", "with_kept_templates"]


class _Templates(FileSystemBytecodeCache):
    """Compiled templates in a folder of this user, where Jinja keeps them by default."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep a template; a page does not depend on it."""
        with contextlib.suppress(OSError):
            super().dump_bytecode(bucket)


def _kept() -> _Templates | None:
    try:
        return _Templates()
    except (OSError, RuntimeError):  # there is no folder that only this user can write to
        return None


class PageView(DefaultJinjaPageView):
    """The view of a suite or of results."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.env.bytecode_cache = _kept()


class IndexView(DefaultJinjaIndexPageView):
    """The view of the index."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.env.bytecode_cache = _kept()


def with_kept_templates(sites: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of sites with these views, where it names no other."""
    found = deepcopy(sites)
    page, index = ({"module_name": __name__, "class_name": view.__name__} for view in (PageView, IndexView))
    for site in found.values():
        site.setdefault("site_index_builder", {"class_name": "DefaultSiteIndexBuilder"}).setdefault("view", index)
        sections = site.setdefault("site_section_builders", {})
        for name in ("expectations", "validations"):
            if isinstance(section := sections.setdefault(name, {}), dict):
                section.setdefault("view", page)
    return found
