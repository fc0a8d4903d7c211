"""Reads pipeline files. Every error names the file, the line, the key and the fix."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pydantic import ValidationError

from sluice.errors import ConfigError
from sluice.home import Home
from sluice.pipeline.defaults import DEFAULTS, defaults_of, under
from sluice.pipeline.mistakes import explain, line_of
from sluice.pipeline.model import Pipeline, model_for
from sluice.pipeline.yaml_file import YamlError, read
from sluice.shipped import CHECKOUT, base

__all__ = [
    "Clash",
    "clash_of",
    "find",
    "load",
    "load_all",
    "name_written",
    "named",
    "pipelines_folder",
    "places",
    "refuse_namesake",
    "relative",
]

_UNTOUCHED = "nothing was read or written"
_SUFFIXES = (".yaml", ".yml")


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
    """Return the file of a pipeline, given by its path, by its file's name or by its own, in any folder of pipelines.

    A file's name comes first, and the folder's own file before those in folders below.

    Raises
    ------
    ConfigError
        If there is none, or more than one; with the names that exist.
    """
    path = Path(name_or_path)
    is_path = path.suffix.lower() in _SUFFIXES
    if is_path and _is_file(path):
        return Path(os.path.abspath(path))
    if is_path and os.path.islink(path):
        raise ConfigError(
            f"{name_or_path} is a link to {os.readlink(path)}, which is not there",
            state=_UNTOUCHED,
            next_step="put the file there, or correct the link",
        )
    folder = _folder() if is_path else pipelines_folder()
    if not is_path and _is_file(folder / f"{name_or_path}.yaml"):
        return folder / f"{name_or_path}.yaml"
    files = _files(folder.rglob("*.yaml"))
    named = [file for file in files if file.stem == name_or_path]
    how = "is called"
    if not named and not is_path:
        named, how = [file for file in files if _name_in(file) == name_or_path], "has the pipeline"
    if len(named) == 1:
        return named[0]
    if named:
        raise ConfigError(
            f"more than one pipeline file {how} {name_or_path!r}",
            state=_UNTOUCHED,
            next_step=f"give one of the files: {', '.join(map(relative, named))}",
        )
    known = sorted({file.stem for file in files} | {name for file in files if (name := _name_in(file)) is not None})
    near = difflib.get_close_matches(name_or_path, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ConfigError(
        f"there is no pipeline {name_or_path!r}",
        state=_UNTOUCHED,
        next_step=f"{hint}known pipelines: {', '.join(known) or 'none'}; or give the path of a .yaml file",
    )


def named(name: str) -> list[Path]:
    """Return the files below the folder of pipelines that give their pipeline this name, valid or not."""
    written = re.compile(rf"^pipeline:\s*['\"]?{re.escape(name)}['\"]?\s*(?:#.*)?$", re.MULTILINE)

    def has(file: Path) -> bool:
        try:
            return file.stem == name or written.search(file.read_text(errors="replace")) is not None
        except OSError:
            return False

    folder = _folder()
    return [file for file in _files(folder.rglob("*.yaml")) if _is_file(file) and has(file)] if folder.is_dir() else []


def refuse_namesake(pipeline: Pipeline) -> None:
    """Refuse a file that gives its pipeline the name of another one, before it carries out anything in that name.

    Raises
    ------
    Clash
        With the file that has the name: the one higher up, else the one that is called like it, valid or not.
    """
    name, own = pipeline.name, Path(os.path.abspath(pipeline.file))
    if not own.is_relative_to(_folder()):
        return
    files = {own, *(file for file in named(name) if name_written(file) == name)}
    owner = min(files, key=lambda file: (len(file.parts), file.stem != name, file))
    if owner != own and not (owner.exists() and owner.samefile(own)):
        raise _namesake(pipeline.file, name, owner)


def name_written(file: Path) -> str:
    """Return the name that a file gives its pipeline, valid or not; without one, the file's own."""
    try:
        found = re.search(r"^pipeline:\s*['\"]?([\w-]+)", file.read_text(errors="replace"), re.MULTILINE)
    except OSError:
        found = None
    return file.stem if found is None else found[1]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long a name, or one with a NUL
        return False


