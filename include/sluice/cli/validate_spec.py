"""``sluice validate-spec``: finds mistakes in pipeline files without reading records."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sluice.cli.output import err, print_json
from sluice.connections import Connection, find
from sluice.errors import ConfigError, ExitCode, SluiceError
from sluice.launch.submit import submit
from sluice.pipeline import Pipeline, load, load_all, pipelines_folder
from sluice.pipeline.defaults import DEFAULTS
from sluice.pipeline.load import clash_of, relative
from sluice.pipeline.spark import Spark
from sluice.pipeline.suite import UNASKED, Suite
from sluice.run.actions import Check

__all__ = ["check", "judges"]

_UNCHECKED = "not checked: whether the transform can be planned, its columns, and the expectations' types and arguments"


def check(files: Sequence[str] | None, *, spark: bool, as_json: bool) -> int:
    """Check pipeline files and print the result; return the exit code: 10 if there is a mistake.

    Parameters
    ----------
    files
        Names or paths; None means all files below the folder of pipelines.
    spark
        Whether to run the checks that need Spark and Great Expectations.
    """
    found: dict[str, Pipeline | SluiceError] = _named(files) if files else _all()
    errors = {file: str(item) for file, item in found.items() if isinstance(item, SluiceError)}
    good = {file: item for file, item in found.items() if isinstance(item, Pipeline)}
    known = _others() if files else []
    for file, pipeline in list(good.items()):
        clash = clash_of(pipeline, [*good.values(), *known])
        try:
            if clash is not None:
                raise clash
            if not spark:  # with Spark, all mistakes of the suite are found together
                Suite.of(pipeline)
        except ConfigError as error:
            told = error if error is clash else _refusal(pipeline, [f"quality.suite: {error.what}"])
            errors[file] = str(told)
            del good[file]
    unchecked = f"{_UNCHECKED} (--no-spark)"
    paths: dict[str, str] = {}
    suites: dict[str, list[dict[str, Any]]] = {}
    windows: dict[str, str] = {}
    if spark:
        unchecked, checked = _with_spark(good) if good else ("", {})
        problems = {file: result["problems"] for file, result in checked.items()}
        errors |= {file: str(_refusal(good[file], lines)) for file, lines in problems.items() if lines}
        paths = {file: result["path"] for file, result in checked.items() if result["path"]}
        windows = {file: result["windows"] for file, result in checked.items() if result.get("windows")}
        suites = {file: result["suite"] for file, result in checked.items() if result["suite"] and file not in errors}
    if as_json:
        print_json(
            [
                {"file": f, "valid": f not in errors, "error": errors.get(f)}
                | ({"not_checked": unchecked} if unchecked and f not in errors else {})
                | ({"path": paths[f]} if f in paths else {})
                | ({"windows": windows[f]} if f in windows else {})
                | ({"suite": suites[f]} if f in suites else {})
                for f in found
            ]
        )
    else:
        valid = "valid as far as it was checked" if unchecked else "valid"
        for file in found:
            line = f"{file}: {valid}" + (f"; live runs take the {paths[file]}" if file in paths else "")
            if file in good and good[file].file.stem != good[file].name:
                line += f"; its pipeline is {good[file].name!r}, and commands find it by both names"
            err.print(errors.get(file, line), markup=False)
            if file in windows and file not in errors:
                err.print(f"  a new epoch has {windows[file]}", markup=False)
            for said in judges(suites.get(file, [])):
                err.print(f"  {said}", markup=False)
        if unchecked and len(errors) < len(found):
            err.print(unchecked, markup=False)
    return int(ExitCode.CONFIG) if errors else 0


def judges(suite: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return lines that say which expectations of a suite split rows, and why the others do not; pure."""
    if not suite:
        return []
    rows = sum(bool(item["row_rule"]) for item in suite)
    could = sum(item["why"] == UNASKED for item in suite)
    if not rows and could:
        return [
            f"no expectation splits rows: the run is judged as a whole. With quality.split: critical, {could} of "
            f"{len(suite)} would send the rows that break them to the quarantine"
        ]
    rest = "; Great Expectations alone judges:" if rows < len(suite) else ""
    return [
        f"{rows} of {len(suite)} expectations split the rows of a run{rest}",
        *(f"- {item['number']} {item['expectation']}: {item['why']}" for item in suite if not item["row_rule"]),
    ]


def _named(files: Sequence[str]) -> dict[str, Pipeline | SluiceError]:
    found: dict[str, Pipeline | SluiceError] = {}
    for file in files:
        if Path(file).name == DEFAULTS:
            err.print(f"{file}: defaults of its folder, checked with each pipeline file there", markup=False)
            continue
        try:
            found[file] = load(file)
        except SluiceError as error:
            found[file] = error
    return found


def _all() -> dict[str, Pipeline | SluiceError]:
    return {relative(path): item for path, item in load_all(pipelines_folder(), below=True)}


def _others() -> list[Pipeline]:
    """Return the valid pipelines of the folder, with whose tables none may overlap; none if there is no folder."""
    try:
        return [item for item in _all().values() if isinstance(item, Pipeline)]
    except ConfigError:
        return []


def _with_spark(pipelines: Mapping[str, Pipeline]) -> tuple[str, dict[str, Any]]:
    """Return what could not be checked and why (or an empty text), and the problems and the path of each file."""
    left, found = list(pipelines.items()), dict[str, Any]()
    while left:
        try:
            checked, code = _checked_once([pipeline for _, pipeline in left])
        except ConfigError as error:
            return f"{_UNCHECKED}: {error.what} (next: {error.next_step})", {}
        found |= {file: checked[str(pipeline.file)] for file, pipeline in left if str(pipeline.file) in checked}
        left = [(file, pipeline) for file, pipeline in left if file not in found]
        if left:
            file, _ = left.pop(0)
            ended = f"its check ended the whole process, with code {code}: see what the modules that it names call"
            found[file] = {"problems": [ended], "path": None, "suite": [], "windows": None}
    return "", found


def _checked_once(pipelines: Sequence[Pipeline]) -> tuple[dict[str, Any], int]:
    """Return what one process found of these, before the first of them that ended it, and its exit code.

    Raises
    ------
    ConfigError
        If it cannot be started.
    SluiceError
        If it ended before it came to a file.
    """
    # here, and with Spark's own settings: no record is read, and the files may ask for different ones
    here = Connection("spark_default", "spark", host="local[1]")
    files = tuple(str(pipeline.file) for pipeline in pipelines)
    with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
        result = Path(folder) / "result.json"
        started = submit(pipelines[0], Check(result, files), spark=here, find=find, settings=Spark())
        env = {**os.environ, **started.env}
        done = subprocess.run(started.argv(), env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        try:
            found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            said = done.stdout.decode(errors="replace").strip()
            raise SluiceError(
                f"the check with Spark ended with code {done.returncode} and no result:\n{said[-4000:]}",
                state="nothing was read or written",
                next_step="fix what it reports, or skip this part: sluice validate-spec --no-spark",
            ) from None
    return found, done.returncode


def _refusal(pipeline: Pipeline, problems: Sequence[str]) -> ConfigError:
    name = relative(pipeline.file)
    lines = "\n".join(f"  {line}" for problem in problems for line in problem.splitlines())
    return ConfigError(
        f"{name} is not a valid pipeline:\n{lines}",
        state="nothing was read or written",
        next_step=f"fix it, then: sluice validate-spec {shlex.quote(name)}",
    )
