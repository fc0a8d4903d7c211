"""The kinds of sources, sinks and decoders: those built in, and those of other packages.

A package adds one by an entry point in the group ``sluice.sources``, ``sluice.sinks`` or ``sluice.decoders``: its name
is the key in the pipeline file, its value the ``package.module:KIND``. Entry points are looked up only for a key that
is not built in, since the search costs tens of milliseconds wherever Airflow parses.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from sluice.errors import ConfigError

__all__ = ["BUILT_IN", "imported", "kind_of"]

BUILT_IN: Mapping[str, Mapping[str, str]] = {
    "sources": {"kafka": "sluice.sources.kafka.source:KIND"},
    "sinks": {"delta": "sluice.sinks.delta:KIND"},
    "decoders": {
        "json": "sluice.decoders.config:JSON",
        "csv": "sluice.decoders.config:CSV",
        "text": "sluice.decoders.config:TEXT",
        "bytes": "sluice.decoders.config:BYTES",
    },
}
"""Where the kinds of this project are, by group and key."""


@cache
def kind_of(group: str, key: str) -> Any:
    """Return a kind by its key; None when nobody has one.

    Parameters
    ----------
    group
        ``sources``, ``sinks`` or ``decoders``.

    Raises
    ------
    ConfigError
        When a package names one that cannot be imported.
    """
    where = BUILT_IN[group].get(key)
    if where is None:
        where = next((point.value for point in entry_points(group=f"sluice.{group}", name=key)), None)
    if where is None:
        return None
    kind = imported(where)
    if not isinstance(getattr(kind, "config", None), type):
        raise ConfigError(
            f"{where}, the entry point {key!r} of sluice.{group}, is no kind of {group}",
            state="nothing was read or written",
            next_step="let it name a SourceKind, SinkKind or DecoderKind, or remove the package",
        )
    return kind


def imported(where: str) -> Any:
    """Return what ``package.module:name`` names.

    Raises
    ------
    ConfigError
        When it cannot be imported.
    """
    module, _, name = where.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # it runs another package's code
        raise ConfigError(
            f"{where} cannot be imported: {type(error).__name__}: {error}",
            state="nothing was read or written",
            next_step="install the package that holds it into this environment, and into that of the Spark driver",
        ) from error
