"""Reads pipeline files. Every error names the file, the line, the key and the fix."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sluice.errors import ConfigError
from sluice.home import Home
from sluice.pipeline.defaults import DEFAULTS, defaults_of, under
from sluice.pipeline.model import Pipeline, model_for
from sluice.pipeline.yaml_file import YamlError, read
from sluice.shipped import CHECKOUT, base

__all__ = ["clash_of", "find", "load", "load_all", "pipelines_folder", "relative"]

_UNTOUCHED = "nothing was read or written"


def pipelines_folder() -> Path:
    """Return the folder of pipeline files: ``SLUICE_PIPELINES``, by default ``include/pipelines``.

    Relative to the checkout; without one, to the working directory. Suites are looked up beside this folder.

    Raises
    ------
    ConfigError
        If there is no such folder.
    """
    folder = _folder()
    if not folder.is_dir():
        raise ConfigError(
            f"there is no folder of pipelines: {folder}",
            state=_UNTOUCHED,
            next_step="set SLUICE_PIPELINES to the folder of the pipeline files, the same one for every component",
        )
    return folder


def _folder() -> Path:
    return Path(os.path.abspath(base() / (os.environ.get("SLUICE_PIPELINES") or "include/pipelines")))


def find(name_or_path: str) -> Path:
    """Return the file of a pipeline, given by its path or by its file name in any folder below the pipelines' folder.

    Raises
    ------
    ConfigError
        If there is none, or more than one; with the names that exist.
    """
    path = Path(name_or_path)
    is_path = path.suffix in (".yaml", ".yml")
    if is_path and path.is_file():
        return Path(os.path.abspath(path))
    folder = _folder() if is_path else pipelines_folder()
    if not is_path and (folder / f"{name_or_path}.yaml").is_file():
        return folder / f"{name_or_path}.yaml"
    files = _files(folder.rglob("*.yaml"))
    named = [file for file in files if file.stem == name_or_path]
    if len(named) == 1:
        return named[0]
    if named:
        raise ConfigError(
            f"more than one pipeline file is called {name_or_path!r}",
            state=_UNTOUCHED,
            next_step=f"give one of the files: {', '.join(map(relative, named))}",
        )
    known = sorted({file.stem for file in files})
    near = difflib.get_close_matches(name_or_path, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ConfigError(
        f"there is no pipeline {name_or_path!r}",
        state=_UNTOUCHED,
        next_step=f"{hint}known pipelines: {', '.join(known) or 'none'}; or give the path of a .yaml file",
    )


def _files(found: Iterable[Path]) -> list[Path]:
    return sorted(file for file in found if file.name != DEFAULTS)


def load(name_or_path: str | Path) -> Pipeline:
    """Read one pipeline.

    Raises
    ------
    ConfigError
        With every mistake in the file in one message.
    """
    path = find(str(name_or_path))
    try:
        data, tree = read(path)
    except YamlError as error:
        raise _refuse(path, list(error.args)) from None
    except FileNotFoundError as error:  # it was there a moment ago
        raise _refuse(path, [f"not YAML: {error}"]) from None
    if not isinstance(data, dict):
        raise _refuse(path, ["expected a mapping with the keys pipeline, source, decode, sink"])
    try:
        shared = defaults_of(path)
    except YamlError as error:
        raise _refuse(path, [f"{DEFAULTS}: {mistake}" for mistake in error.args]) from None
    data = under(data, shared)
    try:
        model = model_for(data)
    except ConfigError as error:
        raise _refuse(path, [error.what]) from error
    try:
        pipeline = model.model_validate(data)
    except ValidationError as error:
        raise _refuse(path, list(_explain(error, tree, model, shared))) from None
    pipeline._file = path
    pipeline._places = places = _places(pipeline)
    if pipeline.quarantine is not None and _touch(places["sink"], places["quarantine"]):
        where = _place(tree, ("quarantine", "delta", "path"))
        raise _refuse(path, [f"{where}quarantine.delta.path: it is, or lies in, the sink: choose another path"])
    if problems := list(_in_the_way(pipeline, tree)):
        raise _refuse(path, problems)
    suite = pipeline.suite_file
    if suite is not None and not suite.is_file():
        where = _place(tree, ("quality", "suite"))
        raise _refuse(path, [f"{where}quality.suite: there is no file {relative(suite)}; create it, or fix the path"])
    return pipeline


def load_all(folder: Path | None = None) -> Iterator[tuple[Path, Pipeline | ConfigError]]:
    """Read each file of a folder, by default of :func:`pipelines_folder`.

    A bad file yields its error and does not affect the others. If two files have the same pipeline name, or tables that
    overlap, the second is refused.
    """
    owners: dict[str, Path] = {}
    taken = _Taken()
    for path in _files((folder or pipelines_folder()).glob("*.yaml")):
        try:
            pipeline = load(path)
        except ConfigError as error:
            yield path, error
            continue
        owner = owners.setdefault(pipeline.name, path)
        if owner != path:
            yield path, _refuse(path, [f"pipeline: {pipeline.name!r} is the name of {owner.name} already"])
        elif (clash := taken.clash_of(pipeline)) is not None:
            yield path, clash
        else:
            taken.add(pipeline)
            yield path, pipeline


def clash_of(pipeline: Pipeline, others: Iterable[Pipeline]) -> ConfigError | None:
    """Return the error of a pipeline whose tables overlap those of others; None if they do not.

    Two pipelines in one table would replace, redrive and validate each other's rows. If a table is within the folder of
    another one, a ``VACUUM`` of the outer table removes files of the inner one.
    """
    taken = _Taken()
    for other in others:
        if other.name != pipeline.name:  # otherwise it is the same one
            taken.add(other)
    return taken.clash_of(pipeline)


class _Taken:
    """The places of tables, by their paths and by each folder above them: a look-up costs the same among thousands."""

    def __init__(self) -> None:
        self._at: dict[str, tuple[str, Pipeline]] = {}
        self._below: dict[str, tuple[str, Pipeline]] = {}

    def add(self, pipeline: Pipeline) -> None:
        for whose, place in _places(pipeline).items():
            self._at.setdefault(place, (whose, pipeline))
            for folder in _above(place):
                self._below.setdefault(folder, (whose, pipeline))

    def clash_of(self, pipeline: Pipeline) -> ConfigError | None:
        for what, place in _places(pipeline).items():
            around = (self._at[folder] for folder in _above(place) if folder in self._at)
            if (same := self._at.get(place)) is not None:
                how, (whose, other) = "is", same
            elif (near := next(around, self._below.get(place))) is not None:
                how, (whose, other) = "lies in, or around,", near
            else:
                continue
            problem = f"sink.delta.path: its {what} {how} the {whose} of {relative(other.file)}"
            return _refuse(pipeline.file, [f"{problem} (pipeline {other.name!r}): choose another path"])
        return None


def _above(place: str) -> Iterator[str]:
    """Yield the folders that a place lies in, the nearest first; of a URL, down to its bucket or host."""
    while "/" in place.partition("://")[2] or ("://" not in place and place):
        place = place.rpartition("/")[0]
        yield place


def _touch(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")


def _places(pipeline: Pipeline) -> dict[str, str]:
    if pipeline._places is not None:
        return pipeline._places
    home = Home.from_env()
    paths = {"sink": pipeline.sink.config.path, "quarantine": pipeline.quarantine_path}
    return {what: _real(home.resolve(path)) for what, path in paths.items()}


def _real(path: str) -> str:
    """Return one spelling of a path or URL for all that name the same place."""
    scheme, is_url, rest = path.partition("://")
    scheme = scheme.lower()
    if is_url and scheme != "file":
        return f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{rest}".rstrip("/")
    return os.path.realpath(f"/{rest.removeprefix('localhost').lstrip('/')}" if is_url else path).rstrip("/")


_OWN = ("checkpoints", "logs", "quality", "jars", "jvm")
"""The folders in ``SLUICE_HOME`` that are no table's."""