def _files(found: Iterable[Path]) -> list[Path]:
    """Return the pipeline files, those that are higher up first. What begins with a dot is an editor's."""
    files = (file for file in found if file.name != DEFAULTS and not file.name.startswith("."))
    return sorted(files, key=lambda file: (len(file.parts), file))


def _name_in(file: Path) -> str | None:
    """Return the name that a file gives its pipeline, valid or not."""
    try:
        data, _ = read(file)
    except (YamlError, FileNotFoundError):
        return None
    name = data.get("pipeline") if isinstance(data, dict) else None
    return name if isinstance(name, str) else None


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
    except FileNotFoundError:  # it was there a moment ago
        raise _refuse(path, ["the file is gone, or a link to a file that is not there"]) from None
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
        raise _refuse(path, list(explain(error, tree, model, shared))) from None
    pipeline._file = path
    at_home = path.is_relative_to(_folder())
    pipeline._beside, pipeline._called = (_folder().parent, "") if at_home else (None, shlex.quote(str(path)))
    try:
        pipeline._places = known = places(pipeline)
    except ValueError:
        raise _refuse(path, ["the path of a table has a NUL"]) from None
    if pipeline.quarantine is not None and _touch(known["sink"], known["quarantine"]):
        where = line_of(tree, ("quarantine", "delta", "path"))
        raise _refuse(path, [f"{where}quarantine.delta.path: it is, or lies in, the sink: choose another path"])
    if problems := list(_in_the_way(pipeline, tree)) or list(_in_each_other(pipeline, tree)):
        raise _refuse(path, problems)
    suite = pipeline.suite_file
    if suite is not None and not suite.is_file():
        where = line_of(tree, ("quality", "suite"))
        raise _refuse(path, [f"{where}quality.suite: there is no file {relative(suite)}; create it, or fix the path"])
    return pipeline


def load_all(folder: Path | None = None, *, below: bool = False) -> Iterator[tuple[Path, Pipeline | ConfigError]]:
    """Read each file of a folder, by default of :func:`pipelines_folder`; with ``below`` those in folders below, too.

    A bad file yields its error and does not affect the others. One of two files with the same pipeline name, or with
    tables that overlap, is refused: the newcomer, as far as that can be seen. So is a file that is called like another
    one's pipeline, and one that looks like a pipeline's and ends in ``.yml`` or ``.YAML``.
    """
    root = folder or pipelines_folder()
    every = root.rglob if below else root.glob
    others = (path for path in every("*.[yY]*[mM][lL]") if path.suffix != ".yaml" and path.suffix.lower() in _SUFFIXES)
    yield from ((path, _misnamed(path)) for path in sorted(others) if _is_meant(path))
    found = [(path, _loaded(path)) for path in _files(every("*.yaml"))]
    owners = _owners([item for _, item in found if isinstance(item, Pipeline)])
    clashes = _clashes(list(owners.values()))
    for path, item in found:
        if isinstance(item, ConfigError):
            yield path, item
        elif (owner := owners[item.name]) is not item:
            yield path, _namesake(path, item.name, owner.file)
        elif path.stem != item.name and path.stem in owners:
            other = relative(owners[path.stem].file)
            problem = f"its pipeline is {item.name!r}, and {path.stem!r} is that of {other}"
            yield path, _clash(path, f"{problem}: call each file after its pipeline")
        else:
            yield path, clashes.get(path, item)


def _owners(pipelines: Iterable[Pipeline]) -> dict[str, Pipeline]:
    """Return to whom each name belongs: of two to the one higher up, else to the one whose file is called like it."""
    owners: dict[str, Pipeline] = {}
    for pipeline in sorted(pipelines, key=lambda p: (len(p.file.parts), p.file.stem != p.name)):
        owners.setdefault(pipeline.name, pipeline)
    return owners


