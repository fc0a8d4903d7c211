"""What the models of the pipeline file share: the strict base class, durations, the metadata columns."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from datetime import timedelta
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, get_args
from urllib.parse import unquote

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticCustomError
from pydantic_core.core_schema import ModelSchema, TimedeltaSchema

from sluice.storage import ESCAPED, has_secret, is_url

__all__ = [
    "DELETED",
    "METADATA_COLUMNS",
    "TAKES_AWAY",
    "Duration",
    "JsonSchema",
    "Location",
    "Strict",
    "TablePath",
    "described",
    "duration",
    "given",
    "meant",
    "one_of",
]

METADATA_COLUMNS = ("_topic", "_partition", "_offset", "_timestamp", "_run")
"""Metadata columns, which Sluice adds to every sink row."""

DELETED = "_deleted"
"""With ``tombstone: delete``, the column of the decoded records that is true for tombstones; transforms keep it."""

TAKES_AWAY = "__sluice_deleted"
"""The name of that column in staged rows, which no column of a pipeline file has; no table gets it."""

_DURATION = re.compile(r"^(\d+)\s*(s|m|h|d)$")
_ALMOST = re.compile(r"(\d+(?:[.,]\d+)?)\s*([A-Za-z]+)\.?", re.ASCII)
_WORDS = {
    word: words[0]
    for words in (
        ("s", "sec", "secs", "second", "seconds"),
        ("m", "min", "mins", "minute", "minutes"),
        ("h", "hr", "hrs", "hour", "hours"),
        ("d", "day", "days"),
        ("w", "week", "weeks"),
    )
    for word in words
}
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LONGEST = 36_525 * 86_400  # what is subtracted from now has to stay a date


class Strict(BaseModel):
    """Base of the models: it refuses unknown keys, and instances are immutable."""

    # not use_attribute_docstrings: it parses every model's source at each start of a process
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_flags(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false for a number: pydantic takes them for 1 and 0."""
        if isinstance(value, bool) and info.field_name in _numbers(cls):
            raise PydanticCustomError("int_type", "Input should be a valid number")
        return value


@cache
def _numbers(model: type[BaseModel]) -> set[str]:
    """Return the fields of a model that are numbers and nothing else; others have a validator of their own."""

    def kinds(annotation: Any) -> set[Any]:
        return {annotation}.union(*map(kinds, get_args(annotation)))

    found = {name: kinds(field.annotation) for name, field in model.model_fields.items()}
    return {name for name, types in found.items() if types & {int, float} and not types & {bool, str}}


def duration(value: Any) -> timedelta:
    """Return a duration, written as in a pipeline file: ``30s``, ``15m``, ``2h``, ``7d``.

    Raises
    ------
    ValueError
        If it is anything else; a number without a unit, too: not everybody means seconds.
    """
    if isinstance(value, timedelta):
        return value
    text = str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if text.isdecimal():
        raise ValueError(f"{value!r} is a duration without a unit: write {text}s, {text}m, {text}h or {text}d")
    match = _DURATION.match(text)
    if match is None:
        raise ValueError(f"{value!r} is not a duration: write 30s, 15m, 2h or 7d{meant(text)}")
    seconds = int(match[1]) * _UNITS[match[2]]
    if seconds > _LONGEST:
        raise ValueError(f"{value!r} is longer than 100 years")
    return timedelta(seconds=seconds)


def written(span: timedelta) -> str:
    """Return a duration as a file has it."""
    whole = round(span.total_seconds())
    fitting = (unit for unit, seconds in reversed(_UNITS.items()) if whole % seconds == 0 and whole >= seconds)
    unit = next(fitting, "s")
    return f"{whole // _UNITS[unit]}{unit}"


