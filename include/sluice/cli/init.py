"""``sluice init``: drafts a pipeline file and a suite from a sample of a topic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sluice.cli.output import err, print_json
from sluice.errors import ConfigError, SluiceError

__all__ = ["init"]

_LONGEST = 300
"""Characters of a doubt that are printed; the file has the rest."""


def init(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="A Kafka topic.")],
    records: Annotated[
        int, typer.Option(min=1, metavar="N", help="Size of the sample: half the oldest, half the newest records.")
    ] = 10_000,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The pipeline's name. Default: from the topic's.")
    ] = None,
    connection: Annotated[str, typer.Option(metavar="ID", help="The connection to Kafka.")] = "kafka_default",
    registry: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="The connection to the schema registry (Avro, Protobuf). Default: schema_registry_default, if any.",
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--print", help="Print the pipeline file, and write nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Draft a pipeline file and a first suite, from a sample of a topic.

    It infers columns and types of JSON records, which of them are always
    there, a key and an event time. It is careful: whole numbers are BIGINT,
    and what is not always a time is STRING. For Avro and Protobuf it takes the
    types from the schema registry. What it is not certain of, it says, and writes
    into the file. It never overwrites a file. It starts no Spark.

    The files are written into the folder of pipelines and into the folder
    expectations beside it. Next: sluice preview NAME.
    """
    import yaml
    from pydantic import ValidationError

    from sluice.connections import find
    from sluice.decoders.registry import Registry
    from sluice.draft.draft import draft, name_for
    from sluice.draft.sample import sample
    from sluice.draft.wire_format import schema_numbers
    from sluice.pipeline import Pipeline, pipelines_folder

    found = sample(find(connection), topic, records)
    asked = Registry.named(registry or "schema_registry_default")
    numbers = schema_numbers(found) if registry or asked.settings is not None else {}
    try:
        schemas = {number: asked.drafted(number) for number in numbers}
    except SluiceError as error:
        error.state = "nothing was written"  # there is no batch
        raise
    made = draft(
        found,
        topic=topic,
        name=name or name_for(topic),
        connection=connection,
        registry=asked.connection,
        schemas=schemas,
    )
    try:
        Pipeline.model_validate(yaml.safe_load(made.pipeline))
    except ValidationError as error:
        why = "; ".join(mistake["msg"].removeprefix("Value error, ") for mistake in error.errors())
        raise ConfigError(
            f"no pipeline file can be drafted of {topic!r}: {why}",
            state="nothing was written",
            next_step="give a --name of a-z, 0-9, _ and -; or write the file by hand: docs/pipeline.md",
        ) from None
    if show and not as_json:
        typer.echo(made.pipeline, nl=False)
    written: list[Path] = [] if show else made.write(pipelines_folder())
    if as_json:
        print_json(
            {
                "pipeline": made.name,
                "topic": topic,
                "records": made.records,
                "files": [str(path) for path in written],
                "columns": [{"name": n, "type": kind} for n, kind in made.columns],
                "key": made.key,
                "event_time": made.event_time,
                "unsure": list(made.doubts),
                **({"content": made.pipeline} if show else {}),
            }
        )
        return
    for path in written:
        typer.echo(path)
    err.print(f"{made.records:,} records, {len(made.columns)} columns. Not certain:", markup=False)
    for doubt in made.doubts:
        err.print(f"- {_cut(doubt)}", markup=False)
    if written:
        err.print(f"next: read {written[0].name}, then sluice preview {made.name}", markup=False)


def _cut(doubt: str) -> str:
    return doubt if len(doubt) <= _LONGEST else f"{doubt[:_LONGEST]}… (the file has all of it)"
