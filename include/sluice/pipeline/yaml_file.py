"""Reads YAML files that people write: a key that stands twice is a mistake."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

__all__ = ["YamlError", "read"]


_LARGEST, _DEEPEST, _MOST = 1 << 20, 100, 100_000
"""Bytes, levels and values of a file."""
_TAG = "tag:yaml.org,2002:"
_CORE = {
    f"{_TAG}bool": re.compile("(?:true|True|TRUE|false|False|FALSE)$"),
    f"{_TAG}int": re.compile("[-+]?[0-9]+$"),
    f"{_TAG}float": re.compile(
        r"(?:[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.inf|\.nan)$"
    ),
}
"""Values as YAML 1.2 has them: of YAML 1.1, ``no`` is false, ``010`` is 8 and ``1:30`` is 90."""


class _Whole(int):
    """A whole number that is shown as the file has it."""

    text: str

    def __repr__(self) -> str:
        return self.text


class _Decimal(float):
    """A number that is shown as the file has it."""

    text: str

    def __repr__(self) -> str:
        return self.text


class _Loader(yaml.SafeLoader):
    """Leaves dates as text: a wrong date is then refused where a date is wanted, with its line."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, _CORE.get(tag, pattern)) for tag, pattern in found if tag != f"{_TAG}timestamp"]
        for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def _text(self, node: yaml.ScalarNode) -> str:
        """Return a text; JSON writes a character beyond 16 bits as two escapes, which YAML reads as two characters."""
        text = str(self.construct_scalar(node))
        try:
            return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise YamlError(f"line {node.start_mark.line + 1}: this is no text: it has half a character") from None

    def _whole(self, node: yaml.ScalarNode) -> int:
        text = str(self.construct_scalar(node))
        found = _Whole(text)
        found.text = text
        return found

    def _decimal(self, node: yaml.ScalarNode) -> float:
        text = str(self.construct_scalar(node))
        found = _Decimal(text.replace(".inf", "inf").replace(".nan", "nan"))
        found.text = text
        return found


for _name, _maker in (("str", _Loader._text), ("int", _Loader._whole), ("float", _Loader._decimal)):
    _Loader.add_constructor(f"{_TAG}{_name}", _maker)


class _FastLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same by libyaml, if PyYAML was built with it. It takes a tenth of the time, and recurs without a limit."""

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


class YamlError(ValueError):
    """A file is not YAML, or has duplicate keys; each argument is one mistake."""


def read(file: Path) -> tuple[Any, Any]:
    """Return the content of a file, and its YAML nodes, which know their lines.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    YamlError
        If it cannot be read, is not YAML, has a key twice in one mapping (YAML would silently take the last one), or is
        larger or deeper than any pipeline file is, as by aliases of aliases.
    """
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):
            raise YamlError("it is no file: a folder, or a pipe that would be waited for")
        if found.st_size > _LARGEST:
            raise YamlError(f"it is larger than {_LARGEST:,} bytes, which no pipeline file is")
        text = file.read_text(encoding="utf-8")
        _refuse_brackets(text)
        tree = _composed(text)
        _refuse_size(tree)
        data = None if tree is None else _Loader("").construct_document(tree)
    except RecursionError:
        raise YamlError(f"it is nested deeper than {_DEEPEST} levels") from None
    except (FileNotFoundError, YamlError):
        raise
    except UnicodeDecodeError as error:
        line = file.read_bytes()[: error.start].count(b"\n") + 1
        raise YamlError(f"line {line}: this is not UTF-8: save the file as UTF-8") from None
    except yaml.MarkedYAMLError as error:
        raise YamlError(_no_yaml(error)) from None
    except OSError as error:
        raise YamlError(f"it cannot be read: {error.strerror or error}") from None
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise YamlError(f"not YAML: {error}") from None
    if doubled := list(_doubled(tree)):
        raise YamlError(*doubled)
    return data, tree


def _composed(text: str) -> Any:
    """Return the nodes of a text. If it is no YAML, or too deep for libyaml, PyYAML's own parser decides."""
    depth = 0
    try:
        for event in yaml.parse(text, Loader=_FastLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                break
        else:
            return yaml.compose(text, Loader=_FastLoader)
    except yaml.YAMLError:
        pass  # in the words that people know
    return yaml.compose(text, Loader=_Loader)  # a SafeLoader


def _refuse_brackets(text: str) -> None:
    """Refuse a text with hundreds of open brackets, for which PyYAML needs the square of their number in time."""
    depth = 0
    for bracket in re.findall(r"[\[{\]}]", text):
        depth = depth + 1 if bracket in "[{" else max(0, depth - 1)
        if depth > 5 * _DEEPEST:  # some may stand in quotes
            raise YamlError(f"it is nested deeper than {_DEEPEST} levels")


def _refuse_size(tree: Any) -> None:
    """Refuse a tree that is too deep or, with each alias written out, too large."""
    sizes: dict[int, int] = {}

    def size(node: Any, depth: int) -> int:
        if depth > _DEEPEST:
            line = node.start_mark.line + 1
            raise YamlError(f"line {line}: it is nested deeper than {_DEEPEST} levels, or an alias contains itself")
        if id(node) not in sizes:
            parts = node.value if isinstance(node, yaml.CollectionNode) else ()
            inner = (each for part in parts for each in (part if isinstance(part, tuple) else (part,)))
            sizes[id(node)] = 1 + sum(size(each, depth + 1) for each in inner)
            if sizes[id(node)] > _MOST:
                raise YamlError(f"line {node.start_mark.line + 1}: its aliases make it more than {_MOST:,} values")
        return sizes[id(node)]

    if tree is not None:
        size(tree, 0)


def _no_yaml(error: yaml.MarkedYAMLError) -> str:
    """Return the mistake in one line, with the usual fix."""
    mark = error.problem_mark or error.context_mark
    what = " ".join(part for part in (error.context and f"{error.context},", error.problem) if part)
    where = f"line {mark.line + 1}: " if mark else ""
    fix = ""
    if r"'\t'" in what:
        fix = ": indent with spaces, not with tabs"
    elif "alias" in what or "anchor" in what or "that cannot start any token" in what:
        fix = ": put a value that begins with such a character (* & @ ` %) in quotes"
    elif "mapping values are not allowed here" in what:
        fix = ": put text that holds a colon in quotes, or fix the indentation"
    return f"{where}not YAML: {what}{fix}"


def _doubled(node: Any, above: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield an error for each duplicate key of a mapping."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            here = (*above, str(key.value))
            if here[-1] in seen:
                yield f"line {key.start_mark.line + 1}: {'.'.join(here)}: this key appears twice; remove one of them"
            seen.add(here[-1])
            yield from _doubled(value, here)
    elif isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            yield from _doubled(item, (*above, str(number)))
