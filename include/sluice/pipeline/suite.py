"""The file of a Great Expectations suite, checked as far as possible without importing Great Expectations."""

from __future__ import annotations

import contextlib
import difflib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from sluice.errors import ConfigError
from sluice.pipeline.load import relative
from sluice.pipeline.mistakes import line_of
from sluice.pipeline.model import Pipeline
from sluice.pipeline.quality import Quality

__all__ = ["SCOPES", "SEVERITIES", "UNASKED", "Suite", "missing_columns", "nearest", "place", "with_lines"]

SEVERITIES = ("critical", "warning", "info")
SCOPES = ("slice", "table")
"""Values of an expectation's ``meta.scope``: the rows of the run (the default), or the whole table."""
UNASKED = "it could split rows, and neither quality.split nor its meta.split says so"
"""Why an expectation does not split rows, if it was not asked to."""

_SUITE_KEYS = ("name", "expectations", "meta", "notes", "id", "data_asset_type", "suite_parameters")
_KEYS = (
    "type", "kwargs", "severity", "meta", "notes", "description", "id",
    "rendered_content", "success_on_last_run", "expectation_context",  # Great Expectations writes them
)  # fmt: skip
_BESIDE = ("severity", "meta", "notes", "description", "id", "type", "rendered_content")
"""Keys that belong beside ``kwargs``. Great Expectations silently accepts them within ``kwargs``, too."""

_PLACE = re.compile(r"expectation ([0-9]+)")
_COLUMNS = ("column", "column_A", "column_B")
_COLUMN_LISTS = ("column_list", "column_set")


@dataclass(frozen=True)
class Suite:
    """A suite's name and expectations, each with ``type``, ``kwargs`` and optionally ``severity`` and ``meta``."""

    file: Path
    name: str
    expectations: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, pipeline: Pipeline) -> Suite | None:
        """Read the suite of a pipeline; None if the pipeline has none.

        Raises
        ------
        ConfigError
            If the file is not a suite; with every mistake that can be found without Great Expectations.
        """
        file = pipeline.suite_file
        if file is None:
            return None
        suite, problems = cls.read(file)
        if problems:
            raise _refuse(file, problems)
        return suite

    @classmethod
    def read(cls, file: Path) -> tuple[Suite, list[str]]:
        """Return the suite of a file, with its mistakes.

        A suite with mistakes has only type and arguments of its expectations, so that these can be checked as well.

        Raises
        ------
        ConfigError
            If the file is not JSON.
        """
        try:
            data = json.loads(file.read_text(encoding="utf-8-sig"), object_pairs_hook=_object)
        except (ValueError, OSError, RecursionError) as error:
            raise _refuse(file, [f"{type(error).__name__}: {error}"]) from None
        problems = list(_problems(data))
        found = data if isinstance(data, dict) else {}
        items = found.get("expectations")
        items = items if isinstance(items, list) else []
        return cls(file, str(found.get("name") or file.stem), tuple(map(_bare, items) if problems else items)), problems

    def refuse(self, problems: Iterable[str]) -> ConfigError:
        """Return the error with these mistakes of the suite."""
        return _refuse(self.file, problems)

    def unknown_columns(self, columns: Iterable[str]) -> list[str]:
        """Return a message for each column that an expectation names and that is not among ``columns``.

        Columns in conditions and queries are not checked. For a field of a struct (``a.b``) only ``a`` is checked.
        """
        known = list(columns)
        lines = []
        for number, item in enumerate(self.expectations, start=1):
            for name in _columns_of(item["kwargs"]):
                if name not in known and name.partition(".")[0] not in known:
                    lines.append(f"{place(number, item)}: the transform yields no column {name!r}; "
                                 + nearest(name, known, "its columns are"))  # fmt: skip
        return lines

    def out_of_reach(self, pipeline: Pipeline) -> list[str]:
        """Return a message for each expectation on the whole table, if a pipeline cannot judge all rows of its sink."""
        whole = pipeline.sink.kind.whole
        if whole and pipeline.quality.when == "after_commit":
            return []
        needs = "quality.when: after_commit" if whole else "a sink that can be read back as a whole"
        return [
            f"{place(number, item)}: meta.scope table needs {needs}"
            for number, item in enumerate(self.expectations, start=1)
            if (item.get("meta") or {}).get("scope") == "table"
        ]

    def splitting(self, split: str) -> frozenset[int]:
        """Return the numbers of the expectations that are asked to split rows, by ``quality.split`` or by their own.

        Whether each can is another question.
        """
        return frozenset(
            number
            for number, item in enumerate(self.expectations, start=1)
            if (item.get("meta") or {}).get("split", split == "critical")
            and item.get("severity", "critical") == "critical"
        )

    def not_split(self, pipeline: Pipeline) -> list[str]:
        """Return a message for each expectation with ``meta.split: true``, if rows of a pipeline cannot be split."""
        refusal = pipeline.unsplit
        return [
            f"{place(number, item)}: meta.split: {refusal}"
            for number, item in enumerate(self.expectations, start=1)
            if refusal and (item.get("meta") or {}).get("split") is True
        ]


