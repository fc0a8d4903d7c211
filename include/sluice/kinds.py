"""The kinds of sources, sinks, decoders, rules and operators: those built in, and those of other packages.

A package adds one by an entry point in the group ``sluice.sources``, ``sluice.sinks``, ``sluice.decoders``,
``sluice.rules`` or ``sluice.operators``: its name is the key in the pipeline file, its value the
``package.module:KIND``. Entry points are looked up only for a key that is not built in, since the search takes tens of
milliseconds each time Airflow parses.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from sluice.errors import ConfigError, described

__all__ = ["BUILT_IN", "imported", "kind_of", "not_leaving"]

BUILT_IN: Mapping[str, Mapping[str, str]] = {
    "sources": {
        "file": "sluice.sources.files.source:KIND",
        "jdbc": "sluice.sources.jdbc.source:KIND",
        "kafka": "sluice.sources.kafka.source:KIND",
        "queue": "sluice.sources.queue.source:KIND",
        "rate": "sluice.sources.rate.source:KIND",
        "socket": "sluice.sources.socket.source:KIND",
    },
    "sinks": {
        "delta": "sluice.sinks.delta:KIND",
        "files": "sluice.sinks.files:KIND",
        "console": "sluice.sinks.console:KIND",
        "foreach": "sluice.sinks.foreach:KIND",
        "iceberg": "sluice.sinks.iceberg:KIND",
        "kafka": "sluice.sinks.kafka:KIND",
        "postgres": "sluice.sinks.postgres:KIND",
    },
    "decoders": {
        "json": "sluice.decoders.config:JSON",
        "avro": "sluice.decoders.avro:AVRO",
        "protobuf": "sluice.decoders.protobuf:PROTOBUF",
        "csv": "sluice.decoders.config:CSV",
        "xml": "sluice.decoders.xml:XML",
        "text": "sluice.decoders.config:TEXT",
        "bytes": "sluice.decoders.config:BYTES",
        "by_topic": "sluice.decoders.per_record:BY_TOPIC",
        "by_header": "sluice.decoders.per_record:BY_HEADER",
    },
    "rules": {"sql": "sluice.rules.config:SQL", "not_null": "sluice.rules.config:NOT_NULL"},
    "operators": {
        "aggregate": "sluice.pipeline.aggregate:KIND",
        "window": "sluice.pipeline.window:KIND",
        "dedupe": "sluice.pipeline.dedupe:KIND",
        "processor": "sluice.pipeline.processor:KIND",
    },
}
"""The kinds that Sluice brings, by group and key."""


@cache
def kind_of(group: str, key: str) -> Any:
    """Return the kind of a key; None if no package provides it.

    Parameters
    ----------
    group
        ``sources``, ``sinks``, ``decoders``, ``rules`` or ``operators``.

    Raises
    ------
    ConfigError
        If a package's entry point cannot be imported, or is not a kind.
    """
    where = BUILT_IN[group].get(key)
    if where is None:
        where = next((point.value for point in entry_points(group=f"sluice.{group}", name=key)), None)
    if where is None:
        return None
    kind = imported(where)
    if not isinstance(getattr(kind, "config", None), type):
        raise ConfigError(
            f"{where}, the entry point {key!r} of sluice.{group}, is not a kind of {group}",
            state="nothing was read or written",
            next_step="make it name a SourceKind, SinkKind, DecoderKind, RuleKind or OperatorKind; or remove the "
            "package",
        )
    return kind


@contextmanager
def not_leaving() -> Iterator[None]:
    """Let a user's code within not end the process: a run would end as if it had succeeded, or, in a batch, hang.

    Raises
    ------
    RuntimeError
        If it called ``sys.exit``.
    """
    try:
        yield
    except SystemExit as error:
        raise RuntimeError(f"it called sys.exit({error.code!r})") from error


def imported(where: str) -> Any:
    """Import and return the object ``package.module:name``.

    Raises
    ------
    ConfigError
        If it cannot be imported.
    """
    module, _, name = where.partition(":")
    try:
        with not_leaving():
            return getattr(importlib.import_module(module), name)
    except Exception as error:  # it runs another package's code
        raise ConfigError(
            f"{where} cannot be imported: {described(error)}",
            state="nothing was read or written",
            next_step="install its package into this environment, and into that of the Spark driver",
        ) from error
