"""Writes a pipeline file and a suite as text, from the records of a sample; pure but for :meth:`Draft.write`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from sluice.decoders.registry import Schema
from sluice.draft.infer import Number, Seen, quoted
from sluice.draft.protobuf import paths_of
from sluice.draft.sample import Sampled
from sluice.draft.wire_format import Columns, columns_of, schema_numbers
from sluice.errors import ConfigError
from sluice.fields import METADATA_COLUMNS
from sluice.text import instant

__all__ = ["Draft", "draft", "name_for"]

_NAME = re.compile(r"[^a-z0-9_-]+")
_RESCUE = "# rescue: true  # keeps fields that come later and the schema does not have, in a column _rescued"
_LEAF = re.compile(r"\b(?:BIGINT|BOOLEAN|DATE|DECIMAL|DOUBLE|STRING|TIMESTAMP)\b")
_WIDE = 1_000
"""With more fields than this, those in objects among them, the code for a record may not fit Spark's memory."""
_TOMBSTONES = "{:,} of {:,} records have no value (tombstones): they would be refused"
_ALIKE = 4
"""As many fields of which the same is to be said are one doubt."""
_OF_KEYS = ("INT", "BIGINT", "STRING", "DECIMAL(38,0)")
_KEYS = (r"id", r"uuid|key", r".*(_id|Id|_uuid|_key)")
_TIMES = (r"(event|occurred|created|placed)_?(time|at|ts)?", r"ts|time|timestamp", r".*(_at|_time|_ts|At|Time)")


@dataclass(frozen=True)
class Draft:
    """A pipeline file and its suite, and what is not certain about them.

    Attributes
    ----------
    pipeline, suite
        The content of the two files; there may be nothing to expect yet.
    columns
        Names and types of the decoded columns.
    doubts
        What a person should look at, in words.
    """

    name: str
    topic: str
    records: int
    pipeline: str
    suite: str | None
    columns: tuple[tuple[str, str], ...]
    key: str | None
    event_time: str | None
    doubts: tuple[str, ...]

    def write(self, folder: Path) -> list[Path]:
        """Write both files: the pipeline's into ``folder``, the suite beside it; return their paths.

        Raises
        ------
        ConfigError
            If one of them is there already; nothing is written then.
        """
        file, suite = folder / f"{self.name}.yaml", folder.parent / "expectations" / f"{self.name}.json"
        files = [(suite, self.suite), (file, self.pipeline)] if self.suite is not None else [(file, self.pipeline)]
        for path, _ in files:
            if path.exists():
                raise ConfigError(
                    f"{path} is there already, and is not overwritten",
                    state="nothing was written",
                    next_step="give the pipeline another name: --name NAME; or move the file away",
                )
        for path, text in files:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as out:
                out.write(text or "")
        return [path for path, _ in reversed(files)]


class _Source(NamedTuple):
    name: str
    topic: str
    connection: str
    records: Sequence[Sampled]


def name_for(topic: str) -> str:
    """Return a pipeline's name for a topic."""
    name = _NAME.sub("_", topic.lower()).strip("_-")
    return (name if name[:1].isalpha() else f"t_{name}")[:63]


def draft(
    records: Sequence[Sampled],
    *,
    topic: str,
    name: str,
    connection: str,
    registry: str | None = None,
    schemas: Mapping[int, Schema | None] | None = None,
) -> Draft:
    """Return the draft of a pipeline for these records.

    Parameters
    ----------
    registry
        The connection to the schema registry that has their schemas.
    schemas
        What the registry has under the numbers with which the records begin.
    """
    doubts: list[str] = []
    source = _Source(name, topic, connection, records)
    if registry is not None and schemas:
        found = columns_of(schemas, schema_numbers(records), paths_of(records))
        if found.columns:
            return _of_registry(source, registry, found)
        doubts += found.doubts
    seen, broken = _parsed(records)
    objects = seen.kinds["object"]
    nothing = sum(record.value is None for record in records)
    if nothing:
        doubts.append(_TOMBSTONES.format(nothing, len(records)))
    if broken and objects:
        doubts.append(
            f"{len(broken):,} of {len(records):,} records are no JSON object, and would be refused; the first is "
            f"partition {broken[0].partition}, offset {broken[0].offset}"
        )
    if not records:
        doubts.append("the topic has no record: columns are unknown, and each value is taken as text")
    if objects * 2 <= len(records) - nothing or not seen.fields:
        if records:
            doubts.append(
                f"most records are no JSON object: each value is taken as text{'' if schemas else _format(broken)}"
            )
        return _made(source, (), "text: {}", doubts)
    columns = tuple(seen.columns("", doubts))
    fields = sum(len(_LEAF.findall(kind)) for _, kind in columns)
    if fields > _WIDE:
        doubts.insert(
            0,
            f"{fields:,} fields, with those in objects: Spark takes long for so many, and its default memory holds "
            f"about {_WIDE:,}. Leave out what is not needed (rescue: true keeps it as text), or raise "
            "spark.driver_memory",
        )
    full = [n for n, _ in columns if seen.fields[n].always and seen.fields[n].count == objects]
    key = _key(seen, full, columns, records, doubts)
    event_time = _event_time(columns, doubts)
    decode = f"json:\n    {_RESCUE}\n    schema: |-\n{_declared(columns)}"
    return _made(source, columns, decode, doubts, key=key, event_time=event_time, full=full)