def with_lines(file: Path, problems: Collection[str]) -> list[str]:
    """Return messages that begin as :func:`place` does, in the order of the file and with their lines."""
    numbers = {text: int(found[1]) for text in problems if (found := _PLACE.match(text))}
    tree = None
    if numbers:  # so it is JSON, and not nested too deeply for a parser in C
        with contextlib.suppress(OSError, ValueError, yaml.YAMLError):  # YAML is almost all JSON: without tabs, say
            tree = yaml.compose(file.read_text(encoding="utf-8-sig"), Loader=yaml.CSafeLoader)
    lines = {text: line_of(tree, ("expectations", number - 1)) for text, number in numbers.items()}
    return [lines.get(text, "") + text for text in sorted(problems, key=lambda text: numbers.get(text, 0))]


def place(number: int, item: Mapping[str, Any]) -> str:
    """Return an expectation's name in messages: its position in the file, from 1, and its type."""
    kind = item.get("type")
    return f"expectation {number}" + (f" ({kind})" if isinstance(kind, str) else "")


def missing_columns(quality: Quality, columns: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the keys of ``quality`` that name a column which the rows do not have, and what is wrong."""
    for key, names in quality.named.items():
        for name in names:
            there = {name} if key == "masked" else {name, name.partition(".")[0]}  # columns are masked as a whole
            if not there & set(columns):
                similar = nearest(name, columns, "its columns are")
                yield key, f"the transform yields no column {name!r}; {similar}"


def nearest(name: str, known: Iterable[str], otherwise: str) -> str:
    """Return ``did you mean …?``, or all known names if none is similar."""
    names = list(known)
    lowered = {n.lower(): n for n in reversed(names)}
    near = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    return f"did you mean {lowered[near[0]]!r}?" if near else f"{otherwise}: {', '.join(names)}"


def _columns_of(kwargs: Mapping[str, Any]) -> Iterator[str]:
    yield from (kwargs[key] for key in _COLUMNS if isinstance(kwargs.get(key), str))
    for key in _COLUMN_LISTS:
        if isinstance(kwargs.get(key), list):
            yield from (name for name in kwargs[key] if isinstance(name, str))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)!r} appears twice in one object")
    return found


def _bare(item: Any) -> dict[str, Any]:
    """Return type and arguments of an expectation; without them one that is always right, which keeps the numbers."""
    if isinstance(item, dict) and isinstance(item.get("type"), str) and isinstance(item.get("kwargs"), dict):
        return {"type": item["type"], "kwargs": item["kwargs"]}
    return {"type": "expect_table_row_count_to_be_between", "kwargs": {"min_value": 0}}


def _problems(data: Any) -> Iterator[str]:
    if not isinstance(data, dict) or not isinstance(data.get("expectations"), list):
        yield "it has no list of expectations"
        return
    for key in data:
        if key not in _SUITE_KEYS:
            yield f"unknown key {key!r}; {nearest(key, _SUITE_KEYS, 'the keys here are')}"
    if data.get("suite_parameters"):
        yield "suite_parameters are not supported: write the values into the expectations"
    for number, item in enumerate(data["expectations"], start=1):
        if not isinstance(item, dict):
            yield f"expectation {number} is not an object"
            continue
        for problem in _mistakes(item):
            yield f"{place(number, item)}: {problem}"


def _mistakes(item: Mapping[str, Any]) -> Iterator[str]:
    for key in item:
        if key not in _KEYS:
            yield f"unknown key {key!r}; {nearest(key, _KEYS, 'the keys here are')}"
    if not isinstance(item.get("type"), str):
        yield "type, the name of the expectation, is missing"
    kwargs = item.get("kwargs")
    if not isinstance(kwargs, dict):
        yield "kwargs, an object, is missing"
    else:
        for key in kwargs:
            if key in _BESIDE:
                yield f"{key!r} belongs beside kwargs, not in it"
        for name in _columns_of(kwargs):
            if "`" in name:
                yield f"Great Expectations cannot find a column with a backtick in its name, {name!r}: rename it"
    severity = item.get("severity", "critical")
    if severity not in SEVERITIES:
        yield f"severity {severity!r} is unknown; write one of: {', '.join(SEVERITIES)}"
    meta = item.get("meta")
    if meta is not None and not isinstance(meta, dict):
        yield "meta is not an object"
    elif (meta or {}).get("scope", "slice") not in SCOPES:
        yield f"meta.scope {(meta or {})['scope']!r} is unknown; write one of: {', '.join(SCOPES)}"
    elif not isinstance((meta or {}).get("split", False), bool):
        yield f"meta.split {(meta or {})['split']!r} is neither true nor false"
    elif (meta or {}).get("split") and severity != "critical":
        yield f"meta.split: only rows that break a critical expectation are split off, and its severity is {severity}"


def _refuse(file: Path, problems: Iterable[str]) -> ConfigError:
    lines = "\n".join(f"  {problem}" for problem in with_lines(file, list(problems)))
    return ConfigError(
        f"{relative(file)} is not a Great Expectations suite that can be evaluated:\n{lines}",
        state="nothing was read or written",
        next_step='fix the suite: {"name": …, "expectations": [{"type": …, "kwargs": {…}, "severity": "critical"}]}; '
        "then: sluice validate-spec",
    )
