"""Reads YAML files that people write: a key that stands twice is a mistake."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

__all__ = ["YamlError", "read"]


class _Loader(yaml.SafeLoader):
    """Leaves dates as text: what is no date is then refused where a date is wanted, with its line."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in found if tag != "tag:yaml.org,2002:timestamp"]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class YamlError(ValueError):
    """A file is not YAML, or has duplicate keys; each argument is one mistake."""


def read(file: Path) -> tuple[Any, Any]:
    """Return the content of a file, and its YAML nodes, which know their lines.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    YamlError
        If it cannot be read, is not YAML, or has a key twice in one mapping: YAML would silently take the last one.
    """
    try:
        text = file.read_text(encoding="utf-8")
        data, tree = yaml.load(text, Loader=_Loader), yaml.compose(text, Loader=_Loader)  # a SafeLoader
    except FileNotFoundError:
        raise
    except UnicodeDecodeError as error:
        line = file.read_bytes()[: error.start].count(b"\n") + 1
        raise YamlError(f"line {line}: this is not UTF-8: save the file as UTF-8") from None
    except (yaml.YAMLError, ValueError, OSError) as error:
        raise YamlError(f"not YAML: {error}") from None
    if doubled := list(_doubled(tree)):
        raise YamlError(*doubled)
    return data, tree


def _doubled(node: Any, above: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield an error for each duplicate key of a mapping."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            here = (*above, str(key.value))
            if key.value in seen:
                yield f"line {key.start_mark.line + 1}: {'.'.join(here)}: this key appears twice; remove one of them"
            seen.add(key.value)
            yield from _doubled(value, here)
    elif isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            yield from _doubled(item, (*above, str(number)))
