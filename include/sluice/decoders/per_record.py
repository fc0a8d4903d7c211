"""The keys ``decode.by_topic`` and ``decode.by_header`` of a pipeline file: a format is chosen for each record."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field, PrivateAttr, model_validator

from sluice.decoders.base import DecoderKind
from sluice.decoders.format import Format
from sluice.fields import Strict

__all__ = ["BY_HEADER", "BY_TOPIC", "UNMATCHED", "ByHeader", "ByTopic", "PerRecord"]

UNMATCHED = "format"
"""The rule that a record breaks for which the file names no format."""


class PerRecord(Strict):
    """Formats of records that become rows of the same columns; the contract is in ``docs/decoding.md``."""

    lacks: ClassVar[str]
    """What records of other sources lack."""

    formats: Annotated[dict[Annotated[str, Field(min_length=1)], Format], Field(min_length=1)]
    """The formats, by what chooses them; ``*`` stands for any text. An exact entry wins, then the first in the file."""
    default: Format | None = None
    """The format of all other records. Without it they go to the quarantine (rule ``format``)."""

    _clusters: bool = PrivateAttr(default=False)

    @model_validator(mode="after")
    def _same(self) -> PerRecord:
        (first, wanted), *others = ((name, form.columns) for name, form in self.entries)
        for name, columns in others:
            if problem := _difference(columns, wanted):
                raise ValueError(
                    f"{name} gives other columns than {first}: {problem}. Declare the same names and types in each "
                    "format, in any order; records with other columns belong in a pipeline of their own"
                )
        return self

    @model_validator(mode="after")
    def _alike(self) -> PerRecord:
        forms = [form for _, form in self.entries]
        if len({form.config.key if form.deletes else None for form in forms}) > 1:
            raise ValueError(
                "tombstone: delete must be in each format, beside the same key: a table's rows are deleted by one key"
            )
        registries = sorted({form.needs for form in forms if form.needs is not None})
        if len(registries) > 1:
            raise ValueError(
                f"the formats name the registries {' and '.join(registries)}, and a run can ask one: name the same, or "
                "write two pipelines"
            )
        return self

    @property
    def entries(self) -> list[tuple[str, Format]]:
        """The formats in the order of the file, the default last, each with what messages call it."""
        found = [(f"formats.{name}", form) for name, form in self.formats.items()]
        return found if self.default is None else [*found, ("default", self.default)]

    @property
    def clusters(self) -> bool:
        """Whether the pipeline has several clusters: then a topic's name may stand behind that of its cluster."""
        return self._clusters

    @property
    def exact(self) -> dict[str, int]:
        """Which entry is chosen by an exact value."""
        return {name: number for number, name in enumerate(self.formats) if "*" not in name}

    @property
    def patterns(self) -> list[tuple[str, int]]:
        """Regular expressions with the entries that they choose, if no exact value does; the first match counts.

        They must match a whole value. Python and Java read them alike.
        """
        return [
            (f"(?s)^{'.*'.join(map(re.escape, name.split('*')))}", number)
            for number, name in enumerate(self.formats)
            if "*" in name
        ]

    def chosen(self, value: str | None) -> int | None:
        """Return the number of the entry that a value chooses; None if there is none."""
        last = None if self.default is None else len(self.formats)
        if value is None:
            return last
        if value in self.exact:
            return self.exact[value]
        return next((number for pattern, number in self.patterns if re.fullmatch(pattern, value)), last)

    @abstractmethod
    def value_of(self, topic: str, headers: Sequence[tuple[str, Any]] | None) -> str | None:
        """Return the text by which a record's format is chosen; None if it has none."""

    @abstractmethod
    def unread(self, source: str, streams: Sequence[str], reads: Callable[[str], bool]) -> str | None:
        """Return what is wrong with the entries beside a source; None if nothing is.

        Parameters
        ----------
        source
            Its key in the file.
        streams
            The topics that it names.
        reads
            Tells whether it reads a topic.
        """


class ByTopic(PerRecord):
    """A format for each topic."""

    lacks = "are not in topics"

    def value_of(self, topic: str, headers: Sequence[tuple[str, Any]] | None) -> str | None:
        """Return the topic; of a stream of another cluster, its bare name."""
        return topic.rpartition(":")[2] if self.clusters else topic

    def unread(self, source: str, streams: Sequence[str], reads: Callable[[str], bool]) -> str | None:
        """Name an entry that no record chooses, or a topic whose records are all refused."""
        if stray := next((name for name in self.exact if not reads(name)), None):
            return f"formats.{stray}: source.{source} does not read a topic {stray!r}: correct the name, or remove it"
        if unmatched := next((name for name in streams if self.chosen(name) is None), None):
            return (
                f"no entry is for the topic {unmatched!r}, so each of its records would be refused: add "
                f"formats.{unmatched}, or a default"
            )
        return None


class ByHeader(PerRecord):
    """A format for each value of a header."""

    lacks = "have no headers that their producers set"

    name: Annotated[str, Field(min_length=1)]
    """The name of the header, such as ``content-type``; of several, the last one counts."""

    def value_of(self, topic: str, headers: Sequence[tuple[str, Any]] | None) -> str | None:
        """Return the last header's text; None if it is missing, without a value, or not UTF-8."""
        value = next((value for name, value in reversed(headers or ()) if name == self.name), None)
        try:
            return None if value is None else bytes(value).decode()
        except UnicodeDecodeError:
            return None

    def unread(self, source: str, streams: Sequence[str], reads: Callable[[str], bool]) -> str | None:
        """Return None: which values a header has is not known."""
        return None


def _difference(columns: dict[str, str], wanted: dict[str, str]) -> str | None:
    """Return the first difference between two formats' columns."""
    for name, kind in wanted.items():
        if name not in columns:
            return f"it has no column {name!r}"
        if columns[name] != kind:
            return f"{name!r} is {columns[name]}, not {kind}"
    more = next((name for name in columns if name not in wanted), None)
    return None if more is None else f"it also has the column {more!r}"


BY_TOPIC = DecoderKind(ByTopic, "sluice_spark.decoders.per_record:PerRecordDecoder")
BY_HEADER = DecoderKind(ByHeader, "sluice_spark.decoders.per_record:PerRecordDecoder")
