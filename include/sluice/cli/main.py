"""``sluice``: the commands."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from sluice import __version__
from sluice.cli.output import COUNTS, err, print_json, print_table
from sluice.errors import ConfigError, SluiceError
from sluice.recovery import Recovery

__all__ = ["main"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Name = Annotated[str, typer.Argument(metavar="NAME_OR_FILE", help="A pipeline's name, or its YAML file.")]
OptionalName = Annotated[str | None, typer.Argument(metavar="[PIPELINE]", help="Default: all pipelines.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


def _tell_version(asked: bool) -> None:
    if asked:
        print(f"sluice {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_tell_version, help="Print the version.")
    ] = False,
) -> None:
    """Bounded, accountable runs from Kafka into a table."""


@app.command()
def run(
    pipeline: Name,
    recovery: Annotated[Recovery | None, typer.Option(help="Overrides the pipeline file's strategy.")] = None,
    max_records_per_batch: Annotated[int | None, typer.Option(min=1, help="Overrides the file's limit.")] = None,
    start: Annotated[
        str | None, typer.Option(metavar="TS", help="With --end: replace this interval of record time (ISO 8601).")
    ] = None,
    end: Annotated[str | None, typer.Option(metavar="TS", help="Exclusive. Times without a zone are UTC.")] = None,
    reason: Annotated[str | None, typer.Option(help="The reason for the run, recorded in the ledger.")] = None,
    validate: Annotated[bool, typer.Option(help="Validate the run after its last batch.")] = True,
    run_id: Annotated[str | None, typer.Option("--run", help="The run id; the same id retries that run.")] = None,
    as_json: AsJson = False,
) -> None:
    """Process what Kafka holds now into the sink, and validate it. Airflow need not be running.

    With --start and --end: reprocess (backfill) that interval of Kafka's record time. The run reads its offsets again,
    from Kafka or from the write-ahead log if Kafka no longer has them, and replaces exactly the interval's rows in sink
    and quarantine, in one transaction each. Live runs and other intervals may run meanwhile. Nothing beyond the live
    position is changed. Idempotent: running it twice leaves the same rows.

    Starts the same spark-submit as the Airflow operator, and waits for it. Connections are read from
    AIRFLOW_CONN_<ID> in JSON form, or from where Airflow keeps them; without spark_default it runs on local[*].
    Exit codes: 0 done, 10 configuration, 20 source unreachable, 21 offsets gone, 22 topic recreated, 23 not authorized,
    30 sink failed, 40 lease held, 41 checkpoint does not fit, 50 verdict failed or error (unless quality.on_failed is
    warn), 2 wrong option, 1 anything else.
    """
    from sluice.cli.run import drive

    name = run_id or f"cli__{datetime.now(UTC).isoformat(timespec='milliseconds')}"
    code = drive(
        pipeline,
        name,
        recovery=recovery,
        max_records_per_batch=max_records_per_batch,
        start=start,
        end=end,
        reason=reason,
        validate=validate,
        as_json=as_json,
    )
    raise typer.Exit(code)


@app.command()
def status(pipeline: OptionalName = None, limit: int = 20, as_json: AsJson = False) -> None:
    """Show the newest runs: state, offset counts, verdict, seconds."""
    from sluice.cli.names import name_of
    from sluice.ledger import Ledger

    ledger = Ledger.open()
    name = name_of(ledger, pipeline) if pipeline else None
    rows = [
        {
            "pipeline": r.pipeline,
            "kind": r.kind,
            **ledger.account(r.pipeline, r.run),
            "state": r.state,
            "attempts": r.attempts,
            "notes": r.notes,
        }
        for r in ledger.runs(name, limit=limit)
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(rows, ["pipeline", "run", "kind", "state", "recovery", *COUNTS, "verdict", "seconds"])
        for row in rows:
            for note in [*row["notes"], *(f"{row['verdict']}: {why}" for why in row.get("reasons", []))]:
                err.print(f"{row['run']}: {note}", markup=False)


@app.command()
def lag(
    pipeline: OptionalName = None,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two measurements.")] = 10.0,
    as_json: AsJson = False,
    openmetrics: Annotated[
        str | None,
        typer.Option("--openmetrics", metavar="FILE", help="Write OpenMetrics text to FILE atomically; - for stdout."),
    ] = None,
) -> None:
    """Show how far pipelines are behind: the broker's log ends compared with the checkpoint's positions.

    Per partition: waiting offsets (lag), age of the first unread record (age), that age as a share of the topic's
    retention time (share), offsets that the broker removed unread (lost), and a status. Per pipeline: a verdict, the
    worst status. A dash means unknown. Statuses, from mild to severe: OK nothing waits, NEW never read, BACKLOG records
    wait, GROWING over the limits and each run finds more, UNKNOWN no answer, STUCK three runs failed at the same
    position, REWOUND the checkpoint was rolled back, LOST removed unread, RECREATED the topic was recreated, AUTH
    refused.
    Without PIPELINE: each file in the folder of pipelines, without its subfolders.
    Exit codes: 0 OK, NEW or BACKLOG within the limits of the pipeline file (lag:), 1 over the limits or worse,
    20 UNKNOWN because no broker answers, 10 UNKNOWN because a topic or a connection does not exist, or a pipeline file
    is not valid, 23 AUTH. With several pipelines, the worst one decides.
    """
    from sluice.cli.lag import show

    raise typer.Exit(show(pipeline, watch=watch, interval=interval, as_json=as_json, metrics=openmetrics))


@app.command()
def ledger(
    pipeline: Name,
    run_id: Annotated[str | None, typer.Option("--run", help="Only this run's events.")] = None,
    limit: int = 50,
    as_json: AsJson = False,
) -> None:
    """Show the newest events of a pipeline, oldest first."""
    from sluice.cli.names import name_of
    from sluice.ledger import Ledger

    book = Ledger.open()
    events = book.events(name_of(book, pipeline), run_id, limit)
    if as_json:
        print_json(events)
        return
    rows = [{**e, "payload": json.dumps(e["payload"])[:160]} for e in events]
    print_table(rows, ["id", "at", "type", "run", "payload"])


@app.command()
def audit(
    pipeline: Name,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Compare with sink and quarantine, offset by offset; check the write-ahead log."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Prove that every offset is accounted for once; list open lost ranges. Exit code 1 if it does not balance.

    By default from the ledger alone: ranges have no gap or overlap, counts add up, and lost and redriven ranges match
    them. With --deep, the tables must agree as well, and every segment of the write-ahead log is read and verified.
    Rows that cannot be traced to single records (rows: many or aggregate) are reported as not proved.
    """
    from sluice.cli.audit import prove

    raise typer.Exit(prove(pipeline, deep=deep, as_json=as_json))


