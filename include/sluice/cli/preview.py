"""``sluice preview``, and the dry run of a redrive: decode records, and write none."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sluice.cli.output import err, print_json, print_table
from sluice.cli.validate_spec import judges
from sluice.errors import ConfigError, ExitCode, SluiceError

if TYPE_CHECKING:
    from sluice.launch.submit import SparkSubmit
    from sluice.pipeline import Pipeline
    from sluice.run.actions import Action

__all__ = ["answer", "looked", "preview", "print_differences"]

_LONGEST = 300


def preview(
    pipeline: Annotated[str, typer.Argument(metavar="NAME_OR_FILE", help="A pipeline's name, or its YAML file.")],
    records: Annotated[int, typer.Option(min=1, max=10_000, metavar="N", help="How many of the newest records.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Decode and transform the newest records of a topic, and write none.

    It shows the rows, and what would be refused: which record, which rule,
    which column, and the offending text. It also compares the rows' columns
    with those of the table, if that is a Delta table. It reads Kafka, and no
    other source, and starts Spark. It takes no lease: runs may be at work
    meanwhile.

    Exit codes: as sluice run; records that would be refused are no failure.
    """
    from sluice.pipeline import load
    from sluice.run.actions import Preview

    spec = load(pipeline)
    _possible(spec)
    found = looked(spec, lambda result: Preview(result, records))
    if as_json:
        print_json(found)
        return
    for row in found["shown"]:
        typer.echo(_cut(row))
    for record in found["refused"]:
        where = f"{record['topic']}-{record['partition']} offset {record['offset']}"
        column = f", column {record['column']}" if record["column"] else ""
        why = f": {record['detail']}" if record["detail"] else ""
        typer.echo(f"\n{where} would be refused: {record['rule']}{column}{why}")
        typer.echo(f"  {_shown(record['value'])}")
    rules = Counter((r["rule"], r["column"]) for r in found["refused"])
    if rules:
        typer.echo("")
        print_table(
            [{"rule": rule, "column": column, "records": n} for (rule, column), n in rules.most_common()],
            ["rule", "column", "records"],
        )
    err.print(
        f"{found['records']:,} records were read: {len(found['refused']):,} would be refused, the others make "
        f"{found['rows']:,} rows. Nothing was written.",
        markup=False,
    )
    if found.get("unknown_fields"):
        err.print(found["unknown_fields"], markup=False)
    print_differences(found["table"])
    for line in judges(found.get("suite", [])):
        err.print(line, markup=False)


def _shown(value: str | None) -> str:
    if value is None:
        return "no value"
    return _cut(value) if value else "an empty value"


def print_differences(table: Mapping[str, Any]) -> bool:
    """Print how the rows differ from the sink's table, and what to do; return whether something has to be done."""
    for line in table.get("differences", []):
        err.print(f"the table differs: {line}", markup=False)
    for line in table.get("ways_out", []):
        err.print(f"- {line}", markup=False)
    return bool(table.get("ways_out"))


def looked(spec: Pipeline, action: Callable[[Path], Action]) -> dict[str, Any]:
    """Run the application of an action that writes what it finds into a file, as JSON; return that.

    Parameters
    ----------
    action
        Makes the action of the file.

    Raises
    ------
    ConfigError
        If a connection that it needs is not defined.
    typer.Exit
        With its exit code, if it fails; its log says why.
    SluiceError
        If it wrote nothing.
    """
    from sluice.cli.run import spark_of
    from sluice.connections import find
    from sluice.launch.submit import submit

    with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
        result = Path(folder) / "result.json"
        return answer(submit(spec, action(result), spark=spark_of(spec), find=find), result)


def answer(started: SparkSubmit, result: Path) -> dict[str, Any]:
    """Start an application, wait for it, and return what it wrote into its result; errors as of :func:`looked`."""
    # spark-submit passes on to its stdout what the application says, whichever of the two streams it says it on
    done = subprocess.run(
        started.argv(), env={**os.environ, **started.env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    said = done.stdout.decode(errors="replace")
    if done.returncode != ExitCode.DONE:
        mistake = said.rfind("sluice: error:") if done.returncode != ExitCode.OTHER else -1
        err.print((said[mistake:] if mistake >= 0 else said[-6000:]).strip(), markup=False)
        raise typer.Exit(done.returncode)
    try:
        found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise SluiceError(
            f"the application wrote no result: {said[-4000:]}", state="nothing was written", next_step="run it again"
        ) from None
    return found


def _possible(pipeline: Pipeline) -> None:
    """Raise a :class:`~sluice.errors.ConfigError` if a preview of this pipeline cannot be shown."""
    if pipeline.source.kafka is None:
        raise ConfigError(
            f"sluice preview reads Kafka topics, and {pipeline.name!r} has source.{pipeline.source.key}, which notes "
            "what it was asked for",
            state="nothing was read or written",
            next_step=f"sluice validate-spec {pipeline.called} checks the transform; "
            f"sluice run {pipeline.called} runs it",
        )
    if pipeline.stateful is not None and pipeline.stateful.combines:
        raise ConfigError(
            f"pipeline {pipeline.name!r} has {pipeline.kept_by}: sluice preview shows what single records become, and "
            "its rows combine many",
            state="nothing was read or written",
            next_step=f"preview a copy of {pipeline.file.name} without the {pipeline.keeps}; "
            f"sluice validate-spec {pipeline.called} checks the {pipeline.keeps}",
        )


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
