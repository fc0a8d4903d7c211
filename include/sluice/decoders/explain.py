"""Says in a few words why a record was refused, from its value and the rule that it broke; pure.

Only refused records are looked at, and never again by what decoded them: whatever the value is, there is an answer.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.parsers import expat

from sluice.decoders.config import CsvDecode, JsonDecode
from sluice.decoders.misfits import Number, misfit, nested
from sluice.decoders.per_record import UNMATCHED, ByHeader, PerRecord

__all__ = ["SINK", "Explainer", "explained"]

SINK = "sink"
"""The rule of records whose rows the sink refused; the detail has its own words."""

_LONGEST = 200
"""Characters of a record's text that a detail has."""
_NEAR = 40
_LAST_NAME = re.compile(r'"((?:[^"\\]|\\.)*)"\s*:[^"]*(?:"(?:[^"\\]|\\.)*)?\Z')
_HALF = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_KINDS = {dict: "an object", list: "an array", str: "text", bool: "a boolean", type(None): "null"}


@dataclass(frozen=True)
class Explainer:
    """Explains what a decoder refused.

    Parameters
    ----------
    format
        The key below ``decode`` of the pipeline file.
    names
        The declared columns, in their order.
    """

    format: str
    names: tuple[str, ...] = ()
    separator: str = ","
    quote: str = '"'
    escape: str | None = None
    ddl: str | None = None
    """The declared columns with their types, of JSON."""

    @classmethod
    def of(cls, format_: str, config: Any) -> Explainer:
        """Return the explainer of a decoder, by its key in the pipeline file and its settings."""
        if isinstance(config, CsvDecode):
            return cls(format_, tuple(config.names), config.separator, config.quote, config.escape)
        return cls(format_, ddl=config.ddl if isinstance(config, JsonDecode) else None)

    def detail(self, value: bytes | None, rule: str, column: str | None) -> str | None:
        """Return the offending text, or what is wrong with the record; None if there is no more to say than the rule.

        Parameters
        ----------
        value
            The record's value, verbatim.
        rule, column
            What it broke, and where, if one column is at fault.
        """
        try:
            return self._detail(value, rule, column)
        except Exception:  # a detail is a help, and no reason to stop
            return None

    def _detail(self, value: bytes | None, rule: str, column: str | None) -> str | None:
        if value is None:
            return None
        if self.format in ("avro", "protobuf"):
            return _schema_of(value, rule)
        try:
            text = value.decode()
        except UnicodeDecodeError as error:
            return f"byte 0x{value[error.start]:02x} at {error.start} is not UTF-8"
        if self.format == "csv":
            return self._csv(text, rule, column)
        if self.format == "xml":
            return _no_document(text, rule)
        if self.format != "json":
            return None
        if rule == "json":
            return _no_object(text)
        if rule == "surrogate":
            half = _HALF.search(text)
            return f"{half[0]} at character {half.start()}" if half else None
        found = self._within(text, rule, column)
        return found if found is not None or column is None else _field(text, column)

    def _within(self, text: str, rule: str, column: str | None) -> str | None:
        """Return where in a nested column the offending value is, and what it is; None if the column says it."""
        if self.ddl is None or (column is not None and not nested(self.ddl, column)):
            return None
        found = misfit(_read(text), self.ddl, rule, column)
        return None if found is None else f"{found[0]}: {_written(found[1])} is no {found[2]}"

    def _csv(self, text: str, rule: str, column: str | None) -> str | None:
        line = text.removesuffix("\n").removesuffix("\r")
        if rule == "fields":
            return f"{len(self._cells(line))} fields, and the schema has {len(self.names)} columns"
        if rule == "csv":
            if line.count(self.quote) % 2:
                return f"a quote is not closed: {_near(line, line.rfind(self.quote))}"
            found = re.search(r"[\r\n]", line)
            return f"a line break outside of quotes: {_near(line, found.start())}" if found else _near(line, 0)
        return None if column not in self.names else _cut(self._cells(line)[self.names.index(column)])

    def _cells(self, line: str) -> Sequence[str]:
        own = None if self.escape in (None, self.quote) else self.escape
        reader = csv.reader(
            io.StringIO(line, newline=""),
            delimiter=self.separator,
            quotechar=self.quote,
            escapechar=own,
            doublequote=own is None,
        )
        return next(reader, [])


