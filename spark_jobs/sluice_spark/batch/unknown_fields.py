"""Counts, in a sample of a run's records, the fields of JSON objects that the schema does not have."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from sluice.decoders.config import JsonDecode
from sluice.errors import quoted
from sluice.facts.rescued import Rescued
from sluice.pipeline import Pipeline
from sluice.ranges import OffsetRange
from sluice_spark.sources.inputs import Input, inputs_of

__all__ = ["UnknownFields", "told_of"]

_SAMPLE = 1000
"""Records of a run that are looked at."""
_RANGES = 20
_SHOWN = 5


@dataclass
class UnknownFields:
    """The look at the first batch of a run; it takes place beside the batch, in a thread."""

    pipeline: Pipeline
    _found: Future[str | None] | None = field(default=None, init=False)
    _told: bool = field(default=False, init=False)

    def look(self, source: object, ranges: Sequence[OffsetRange]) -> None:
        """Begin to look at records of a batch, if it is the first one with records."""
        config = self.pipeline.decode.config
        if self._found is not None or not ranges or not isinstance(config, JsonDecode) or config.rescue:
            return
        spans = _ends(ranges, newest=self.pipeline.source.kafka is not None)
        pool = ThreadPoolExecutor(1, thread_name_prefix="sluice-unknown-fields")
        self._found = pool.submit(lambda: told_of(config, _values(inputs_of(source, spans))))
        pool.shutdown(wait=False)

    def told(self) -> str | None:
        """Return, once, what was found, in words; None if there was nothing, or if the records could not be read."""
        if self._found is None or self._told:
            return None
        self._told = True
        with suppress(Exception):  # it is a hint: the batch itself was read
            return self._found.result(timeout=10)
        return None


def told_of(config: JsonDecode, values: Iterable[bytes | None]) -> str | None:
    """Return, in words, which fields records have that the schema does not have; None if there are none.

    Only members of the object itself are looked at; those of objects within a column are not.
    """
    known, looked = set(config.names), 0
    names: list[list[str]] = []
    for value in islice(values, _SAMPLE):
        looked += 1
        with suppress(ValueError, RecursionError):
            given: Any = json.loads(value or b"null")
            names.append([name for name in given if name not in known] if isinstance(given, dict) else [])
    found = Rescued.of([own for own in names if own])
    if not found.records:
        return None
    shown = [f"{name or repr(name)} ({count:,})" for name, count in list(found.fields.items())[:_SHOWN]]
    more = ", …" if len(found.fields) > _SHOWN else ""
    return (
        f"fields that the schema does not have, in {found.records:,} of {looked:,} records that were looked at: "
        f"{quoted(', '.join(shown) + more)}. Declare them; or keep them, with rescue: true below decode.json"
    )


def _ends(ranges: Sequence[OffsetRange], *, newest: bool) -> list[OffsetRange]:
    """Return parts of some ranges with about :data:`_SAMPLE` offsets in all."""
    spans = [span for span in ranges if len(span)][:_RANGES]
    each = -(-_SAMPLE // max(1, len(spans)))
    return [
        OffsetRange(s.topic, s.partition, max(s.start, s.end - each), s.end)
        if newest
        else OffsetRange(s.topic, s.partition, s.start, min(s.end, s.start + each))
        for s in spans
    ]


def _values(inputs: Sequence[tuple[Input, list[OffsetRange]]]) -> Iterator[bytes | None]:
    for given, spans in inputs:
        with given.opened() as reader:
            for span in spans:
                yield from chain.from_iterable(chunk.values() for chunk in reader.read(span))