def _of_registry(source: _Source, registry: str, found: Columns) -> Draft:
    """Return the draft for records in the wire format of a schema registry."""
    doubts, records = found.doubts, source.records
    nothing = sum(record.value is None for record in records)
    if nothing:
        doubts.append(_TOMBSTONES.format(nothing, len(records)))
    if others := len(records) - nothing - schema_numbers(records).total():
        doubts.append(f"{others:,} of {len(records):,} records do not begin as a registry's do: they would be refused")
    kinds = dict(found.columns)
    likely = (n for pattern in _KEYS for n in found.full if kinds[n] in _OF_KEYS and re.fullmatch(pattern, n))
    key = next(likely, None)
    if key is None:
        doubts.append("no field is certain to be a key")
    else:
        doubts.append(f"{key}: is taken for the key because of its name; whether values occur twice was not looked at")
    event_time = _event_time(found.columns, doubts)
    message = f"    message: {found.message}\n" if found.message else ""
    decode = f"{found.decoder}:\n{message}    registry: {_yaml(registry)}\n    schema: |-\n{_declared(found.columns)}"
    return _made(source, found.columns, decode, doubts, key=key, event_time=event_time, full=found.full)


def _declared(columns: Sequence[tuple[str, str]]) -> str:
    return ",\n".join(f"      {quoted(n)} {kind}" for n, kind in columns)


def _made(
    source: _Source,
    columns: tuple[tuple[str, str], ...],
    decode: str,
    doubts: list[str],
    *,
    key: str | None = None,
    event_time: str | None = None,
    full: Sequence[str] = (),
) -> Draft:
    name, topic, connection, records = source
    renamed = _renamed([n for n, _ in columns])
    if renamed:
        doubts.append(
            "names with other characters than letters, digits and _ are renamed in the transform: "
            + ", ".join(f"{n} to {renamed[n]}" for n in sorted(renamed))
        )
    doubts = _together(doubts)
    expectations = _expectations(full, key, renamed)
    told = "".join(f"#   {' '.join(doubt.split())}\n" for doubt in doubts)
    lines = [
        "# yaml-language-server: $schema=../pipeline.schema.json",
        f"# A draft of sluice init, from {len(records):,} records of {topic}{_span(records)}.",
        *([f"# It is not certain of this:\n{told.rstrip()}"] if doubts else []),
        f"pipeline: {_yaml(name)}",
        f"source: {{kafka: {{connection: {json.dumps(connection)}, topics: [{json.dumps(topic)}]}}}}",
        f"decode:\n  {decode}",
    ]
    if renamed:
        chosen = ",\n".join(f"      {quoted(n)}{f' AS {renamed[n]}' if n in renamed else ''}" for n, _ in columns)
        metadata = "_topic, _partition, _offset, _timestamp"
        lines.append(f"transform:\n  sql: |-\n    SELECT\n{chosen},\n      {metadata}\n    FROM source")
    lines.append(f"sink: {{delta: {{path: {_yaml(name)}}}}}   # columns that come later: evolve: add")
    if expectations:
        lines.append(f"quality: {{suite: expectations/{name}.json}}")
    suite = json.dumps({"name": name, "expectations": expectations}, indent=2, ensure_ascii=False) + "\n"
    return Draft(
        name, topic, len(records), "\n".join(lines) + "\n", suite if expectations else None, columns, key, event_time,
        tuple(doubts),
    )  # fmt: skip