@app.command()
def redrive(
    pipeline: Name,
    ranges: Annotated[
        list[str] | None,
        typer.Option("--range", metavar="TOPIC:PARTITION:START-END", help="Only these offsets; repeatable."),
    ] = None,
    of_run: Annotated[str | None, typer.Option("--of", help="Only what this run lost or quarantined.")] = None,
    quarantined: Annotated[
        bool, typer.Option("--quarantined", help="Redrive quarantined records that decode now, not lost ranges.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show open lost ranges and where they can still be read.")
    ] = False,
    validate: Annotated[bool, typer.Option(help="Validate what was written.")] = True,
    run_id: Annotated[str | None, typer.Option("--run", help="The run id; the same id retries that run.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write lost ranges that can be read again (from the write-ahead log or Kafka) exactly once, and close them.

    With --quarantined: after a fix of decode or schema, write the quarantined records that decode now. What still fails
    stays open, or in quarantine. Idempotent: running it again finds nothing to do. Exit codes are those of sluice run.
    --dry-run works for lost ranges only.
    """
    from sluice.cli.redrive import redrive as drive_again
    from sluice.ranges import OffsetRange

    try:
        spans = [OffsetRange.parse(text) for text in ranges or []]
    except ValueError as error:
        raise ConfigError(str(error), state="nothing was read or written", next_step="fix --range") from None
    name = run_id or f"redrive__{datetime.now(UTC).isoformat(timespec='milliseconds')}"
    code = drive_again(
        pipeline, name, ranges=spans, of_run=of_run, quarantined=quarantined, dry_run=dry_run, validate=validate,
        as_json=as_json,
    )  # fmt: skip
    raise typer.Exit(code)


@app.command()
def clean(
    pipeline: Name,
    before: Annotated[
        str | None, typer.Option(metavar="TS", help="Older than this time (ISO 8601; UTC without a zone).")
    ] = None,
    older_than: Annotated[str | None, typer.Option(metavar="AGE", help="Older than this, such as 36h or 7d.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove old segments from a pipeline's write-ahead log; by default those older than wal.keep in its file.

    Segments that are not applied to the sink, or hold an open lost range, are never removed.
    """
    from sluice.cli.clean import clean as clean_log

    age = _age(older_than, "--older-than")
    clean_log(pipeline, before=before, older_than=age, dry_run=dry_run, as_json=as_json)


@app.command()
def compact(
    pipeline: Name,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count files that are small.")] = False,
    as_json: AsJson = False,
) -> None:
    """Merge the small files of a pipeline's sink and quarantine (OPTIMIZE). No row changes.

    Runs, intervals and redrives may be at work meanwhile. The files that were replaced stay until sluice vacuum.
    """
    from sluice.cli.upkeep import compact as merge

    merge(pipeline, dry_run=dry_run, as_json=as_json)


@app.command()
def vacuum(
    pipeline: Name,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Files that went out of use before this, such as 7d.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be removed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove files that a pipeline's sink and quarantine no longer use; by default those older than vacuum.keep.

    An age that is not longer than a run may take (airflow.execution_timeout), or is shorter than the table's own
    delta.deletedFileRetentionDuration (a week, unless set), is refused.
    """
    from sluice.cli.upkeep import vacuum as sweep

    sweep(pipeline, older_than=_age(older_than, "--older-than"), dry_run=dry_run, as_json=as_json)


@app.command()
def adopt(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The name under which the pipeline ran before.")],
    new: Annotated[str, typer.Option("--as", metavar="NAME_OR_FILE", help="The pipeline file with the new name.")],
    as_json: AsJson = False,
) -> None:
    """Rename a pipeline: its ledger, checkpoints, write-ahead log and tables go on under the new name.

    The file of the new name must name the same sink. No run of either name may be at work, and the last run of the old
    name must be accounted for: if it died halfway, first run the old name once more. After a crash the same command
    goes on where it stopped; until it has ended, runs of both names are refused. Exit codes are those of sluice run.
    """
    from sluice.adopt import Adoption
    from sluice.home import Home
    from sluice.ledger import Ledger
    from sluice.pipeline import load

    spec = load(new)
    done = Adoption(Ledger.open(), Home.from_env(), old, spec).carry_out()
    if as_json:
        print_json({"from": old, "pipeline": spec.name, "changed": done})
    else:
        said = f"{old} goes on as {spec.name}" if done else f"nothing to do: {old} already goes on as {spec.name}"
        err.print(said, markup=False)


@app.command("validate-spec")
def validate_spec(
    files: Annotated[list[str] | None, typer.Argument(help="Names or files. Default: all pipelines.")] = None,
    spark: Annotated[
        bool, typer.Option("--spark/--no-spark", help="Check transforms and suites with Spark and Great Expectations.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Check pipeline files; report every mistake with its file, line, key and fix. Exit code 10 if there is one.

    It also reads each suite. Spark (about ten seconds for all files, no broker) plans each transform without records
    and checks sink.delta.partition_by and the suite's columns against the transform's columns. Great Expectations
    builds each expectation. Without Java or the jars these checks are skipped, and the output says so.
    """
    from sluice.cli.validate_spec import check

    raise typer.Exit(check(files, spark=spark, as_json=as_json))


@app.command()
def schema(
    write: Annotated[
        bool, typer.Option(help="Write pipeline.schema.json beside the folder of pipelines instead of printing it.")
    ] = False,
) -> None:
    """Print the JSON Schema of a pipeline file, for editors."""
    from sluice.pipeline import Pipeline, pipelines_folder

    text = json.dumps(Pipeline.model_json_schema(by_alias=True), indent=2) + "\n"
    if write:
        (pipelines_folder().parent / "pipeline.schema.json").write_text(text)
    else:
        sys.stdout.write(text)


def _age(text: str | None, option: str) -> timedelta | None:
    from pydantic import TypeAdapter, ValidationError

    from sluice.fields import Duration

    try:
        return TypeAdapter(Duration).validate_python(text) if text else None
    except ValidationError:
        raise ConfigError(
            f"{option}: {text!r} is not a duration", state="nothing was removed", next_step="write it as 36h or 7d"
        ) from None


def main() -> None:
    """Run the command line; a typed error is printed without a traceback."""
    try:
        app()
    except SluiceError as error:
        err.print(f"sluice: error: {error}", markup=False)
        sys.exit(int(error.exit_code))