def explained(format_: str, config: Any) -> Callable[[Mapping[str, Any]], str | None]:
    """Return what says of a row of the quarantine more than its rule and column; None if there is no more to say.

    Parameters
    ----------
    format_, config
        The decoder's key in the pipeline file, and its settings.
    """

    def explain(row: Mapping[str, Any]) -> str | None:
        error = (row["_errors"] or [{"rule": "unknown", "column": None}])[0]
        if error["rule"] == SINK:
            return None
        key, own = format_, config
        if isinstance(config, PerRecord):
            headers = [(each["key"], each["value"]) for each in row["headers"] or ()]
            if error["rule"] == UNMATCHED:
                return _unmatched(config, headers)
            number = config.chosen(config.value_of(row["_topic"], headers))
            if number is None:
                return None
            form = config.entries[number][1]
            key, own = form.key, form.config
        return Explainer.of(key, own).detail(row["value"], error["rule"], error["column"])

    return explain


def _unmatched(config: PerRecord, headers: Sequence[tuple[str, bytes | None]]) -> str | None:
    """Say why no format was chosen; of a topic there is no more to say."""
    if not isinstance(config, ByHeader):
        return None
    values = [value for name, value in headers if name == config.name]
    if not values:
        return f"it has no header {config.name!r}"
    if values[-1] is None:
        return f"its header {config.name!r} has no value"
    text = config.value_of("", headers)
    shown = f"0x{values[-1][:20].hex()}, which is not UTF-8" if text is None else repr(_cut(text))
    return f"its header {config.name!r} is {shown}"


def _no_document(text: str, rule: str) -> str | None:
    """Say why a text is not exactly one XML document, or which root it has."""
    found: list[str] = []
    parser = expat.ParserCreate()
    parser.StartElementHandler = lambda name, _: found.append(name) if not found else None
    parser.StartDoctypeDeclHandler = _doctype  # so that no entity is ever resolved
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        line = text.split("\n")[error.lineno - 1] if rule == "xml" else ""
        where = f"line {error.lineno}, character {error.offset}"
        return f"{expat.ErrorString(error.code)} at {where}: {_near(line, error.offset)}" if rule == "xml" else None
    except ValueError as error:
        return str(error) if rule == "xml" else None
    return f"its root is {_cut(found[0])!r}" if rule == "root" else None


def _doctype(*_: Any) -> None:
    raise ValueError("it has a DOCTYPE, which is not read")


def _schema_of(value: bytes, rule: str) -> str:
    if rule == "wire_format":
        return f"{len(value)} bytes, the first of which is 0x{value[0]:02x}, not 0x00" if value else "no bytes"
    return f"it was written with schema {int.from_bytes(value[1:5], 'big')}"


def _no_object(text: str) -> str:
    """Say why a text is not exactly one JSON object."""
    if not text.strip():
        return "no text" if not text else "blanks only"
    if text.startswith("\ufeff"):
        return "it begins with a byte order mark"
    decoder = json.JSONDecoder(parse_constant=_refused)
    start = len(text) - len(text.lstrip(" \t\r\n"))
    try:
        found, end = decoder.raw_decode(text, start)
    except json.JSONDecodeError as error:
        last = _LAST_NAME.search(text, max(0, error.pos - 10_000), error.pos)
        field = f", in or after {json.dumps(last[1], ensure_ascii=False)[1:-1]!r}" if last else ""
        if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated"):
            return f"it ends after {len(text):,} characters{field}: {_near(text, len(text))}"
        return f"{error.msg} at character {error.pos}{field}: {_near(text, error.pos)}"
    except ValueError as error:
        return f"{error} is not JSON"
    except RecursionError:
        return "it has objects in objects, too deep to be read"
    if text[end:].strip(" \t\r\n"):
        return f"text follows at character {end}: {_near(text, end)}"
    return f"it is {_KINDS.get(type(found), 'a number')}, not an object: {_cut(text)}"


def _refused(word: str) -> Any:
    raise ValueError(word)


def _field(text: str, column: str) -> str | None:
    """Return the text of a field, as it was written; None if the object does not have it."""
    found = _read(text)
    parts = [column] if column in found else column.split(".")
    for part in parts:
        if not isinstance(found, dict) or part not in found:
            return "is missing"
        found = found[part]
    return _written(found)


def _read(text: str) -> Any:
    return json.loads(text, parse_float=Number, parse_int=Number)


def _written(value: Any) -> str:
    return _cut(_text_of(value))


def _text_of(value: Any) -> str:
    """Return a value as JSON, numbers as they were written."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(k, ensure_ascii=False)}: {_text_of(v)}' for k, v in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_text_of, value))}]"
    return str(value) if isinstance(value, Number) else json.dumps(value, ensure_ascii=False)


def _near(text: str, at: int) -> str:
    start, end = max(0, at - _NEAR), min(len(text), at + _NEAR)
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text):,} characters)"
