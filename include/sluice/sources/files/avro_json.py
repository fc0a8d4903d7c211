"""Values of Avro, as fastavro reads them without logical types, as JSON: ``docs/sources.md`` says how."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sluice.sources.files.json_text import UnfitError, member, text_of, text_of_bytes

__all__ = ["Texts"]

_DEEPEST = 200
"""Levels of a schema: reading uses the stack of the process, which ends without an error."""
_LONGEST = 64
"""Bytes of a decimal. No column holds more digits, and Python takes long to write them."""
_UNITS = {"millis": "ms", "micros": "us", "nanos": "ns"}
_PLAIN = {"null", "boolean", "int", "long", "float", "double", "string", "bytes"}

Text = Callable[[Any], str]
"""Returns the JSON of a value as fastavro reads it."""


@dataclass(frozen=True)
class Texts:
    """Finds how values of a type become JSON.

    Parameters
    ----------
    names
        The named types of a schema, as fastavro parses it.
    """

    names: Mapping[str, Any]

    def of(self, avro: Any, within: tuple[str, ...]) -> Text:
        """Return how values of a type become JSON, by a schema whose records that contain it have these names."""
        if isinstance(avro, list):
            return self._union(avro, within)
        if isinstance(avro, str) and avro not in _PLAIN:
            avro = self.names[avro]
        kind = avro["type"] if isinstance(avro, dict) else avro
        if isinstance(kind, dict | list):
            return self.of(kind, within)
        if kind == "record":
            return self._record(avro, within)
        if len(within) >= _DEEPEST:
            raise UnfitError(f"its schema has more than {_DEEPEST} levels")
        if kind == "array":
            return self._array(avro["items"], (*within, ""))
        if kind == "map":
            value = self.of(avro["values"], (*within, ""))
            return lambda v: "{" + ",".join([member(key) + value(item) for key, item in v.items()]) + "}"
        return _simple(kind, avro if isinstance(avro, dict) else {})

    def _array(self, items: Any, within: tuple[str, ...]) -> Text:
        if items == "null":
            raise UnfitError("its schema has an array of null, of which a few bytes could fill the memory")
        element = self.of(items, within)
        return lambda v: "[" + ",".join([element(item) for item in v]) + "]"

    def _record(self, avro: Any, within: tuple[str, ...]) -> Text:
        name = avro["name"]
        if name in within:
            raise UnfitError(f"its schema has a record {name!r} within itself")
        names = [f["name"] for f in avro["fields"]]
        if len(set(names)) < len(names):
            raise UnfitError(f"the record {name!r} of its schema has two fields of one name")
        fields = [(f["name"], member(f["name"]), self.of(f["type"], (*within, name))) for f in avro["fields"]]
        return lambda v: "{" + ",".join([begin + text(v[key]) for key, begin, text in fields]) + "}"

    def _union(self, parts: Sequence[Any], within: tuple[str, ...]) -> Text:
        """Return how values of any of these types become JSON; fastavro does not say which of them a value is."""
        texts: dict[Any, Text] = {}
        named = [part for part in parts if _kind(self.names, part) in _NAMED]
        for part in parts:
            kind, text = _kind(self.names, part), self.of(part, within)
            name = _full(self.names, part) if kind in _NAMED and len(named) > 1 else _READ[kind]
            if texts.setdefault(name, text) is not text:
                raise UnfitError(f"its schema has a union whose values cannot be told apart: {json.dumps(parts)[:200]}")

        def told(value: Any) -> str:
            if type(value) is tuple:
                return texts[value[0]](value[1])
            return texts[type(value)](value)

        return told


_NAMED = ("record", "enum", "fixed")
_READ = {
    "null": type(None), "boolean": bool, "int": int, "long": int, "float": float, "double": float, "string": str,
    "enum": str, "bytes": bytes, "fixed": bytes, "array": list, "map": dict, "record": dict,
}  # fmt: skip
"""The types of Python of the values that fastavro reads."""


def _kind(names: Mapping[str, Any], avro: Any) -> str:
    if isinstance(avro, str) and avro not in _PLAIN:
        avro = names[avro]
    kind = avro["type"] if isinstance(avro, dict) else avro
    return _kind(names, kind) if isinstance(kind, dict) else str(kind)


def _full(names: Mapping[str, Any], avro: Any) -> str:
    return str(avro["name"] if isinstance(avro, dict) else names[avro]["name"])


def _simple(kind: str, avro: Mapping[str, Any]) -> Text:
    logic = avro.get("logicalType")
    family, _, unit = logic.rpartition("-") if isinstance(logic, str) else ("", "", "")
    if kind == "null":
        return _null
    if kind == "boolean":
        return _boolean
    if kind in ("float", "double"):
        return _float
    if kind in ("string", "enum"):
        return text_of
    if kind == "int" and logic == "date":
        return _date
    if kind == "long" and unit in _UNITS and family in ("timestamp", "local-timestamp"):
        return _Time(_UNITS[unit], "Z" if family == "timestamp" else "")
    if (kind, logic) == ("int", "time-millis") or (kind, logic) == ("long", "time-micros"):
        return _Clock(3 if unit == "millis" else 6)
    if kind in ("int", "long"):
        return str
    if logic == "decimal":
        return _Decimals(avro.get("scale", 0))
    if kind == "fixed" and logic == "uuid" and avro.get("size") == 16:
        return _uuid
    return text_of_bytes


def _null(_: None) -> str:
    return "null"


def _boolean(value: bool) -> str:
    return "true" if value else "false"


def _float(value: float) -> str:
    if value - value == 0:
        return repr(value)
    return '"NaN"' if value != value else '"Infinity"' if value > 0 else '"-Infinity"'


def _date(value: int) -> str:
    import numpy as np

    return f'"{np.datetime64(value, "D")}"'


def _uuid(value: bytes) -> str:
    return f'"{uuid.UUID(bytes=value)}"'


@dataclass(frozen=True)
class _Time:
    unit: str
    zone: str

    def __call__(self, value: int) -> str:
        import numpy as np

        return f'"{str(np.int64(value).view(f"datetime64[{self.unit}]")).replace("T", " ")}{self.zone}"'


@dataclass(frozen=True)
class _Clock:
    digits: int

    def __call__(self, value: int) -> str:
        seconds, part = divmod(value, 10**self.digits)
        return f'"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{part:0{self.digits}}"'


@dataclass(frozen=True)
class _Decimals:
    scale: int

    def __call__(self, value: bytes) -> str:
        if len(value) > _LONGEST:
            return text_of_bytes(value)
        number = int.from_bytes(value, "big", signed=True)
        return format(Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -self.scale)), "f")
