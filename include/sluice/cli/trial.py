"""``sluice test``: runs a pipeline over a file of records, without its source and its sink."""

from __future__ import annotations

import difflib
import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from sluice.cli.output import err, print_json
from sluice.errors import ConfigError
from sluice.kinds import imported

__all__ = ["trial"]

_NOTHING = "nothing was run"


def trial(
    pipeline: Annotated[str, typer.Argument(metavar="NAME_OR_FILE", help="A pipeline's name, or its YAML file.")],
    records: Annotated[Path, typer.Option(metavar="FILE", help="The records: the value of one in each line.")],
    expect: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The rows and refused records that must come out.")
    ] = None,
    update: Annotated[bool, typer.Option("--update", help="Write that file, instead of comparing with it.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Run a pipeline over a file of records: no broker, no table.

    It decodes, refuses, transforms, aggregates and judges by the very steps
    of a run, in a folder of its own that is removed behind it, and shows
    the rows and the refused records. A line of the file is the value of a
    record; {"_record": {"value": …, "key": …, "headers": {…},
    "timestamp": …, "topic": …}} is one with more than a value. Windows come
    out as far as the records close them.

    In Python: sluice_spark.testing.trial(FILE, LINES).

    Exit codes: 0; 1 what came out is not what was expected; else as sluice
    run. A verdict that fails is shown, and is no failure.
    """
    if update and expect is None:
        raise ConfigError("--update names no file", state=_NOTHING, next_step="add --expect FILE")
    logger = logging.getLogger("sluice")
    before = logger.level
    logger.setLevel(logging.ERROR)  # what it warns of is shown below
    try:
        found = imported("sluice_spark.testing:trial")(pipeline, _lines(records))
    finally:
        logger.setLevel(before)
    lines = found.lines()
    if as_json:
        print_json(asdict(found))
    if update and expect is not None:
        expect.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    elif expect is not None and (differing := _differences(_lines(expect), lines, expect)):
        for line in differing:
            err.print(line, markup=False)
        raise typer.Exit(1)
    if not as_json:
        _show(found, lines)


def _lines(file: Path) -> list[str]:
    try:
        lines = file.read_text(encoding="utf-8").split("\n")  # no other character ends a line of JSON
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{file} cannot be read: {error.strerror if isinstance(error, OSError) else 'it is not UTF-8'}",
            state=_NOTHING,
            next_step="name a file of lines",
        ) from None
    return lines if lines[-1] else lines[:-1]


def _differences(expected: list[str], found: list[str], file: Path) -> list[str]:
    """Return how two sets of lines differ, whatever the order of the lines and of the keys; none if they do not."""
    before, now = (sorted(map(_canonical, lines)) for lines in (filter(None, expected), found))
    return list(difflib.unified_diff(before, now, str(file), "what came out", lineterm="", n=0))


def _canonical(line: str) -> str:
    try:
        return json.dumps(json.loads(line), sort_keys=True, ensure_ascii=False)
    except ValueError:
        return line


def _show(found: Any, lines: list[str]) -> None:
    for line in lines[: len(found.rows)]:
        typer.echo(line)
    for record in found.refused:
        column = f", column {record['column']}" if record["column"] else ""
        why = f": {record['detail']}" if record["detail"] else ""
        err.print(
            f"{record['stream']} record {record['offset'] + 1}: refused, {record['rule']}{column}{why}", markup=False
        )
    counts = ", ".join(f"{found.account[part]:,} {part}" for part in ("written", "filtered", "quarantined"))
    err.print(f"{found.account['planned']:,} records: {counts}; {len(found.rows):,} rows", markup=False)
    err.print(f"verdict: {found.account['verdict']}", markup=False)
    for why in found.failed:
        err.print(f"- {why}", markup=False)