def _in_the_way(pipeline: Pipeline, tree: Any) -> Iterator[str]:
    """Yield a message for each table that would lie in, or around, what Sluice itself keeps."""
    home = Home.from_env()
    root = _real(home.root)
    own = {_real(home.join(name)) for name in _OWN}
    if home.ledger_url.startswith("sqlite:///"):
        own.add(_real(home.ledger_url.removeprefix("sqlite:///").partition("?")[0]))
    keys = {"sink": ("sink", pipeline.sink.key, "path"), "quarantine": ("quarantine", "delta", "path")}
    for what, place in _places(pipeline).items():
        if f"{root}/".startswith(f"{place}/"):
            how = "is SLUICE_HOME, or around it"
        elif (near := next((path for path in sorted(own) if _touch(place, path)), None)) is not None:
            how = f"is, or lies in or around, {near}, which Sluice keeps for itself"
        else:
            continue
        if what == "quarantine" and pipeline.quarantine is None:
            how += " (it is beside the sink, by default)"
        yield f"{_place(tree, keys[what])}{'.'.join(keys[what])}: {place or '/'} {how}: choose another path"


def relative(path: Path) -> str:
    """Return a file's path for messages: relative to the checkout if the file is in it."""
    return str(path.relative_to(CHECKOUT)) if CHECKOUT and path.is_relative_to(CHECKOUT) else str(path)


