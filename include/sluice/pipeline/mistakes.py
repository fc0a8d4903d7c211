"""What is wrong with a pipeline file, in words for those who write it: place, key, mistake and fix."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sluice.pipeline.defaults import DEFAULTS
from sluice.storage import has_secret

__all__ = ["explain", "line_of", "said"]

_KEY = re.compile(r"^[a-z_]+(\.[a-z_]+)*(?=[: ])")
"""The key with which the message about a whole file begins."""

_BOUNDS = {
    "greater_than": ("gt", "must be more than"),
    "greater_than_equal": ("ge", "must be at least"),
    "less_than": ("lt", "must be less than"),
    "less_than_equal": ("le", "must be at most"),
}

_LONGEST = 60
"""Characters of a value that a message repeats."""


def line_of(tree: Any, loc: Sequence[str | int]) -> str:
    """Return ``line N: `` for the YAML node that is nearest to a location; an empty text if there is none."""
    line = _found(tree, loc)[0]
    return f"line {line}: " if line else ""


def _found(tree: Any, loc: Sequence[str | int]) -> tuple[int | None, bool]:
    """Return the line of the YAML node that is nearest to a location, and whether it is there itself."""
    node, line = tree, None
    for part in loc:
        child = None
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(part):
                    child, line = value, key.start_mark.line + 1
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            child = node.value[part]
            line = child.start_mark.line + 1
        if child is None:
            return line, False
        node = child
    return line, True


def _keys(loc: Sequence[str | int]) -> list[str | int]:
    """Return a location without what pydantic adds to it for unions and keys."""
    return [part for part in loc if part not in ("Schedule", "[key]") and not str(part).startswith("literal[")]


def _has(shared: Any, loc: Sequence[str | int]) -> bool:
    """Return whether the defaults have a value at a location."""
    for part in loc:
        here = shared if isinstance(shared, Mapping) else dict(enumerate(shared)) if isinstance(shared, list) else {}
        if part not in here:
            return False
        shared = here[part]
    return bool(loc)


def explain(
    error: ValidationError, tree: Any, model: type[BaseModel], shared: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[str]:
    """Yield one line for each mistake in a file.

    Parameters
    ----------
    tree
        The YAML nodes of the file.
    model
        The model that refused it.
    shared
        What ``_defaults.yaml`` says for it.
    """
    seen: set[str] = set()
    details = error.errors()
    places = [detail["loc"] for detail in details]
    for detail in details:
        loc = detail["loc"]
        if detail["type"] == "literal_error" and isinstance(detail.get("input"), dict):
            continue  # the other arm of a union whose mapping arm says more
        if detail["type"] == "too_short" and any(len(at) > len(loc) and at[: len(loc)] == loc for at in places):
            continue  # its elements were refused, so none was left
        line = _line(detail, tree, model)
        place = _keys(loc) or _named(detail)
        if _has(shared, place) and not _found(tree, place)[1]:
            line = f"{DEFAULTS}: {line.removeprefix(line_of(tree, place))}"
        if line not in seen:
            seen.add(line)
            yield line


def said(detail: ErrorDetails, keys: Sequence[str] = ()) -> str:
    """Return what is wrong with a value, and what is wanted, for a user who does not know pydantic.

    Parameters
    ----------
    keys
        The keys that a mapping at this place may have.
    """
    given, kind = detail.get("input"), detail["type"]
    wanted, fix = _wanted(detail, keys)
    if wanted:
        if given is None:
            return f"nothing is given, and {wanted} is expected: give it, or leave the key out"
        return f"expected {wanted}, not {_called(given)}{fix}"
    if given is None and kind == "value_error":
        return "nothing is given: give a value, or leave the key out"
    message = detail["msg"].removeprefix("Value error, ")
    if kind in ("too_short", "string_too_short"):
        message = "is empty: give at least one, or leave the key out" if kind == "too_short" else "is empty"
    elif kind == "string_too_long":
        message = f"has more than {(detail.get('ctx') or {}).get('max_length'):,} characters"
    elif kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        message = f"{words} {(detail.get('ctx') or {}).get(name)}"
    scalar = isinstance(given, int | float | bool) or (isinstance(given, str) and 0 < len(given) <= _LONGEST)
    scalar = scalar and not has_secret(str(given))
    return f"{message} (given: {given!r})" if scalar and repr(given) not in message else message


def _wanted(detail: ErrorDetails, keys: Sequence[str]) -> tuple[str, str]:
    """Return what belongs in place of a value, and how it is fixed; empty texts if its kind is not the mistake."""
    given = detail.get("input")
    match detail["type"]:
        case "model_type" | "model_attributes_type" | "dict_type":
            return "a mapping", f"; the keys here are: {', '.join(keys)}" if keys else ""
        case "tuple_type" | "list_type" | "set_type":
            return "a list", f": write [{given}]" if isinstance(given, str | int | float) else ""
        case "string_type":
            if isinstance(given, bool):
                return "text", " (to YAML, yes, on, no and off mean true and false)"
            return "text", f": write '{given}', with the quotes" if isinstance(given, int | float) else ""
        case "int_type" | "int_parsing" | "int_from_float":
            digits = re.sub(r"[\s_,']", "", given) if isinstance(given, str) else ""
            return "a whole number", f": write {digits}" if digits.isdecimal() else ""
        case "float_type" | "float_parsing":
            return "a number", ""
        case "bool_type" | "bool_parsing":
            return "true or false", ""
        case "invalid_key":
            return "a key that is text", ": put it in quotes"
        case "literal_error" | "enum":
            choices = str((detail.get("ctx") or {}).get("expected"))
            known = re.findall(r"'([^']*)'", choices)
            near = difflib.get_close_matches(given.lower(), known, n=1) if isinstance(given, str) else []
            return choices, f": did you mean {near[0]!r}?" if near else ""
        case kind if kind.startswith(("date_", "datetime_")):
            return "a date, such as 2024-01-31", ""
    return "", ""


def _called(given: Any) -> str:
    match given:
        case dict():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case bool():
            return str(given).lower()
    return repr(given)


def _line(detail: ErrorDetails, tree: Any, model: type[BaseModel]) -> str:
    loc = _keys(detail["loc"])
    key = ".".join(str(p) for p in loc)
    if detail["type"] == "extra_forbidden":
        return f"{line_of(tree, loc)}{key}: unknown key; {_other_key(loc, model)}"
    if detail["type"] == "missing":
        return f"{line_of(tree, loc)}{key}: this key is required"
    message = said(detail, _fields_at(loc, model))
    if not loc:
        place = _named(detail)
        return f"{line_of(tree, place) if place else ''}{message}"
    return f"{line_of(tree, loc)}{key}: {message}"


def _named(detail: ErrorDetails) -> list[str | int]:
    """Return the key that a message about several keys begins with: the one to look at."""
    found = _KEY.match(detail["msg"].removeprefix("Value error, "))
    return [*found[0].split(".")] if found else []


def _other_key(loc: Sequence[str | int], model: type[BaseModel]) -> str:
    """Return the fix for an unknown key: the key that was meant, or where it belongs, or what may stand there."""
    name, allowed = str(loc[-1]), _fields_at(loc[:-1], model)
    lowered = {key.lower(): key for key in reversed(allowed)}

    def near(cutoff: float) -> str | None:
        found = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=cutoff)
        return f"did you mean {lowered[found[0]]!r}?" if found else None

    elsewhere = list(_homes_of(name, model))
    if (meant := near(0.8)) is None and elsewhere:
        return f"it belongs below {' or '.join(elsewhere)}"
    return meant or near(0.6) or f"the keys here are: {', '.join(allowed)}"


def _homes_of(key: str, model: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the sections, at any depth, that have a key of this name."""
    for name, below in _sections(model):
        here = (*above, name)
        if key in _names(below):
            yield ".".join(here)
        yield from _homes_of(key, below, here)


def _sections(model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in model.model_fields.items():
        kinds = getattr(field.annotation, "__args__", None) or (field.annotation,)
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield field.alias or name, kind


def _names(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _fields_at(loc: Sequence[str | int], top: type[BaseModel]) -> list[str]:
    """Return the keys that the model accepts at ``loc``."""
    model: type[BaseModel] | None = top
    for part in loc:
        if model is None:
            return []
        if str(part) in _names(model):  # otherwise it is an element's number
            model = dict(reversed(list(_sections(model)))).get(str(part))
    return _names(model) if model else []