def _clashes(pipelines: Sequence[Pipeline]) -> dict[Path, Clash]:
    """Return the error of each whose tables overlap those of another; of two, the one that has run keeps its tables."""

    def refused(order: Iterable[Pipeline]) -> dict[Path, Clash]:
        found, taken = dict[Path, Clash](), _Taken()
        for pipeline in order:
            if (clash := taken.clash_of(pipeline)) is not None:
                found[pipeline.file] = clash
            else:
                taken.add(pipeline)
        return found

    first = refused(pipelines)
    return refused(sorted(pipelines, key=lambda p: not _has_run(p))) if first else first


def _has_run(pipeline: Pipeline) -> bool:
    return os.path.isdir(os.path.dirname(Home.from_env().checkpoint(pipeline.name, 0)))


def clash_of(pipeline: Pipeline, others: Iterable[Pipeline]) -> Clash | None:
    """Return the error of a pipeline whose name another file has, or whose tables overlap those of others.

    Two files with one name would share ledger, checkpoint and lease. Two pipelines in one table would replace, redrive
    and validate each other's rows. If a table is within the folder of another one, a ``VACUUM`` of the outer table
    removes files of the inner one.
    """
    taken = _Taken()
    for other in others:
        if other.name != pipeline.name:
            taken.add(other)
        elif os.path.realpath(other.file) != os.path.realpath(pipeline.file):
            return _namesake(pipeline.file, pipeline.name, other.file)
    return taken.clash_of(pipeline)


class _Taken:
    """The places of tables, by their paths and by each folder above them: a look-up costs the same among thousands."""

    def __init__(self) -> None:
        self._at: dict[str, tuple[str, Pipeline]] = {}
        self._below: dict[str, tuple[str, Pipeline]] = {}

    def add(self, pipeline: Pipeline) -> None:
        for whose, place in places(pipeline).items():
            self._at.setdefault(place, (whose, pipeline))
            for folder in _above(place):
                self._below.setdefault(folder, (whose, pipeline))

    def clash_of(self, pipeline: Pipeline) -> Clash | None:
        for what, place in places(pipeline).items():
            around = (self._at[folder] for folder in _above(place) if folder in self._at)
            if (same := self._at.get(place)) is not None:
                how, (whose, other) = "is", same
            elif (near := next(around, self._below.get(place))) is not None:
                how, (whose, other) = "lies in, or around,", near
            else:
                continue
            if what.startswith("also"):
                key, what = _dotted(_key_of(pipeline, what)), "place"
            else:
                key = "sink.delta.path" if pipeline.sink.kind.delta else f"sink.{pipeline.sink.key}"
            problem = f"{key}: its {what} {how} the {whose} of {relative(other.file)}"
            return _clash(pipeline.file, f"{problem} (pipeline {other.name!r}): choose another path")
        return None


def _above(place: str) -> Iterator[str]:
    """Yield the folders that a place lies in, the nearest first; of a URL, down to its bucket or host."""
    while "/" in place.partition("://")[2] or ("://" not in place and place):
        place = place.rpartition("/")[0]
        yield place


def _touch(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}/") or other.startswith(f"{one}/")


def places(pipeline: Pipeline) -> dict[str, str]:
    """Return the paths and URLs of the tables and staged files of a pipeline, by what they are."""
    if pipeline._places is not None:
        return pipeline._places
    home = Home.from_env()
    paths = {"sink": pipeline.sink.config.location_of(pipeline.name), "quarantine": pipeline.quarantine_path}
    paths |= {f"also[{n}]": sink.config.location_of(pipeline.name) for n, sink in enumerate(pipeline.also)}
    return {what: _real(home.resolve(path)) for what, path in paths.items()}


def _real(path: str) -> str:
    """Return one spelling of a path or URL for all that name the same place."""
    scheme, is_url, rest = path.partition("://")
    scheme = scheme.lower()
    if is_url and scheme != "file":
        return f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{rest}".rstrip("/")
    return os.path.realpath(f"/{rest.removeprefix('localhost').lstrip('/')}" if is_url else path).rstrip("/")


_OWN = ("checkpoints", "logs", "quality", "sources", "jars", "jvm")
"""The folders in ``SLUICE_HOME`` that are no table's."""


