"""Paths as Spark reads and writes them: its readers take them as glob patterns, partitions are names of folders."""

from __future__ import annotations

import re

from sluice.storage import is_url

__all__ = ["ESCAPED", "LONGEST_NAME", "NO_VALUE", "literal", "located"]

ESCAPED = "".join(map(chr, range(1, 32))) + "\"#%'*/:=?\\\x7f{[]^"
"""The characters that Spark writes as ``%XX`` in the name of a partition's folder."""
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""The name of a partition's folder that stands for null, and to Spark for an empty text."""
LONGEST_NAME = 255
"""Maximum length of a folder's name on usual file systems, in bytes."""


def located(path: str) -> str:
    """Return a path with its scheme: one without is in Hadoop's default file system, which may be HDFS."""
    return path if is_url(path) else f"file://{path}"


def literal(path: str) -> str:
    """Return the pattern that matches this path alone, by the escapes of Hadoop's ``FileSystem.globStatus``.

    For what is read; a path that Spark writes to, and the option ``basePath``, are no patterns.
    """
    return re.sub(r"([\[\]{}*?\\])", r"\\\1", located(path))