def meant(text: str) -> str:
    """Return what a misspelt duration was probably meant to be, for the end of a message."""
    found = _ALMOST.fullmatch(text.strip())
    unit = _WORDS.get(found[2].lower()) if found else None
    if found is None or unit is None:
        return ""
    number, factor = float(found[1].replace(",", ".")), 7 if unit == "w" else 1
    unit = "d" if unit == "w" else unit
    seconds = number * factor * _UNITS[unit]
    whole = next((u for u in ("d", "h", "m", "s") if _UNITS[u] <= _UNITS[unit] and seconds % _UNITS[u] == 0), None)
    return f"; did you mean {seconds / _UNITS[whole]:.0f}{whole}?" if whole else ""


def described(model: type[BaseModel]) -> dict[str, str]:
    """Return the docstrings of a model's fields, the inherited ones too, by the fields' names.

    A model whose source is not there, such as one that a function makes, has none.
    """
    found = {}
    for base in reversed(model.__mro__):
        if not issubclass(base, BaseModel) or base in (BaseModel, Strict):
            continue
        try:
            source = inspect.getsource(base)
        except OSError:
            continue
        (tree,) = ast.parse(textwrap.dedent(source)).body
        assert isinstance(tree, ast.ClassDef)
        for field, text in pairwise(tree.body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc))):
                    found[name] = inspect.cleandoc(doc)
    return found


class JsonSchema(GenerateJsonSchema):
    """The JSON Schema of these models: with the fields' docstrings, and durations as in a pipeline file."""

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        """Return the schema of a model."""
        found = super().model_schema(schema)
        model = schema["cls"]
        for name, text in described(model).items():
            if name in model.model_fields:
                found["properties"][model.model_fields[name].alias or name].setdefault("description", text)
        return found

    def timedelta_schema(self, schema: TimedeltaSchema) -> JsonSchemaValue:
        """Return the schema of a duration."""
        return {"type": "string", "pattern": _DURATION.pattern}

    def encode_default(self, dft: Any) -> Any:
        """Return a default as a file has it."""
        if isinstance(dft, BaseModel):
            return {name: self.encode_default(value) for name, value in dft}
        if not isinstance(dft, timedelta):
            return super().encode_default(dft)
        return written(dft)


Duration = Annotated[timedelta, BeforeValidator(duration)]
"""A duration such as ``15m``, ``2h``, ``7d``."""


def given(model: BaseModel) -> list[str]:
    """Return the keys that the file sets, of a model whose keys are alternatives."""
    fields = type(model).model_fields
    return [field.alias or name for name, field in fields.items() if getattr(model, name) is not None]


def one_of(model: BaseModel, what: str) -> None:
    """Refuse a model unless exactly one of its keys is set.

    Raises
    ------
    ValueError
        With the names of the keys.
    """
    if len(given(model)) != 1:
        names = ", ".join(field.alias or name for name, field in type(model).model_fields.items())
        raise ValueError(f"{what} needs exactly one of: {names}")


def _open(path: str) -> str:
    if is_url(path) and has_secret(path):
        raise ValueError(
            "the URL has a secret, which logs and the ledger would show: put it where Spark, Arrow and delta-rs find "
            "it, such as the environment of the process"
        )
    return path


Location = Annotated[str, Field(min_length=1), AfterValidator(_open)]
"""A path or a URL, without credentials."""


def _place(path: str) -> str:
    if not is_url(path):
        if escaped := ESCAPED.search(path):
            other = unquote(escaped[0])
            raise ValueError(f"{path!r} has {escaped[0]}, which delta-rs reads as {other!r}: name it without")
        return path
    _open(path)
    rest = path.partition("://")[2].rstrip("/")
    if found := sorted(set("#?%") & set(rest)):
        raise ValueError(
            f"{path!r} has {' and '.join(found)}, which name another place to delta-rs than to Spark and Arrow: write "
            "a URL without them"
        )
    if "//" in rest:
        raise ValueError(f"{path!r} has an empty part: write one slash where it has two")
    return path.rstrip("/")


TablePath = Annotated[str, Field(min_length=1), AfterValidator(_place)]
"""Where a Delta table is: a path, or a URL that means the same to all who read it."""