def _in_the_way(pipeline: Pipeline, tree: Any) -> Iterator[str]:
    """Yield a message for each table that would lie in, or around, what Sluice itself keeps."""
    home = Home.from_env()
    root = _real(home.root)
    own = {_real(home.join(name)) for name in _OWN}
    if home.ledger_url.startswith("sqlite:///"):
        own.add(_real(unquote(home.ledger_url.removeprefix("sqlite:///").partition("?")[0])))
    read = [_real(home.resolve(path)) for path in pipeline.source.config.folders]
    for what, place in places(pipeline).items():
        if any(_touch(place, path) for path in read):
            how = "is, or lies in or around, a folder of the source"
        elif f"{root}/".startswith(f"{place}/"):
            how = "is SLUICE_HOME, or around it"
        elif (near := next((path for path in sorted(own) if _touch(place, path)), None)) is not None:
            how = f"is, or lies in or around, {near}, which Sluice keeps for itself"
        else:
            continue
        if what == "quarantine" and pipeline.quarantine is None:
            how += " (it is beside the sink, by default)"
        key = _key_of(pipeline, what)
        yield f"{line_of(tree, key)}{_dotted(key)}: {place or '/'} {how}: choose another path"


def _in_each_other(pipeline: Pipeline, tree: Any) -> Iterator[str]:
    """Yield a message for each further sink that lies in, or around, another table of the pipeline."""
    known = places(pipeline)
    for what, place in known.items():
        if not what.startswith("also"):
            continue
        other = next((name for name, its in known.items() if name != what and _touch(place, its)), None)
        if other is not None:
            key = _key_of(pipeline, what)
            yield f"{line_of(tree, key)}{_dotted(key)}: it is, or lies in or around, the {other}: choose another path"


def _key_of(pipeline: Pipeline, what: str) -> tuple[str | int, ...]:
    """Return where the file names a place of :func:`places`."""
    if what == "quarantine":
        return "quarantine", "delta", "path"
    if what == "sink":
        return "sink", pipeline.sink.key, "path"
    number = int(what.removeprefix("also[").removesuffix("]"))
    return "also", number, pipeline.also[number].key, "path"


def _dotted(key: Iterable[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).removeprefix(".")


class Clash(ConfigError):
    """A file that is valid by itself, and not beside another one."""


def _clash(path: Path, problem: str) -> Clash:
    error = _refuse(path, [problem])
    return Clash(error.what, state=error.state, next_step=error.next_step)


def _namesake(path: Path, name: str, owner: Path) -> Clash:
    taken = f"pipeline: {name!r} is the name of {relative(owner)} already"
    return _clash(path, f"{taken}: one of them needs another name, since ledger and checkpoint go by it")


def _loaded(path: Path) -> Pipeline | ConfigError:
    try:
        return load(path)
    except ConfigError as error:
        return error
    except Exception as error:  # one file must not take the others with it
        return _refuse(path, [f"it cannot be read: {type(error).__name__}: {str(error)[:200]}"])


def _is_meant(path: Path) -> bool:
    """Return whether a file with another ending looks like one of Sluice's."""
    return path.stem == Path(DEFAULTS).stem or _name_in(path) is not None


def _misnamed(path: Path) -> ConfigError:
    name = relative(path)
    return ConfigError(
        f"{name} is not read: the names of pipeline files, and of {DEFAULTS}, end in .yaml",
        state=_UNTOUCHED,
        next_step=shlex.join(["mv", name, str(Path(name).with_suffix(".yaml"))]),
    )


def relative(path: Path) -> str:
    """Return a file's path for messages: relative to the checkout if the file is in it."""
    return str(path.relative_to(CHECKOUT)) if CHECKOUT and path.is_relative_to(CHECKOUT) else str(path)


def _refuse(path: Path, problems: list[str]) -> ConfigError:
    name = relative(path)
    lines = "\n".join(f"  {problem}" for problem in problems)
    return ConfigError(
        f"{name} is not a valid pipeline:\n{lines}",
        state=_UNTOUCHED,
        next_step=f"fix it, then: sluice validate-spec {shlex.quote(name)}",
    )
