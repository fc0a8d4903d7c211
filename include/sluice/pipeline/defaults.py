"""``_defaults.yaml``: what all pipeline files of a folder have in common."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.pipeline.yaml_file import YamlError, read

__all__ = ["DEFAULTS", "SHARED", "defaults_of", "under"]

DEFAULTS = "_defaults.yaml"
"""The file's name; it is no pipeline itself."""

SHARED = ("airflow", "lag", "quality", "recovery", "recovery_choices", "spark", "state", "vacuum", "wal")
"""The keys that it may have: how pipelines are run. What a pipeline reads and writes is its own."""


def defaults_of(file: Path) -> dict[str, Any]:
    """Return what the defaults beside a pipeline file say; nothing if there are none.

    Raises
    ------
    YamlError
        If it is not YAML, has a key twice, or one that is not shared.
    """
    try:
        found, _ = read(file.parent / DEFAULTS)
    except FileNotFoundError:
        return {}
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise YamlError(f"expected a mapping with some of the keys {', '.join(SHARED)}")
    strange = sorted(str(key) for key in found if key not in SHARED)
    if strange:
        raise YamlError(f"{strange[0]}: the keys here are: {', '.join(SHARED)}")
    return found


def under(own: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file's mapping with defaults under it: mappings are merged key by key, anything else is replaced.

    A key that the file sets to null has no default.
    """
    merged = dict(own)
    for key, value in defaults.items():
        if key not in own:
            merged[key] = value
        elif isinstance(value, dict) and isinstance(own[key], dict):
            merged[key] = under(own[key], value)
        elif own[key] is None:
            del merged[key]
    return merged