def _renamed(names: Sequence[str]) -> dict[str, str]:
    """Return other names for those that not every table and tool takes; no two columns get the same one."""
    odd = [n for n in names if re.search(r"\W", n)]
    taken = {n.lower() for n in names if n not in odd} | set(METADATA_COLUMNS)
    found: dict[str, str] = {}
    for n in odd:
        plain = re.sub(r"\W+", "_", n)
        tried = (plain if k == 1 else f"{plain}_{k}" for k in count(1))
        found[n] = next(name for name in tried if name.lower() not in taken)
        taken.add(found[n].lower())
    return found


def _together(doubts: Sequence[str]) -> list[str]:
    """Return the doubts, those that say the same of many fields as one; in the order of the first ones."""
    fields: dict[str, list[str]] = {}
    for doubt in doubts:
        name, _, what = doubt.partition(": ")
        if what.startswith(("is ", "has times ")):
            fields.setdefault(what, []).append(name)
    found: dict[str, None] = {}
    for doubt in doubts:
        what = doubt.partition(": ")[2]
        names = fields.get(what, [])
        several = f"{len(names)} fields, of which each {what}: {', '.join(names)}"
        found[several if len(names) >= _ALIKE else doubt] = None
    return list(found)


def _yaml(name: str) -> str:
    """Return a name as YAML reads it as text: `null` or `2024` is something else without quotes."""
    return name if yaml.safe_load(name) == name else json.dumps(name)


def _parsed(records: Sequence[Sampled]) -> tuple[Seen, list[Sampled]]:
    """Return what was seen of all values, and the records whose value is no JSON object."""
    seen, broken = Seen(), []
    for record in records:
        if record.value is None:
            continue
        try:
            value = json.loads(record.value, parse_float=Number, parse_constant=_refuse)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            seen.add(value)
        else:
            broken.append(record)
    return seen, broken


def _refuse(word: str) -> Any:
    raise ValueError(word)


def _key(
    seen: Seen, full: Sequence[str], columns: Sequence[tuple[str, str]], records: Sequence[Sampled], doubts: list[str]
) -> str | None:
    """Return the column that identifies a record, if one is likely to."""
    objects, kinds = seen.kinds["object"], dict(columns)
    unique = [n for n in full if len(seen.fields[n].values) == objects > 1 and kinds[n] in _OF_KEYS]
    texts = {r.key.decode(errors="replace") for r in records if r.key is not None}
    by_key = [n for n in full if texts and seen.fields[n].values and seen.fields[n].values >= texts]
    for pattern in _KEYS:
        for n in [*(n for n in by_key if n in unique), *unique]:
            if re.fullmatch(pattern, n):
                doubts.append(f"{n}: is taken for the key, because no value occurs twice in the sample")
                return n
    same = f"; the record's key has the values of {', '.join(by_key)}" if by_key else ""
    alike = f" (no value twice: {', '.join(unique)})" if unique else ""
    doubts.append(f"no field is certain to be a key{alike}{same}")
    return None


def _event_time(columns: Sequence[tuple[str, str]], doubts: list[str]) -> str | None:
    times = [n for n, kind in columns if kind == "TIMESTAMP"]
    for pattern in _TIMES:
        for n in times:
            if re.fullmatch(pattern, n, re.IGNORECASE):
                doubts.append(f"{n}: is taken for the event time; intervals go by the record's own time, _timestamp")
                return n
    which = f": one of {', '.join(times)}" if times else ": no field is a time"
    doubts.append(f"the event time is not certain{which}")
    return None


def _expectations(full: Sequence[str], key: str | None, renamed: dict[str, str]) -> list[dict[str, Any]]:
    def of(kind: str, column: str, **more: Any) -> dict[str, Any]:
        return {"type": kind, "kwargs": {"column": renamed.get(column, column)}, **more}

    found = []
    if key is not None:
        found.append(of("expect_column_values_to_not_be_null", key, severity="critical"))
        found.append(of("expect_column_values_to_be_unique", key, severity="warning", meta={"scope": "slice"}))
    return found + [of("expect_column_values_to_not_be_null", n, severity="warning") for n in full if n != key]


def _span(records: Sequence[Sampled]) -> str:
    if not records:
        return ""
    first, last = (instant(f([r.timestamp for r in records]) // 1000 * 1_000_000) for f in (min, max))
    return f" ({first} to {last})"


def _format(broken: Sequence[Sampled]) -> str:
    first = [record.value or b"" for record in broken]
    if schema_numbers(broken):
        return (
            ". They begin with a zero byte, as those of a schema registry do. If they are Avro, define the connection "
            "schema_registry_default (or name another: --registry ID), and run sluice init again"
        )
    if first and sum(value.count(b",") >= 1 for value in first) * 2 > len(first):
        return ". They may be CSV: decode: {csv: {schema: …}}"
    return ""
