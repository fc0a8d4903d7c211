"""The columns of records in a schema registry's wire format, by the schemas that they were written with; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from sluice.decoders.registry import Schema
from sluice.draft.avro import fields_of
from sluice.draft.infer import problem
from sluice.draft.kinds import Kind, NoColumnError, ddl, merged
from sluice.draft.protobuf import Messages
from sluice.draft.sample import Sampled

__all__ = ["Columns", "columns_of", "schema_numbers"]

_HEAD = 5


@dataclass
class Columns:
    """What the schemas of a sample's records have.

    Attributes
    ----------
    columns
        Names and types, as DDL.
    full
        Those that each record has, by its schema, and that are never null.
    doubts
        What a person should look at, in words.
    decoder
        The key below ``decode`` of what reads the records.
    message
        The full name of the message that most records are; None unless they are of Protobuf.
    """

    columns: tuple[tuple[str, str], ...] = ()
    full: tuple[str, ...] = ()
    doubts: list[str] = field(default_factory=list)
    decoder: str = "avro"
    message: str | None = None


@dataclass(frozen=True)
class _Field:
    number: int
    count: int
    kind: Kind
    always: bool


def schema_numbers(records: Sequence[Sampled]) -> Counter[int]:
    """Return how many records begin with a zero byte and the number of a schema, by that number.

    Empty if these are not most of those that have a value.
    """
    values = [record.value for record in records if record.value is not None]
    found = Counter(int.from_bytes(v[1:_HEAD]) for v in values if v[:1] == b"\0" and len(v) >= _HEAD)
    return found if found.total() * 2 > len(values) else Counter()


def columns_of(
    schemas: Mapping[int, Schema | None],
    counts: Mapping[int, int],
    paths: Mapping[int, Counter[tuple[int, ...]]] | None = None,
) -> Columns:
    """Return the columns that take the records of all these schemas, as far as there are any.

    Parameters
    ----------
    schemas
        By number; None for one that the registry does not have.
    counts
        How many records were written with each.
    paths
        Of Protobuf: which message of the schema's file they are, and how many.
    """
    made = Columns(decoder=_decoder(schemas, counts))
    read = _Protobuf(schemas, paths or {}, made) if made.decoder == "protobuf" else fields_of
    fields: dict[str, list[_Field]] = {}
    known = 0
    for number in sorted(schemas, reverse=True):  # the columns of the newest come first
        found, told = schemas[number], f"{counts[number]:,} records were written with schema {number}"
        if found is None:
            made.doubts.append(f"{told}, which the registry does not have: they would be refused")
            continue
        if found.kind.lower() != made.decoder:
            made.doubts.append(
                f"{told}, which is of the kind {found.kind}: only {made.decoder.title()} would be decoded here"
            )
            continue
        try:
            items = list(read(found, number, made.doubts))
        except Exception as error:  # the packages have many names for what is no schema
            made.doubts.append(
                f"{told}, which is no {made.decoder.title()} record that can be read ({error}): they would be refused"
            )
            continue
        known += 1
        for name, kind, always in items:
            fields.setdefault(name, []).append(_Field(number, counts[number], kind, always))
    taken: dict[str, str] = {}
    columns = []
    for name, seen in fields.items():
        if (wrong := problem(name, top=True, taken=taken)) is not None:
            made.doubts.append(f"{name[:80]!r}: {wrong}, and is left out")
            continue
        taken[name.lower()] = name
        columns.append((name, ddl(_settled(name, seen, made.doubts))))
    made.columns = tuple(columns)
    made.full = tuple(n for n, _ in columns if len(fields[n]) == known and all(f.always for f in fields[n]))
    return made


def _decoder(schemas: Mapping[int, Schema | None], counts: Mapping[int, int]) -> str:
    """Return which decoder reads most of the records."""
    kinds = Counter[str]()
    for number, found in schemas.items():
        if found is not None and found.kind in ("AVRO", "PROTOBUF"):
            kinds[found.kind.lower()] += counts[number]
    return kinds.most_common(1)[0][0] if kinds else "avro"


class _Protobuf:
    """Yields the fields of the message that most records are."""

    def __init__(
        self,
        schemas: Mapping[int, Schema | None],
        paths: Mapping[int, Counter[tuple[int, ...]]],
        made: Columns,
    ) -> None:
        self._messages: dict[int, Messages] = {}
        names = Counter[str]()
        for number, found in schemas.items():
            if found is None or found.kind != "PROTOBUF":
                continue
            with suppress(Exception):  # told where its fields are asked for
                self._messages[number] = Messages(found)
                for path, count in paths.get(number, Counter()).items():
                    names[self._messages[number].name(path)] += count
        made.message = names.most_common(1)[0][0] if names else None
        if (others := names.total() - names[made.message or ""]) and made.message:
            made.doubts.append(
                f"{others:,} records are not {made.message} but {', '.join(sorted(set(names) - {made.message})[:4])}: "
                "they would be refused; a pipeline of their own decodes them"
            )
        self._name = made.message

    def __call__(self, found: Schema, number: int, doubts: list[str]) -> Iterator[tuple[str, Kind, bool]]:
        messages = self._messages.get(number) or Messages(found)
        if self._name is None:
            raise ValueError("no record says which message of it it is")
        if messages.has(self._name):
            yield from messages.fields(self._name, number, doubts)


def _settled(name: str, seen: Sequence[_Field], doubts: list[str]) -> Kind:
    """Return the type that takes the values of all schemas, or those of most records."""
    most, *others = sorted(seen, key=lambda one: -one.count)
    kind = most.kind
    for other in others:
        try:
            kind = merged(kind, other.kind)
        except NoColumnError:
            doubts.append(
                f"{name}: is {ddl(other.kind)} in schema {other.number}; as it is declared, "
                f"{other.count:,} records of that schema would be refused"
            )
    return kind