def _refuse(path: Path, problems: list[str]) -> ConfigError:
    name = relative(path)
    lines = "\n".join(f"  {problem}" for problem in problems)
    return ConfigError(
        f"{name} is not a valid pipeline:\n{lines}",
        state=_UNTOUCHED,
        next_step=f"fix it, then: sluice validate-spec {name}",
    )


def _place(tree: Any, loc: Sequence[str | int]) -> str:
    """Return ``line N: `` for the YAML node that is nearest to a location."""
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
            break
        node = child
    return f"line {line}: " if line else ""


def _fields_at(loc: Sequence[str | int], top: type[BaseModel]) -> list[str]:
    """Return the keys that the model accepts at ``loc``."""
    model: type[BaseModel] | None = top
    for part in loc:
        if model is None:
            return []
        fields = {f.alias or n: f for n, f in model.model_fields.items()}
        field = fields.get(str(part))
        if field is None:
            continue  # a union's tag, not a key
        kinds = getattr(field.annotation, "__args__", None) or (field.annotation,)
        models = [k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)]
        model = models[0] if models else None
    return [f.alias or n for n, f in model.model_fields.items()] if model else []


def _explain(
    error: ValidationError, tree: Any, model: type[BaseModel], shared: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[str]:
    seen: set[str] = set()
    for detail in error.errors():
        if detail["type"] == "literal_error" and isinstance(detail.get("input"), dict):
            continue  # the other arm of a union whose mapping arm says more
        line = _line(detail, tree, model)
        if _has(shared, detail["loc"]) and not _place(tree, detail["loc"][:1]):
            line = f"{DEFAULTS}: {line}"
        if line not in seen:
            seen.add(line)
            yield line


def _has(mapping: Any, loc: Sequence[str | int]) -> bool:
    return isinstance(mapping, Mapping) and bool(loc) and loc[0] in mapping


def _line(detail: ErrorDetails, tree: Any, model: type[BaseModel]) -> str:
    loc = [p for p in detail["loc"] if p not in ("Schedule",) and not str(p).startswith("literal[")]
    key = ".".join(str(p) for p in loc)
    where = _place(tree, loc)
    if detail["type"] == "extra_forbidden":
        allowed = _fields_at(loc[:-1], model)
        near = difflib.get_close_matches(str(loc[-1]), allowed, n=1, cutoff=0.5)
        fix = f"did you mean {near[0]!r}?" if near else f"the keys here are: {', '.join(allowed)}"
        return f"{where}{key}: unknown key; {fix}"
    if detail["type"] == "missing":
        return f"{where}{key}: this key is required"
    message = detail["msg"].removeprefix("Value error, ")
    given = detail.get("input")
    shown = f" (given: {given!r})" if isinstance(given, str | int | float | bool) and repr(given) not in message else ""
    return f"{where}{key}: {message}{shown}"
