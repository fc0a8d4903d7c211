"""Paths for Spark's file readers, which take them as glob patterns."""

from __future__ import annotations

import re

__all__ = ["literal"]


def literal(path: str) -> str:
    """Return the pattern that matches this path alone, by the escapes of Hadoop's ``FileSystem.globStatus``.

    For what is read; a path that Spark writes to, and the option ``basePath``, are no patterns.
    """
    return re.sub(r"([\[\]{}*?\\])", r"\\\1", path)
