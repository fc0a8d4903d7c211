"""``sluice``: the commands."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import sys
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from sluice import __version__
from sluice.cli.accept import accept, held
from sluice.cli.acknowledge import acknowledge
from sluice.cli.failover import failover
from sluice.cli.forget import forget
from sluice.cli.init import init
from sluice.cli.output import (
    COUNTS,
    err,
    of_tables,
    print_json,
    print_table,
    printed,
    say_empty,
)
from sluice.cli.preview import preview
from sluice.cli.profile import profile
from sluice.cli.reset import reset
from sluice.cli.retract import retract
from sluice.cli.trial import trial
from sluice.cli.validate import validate
from sluice.cli.verdict import verdict
from sluice.errors import ConfigError, SluiceError
from sluice.facts import lines
from sluice.recovery import Recovery
from sluice.run.verdict import headed

__all__ = ["main"]

_USAGE, _INTERRUPTED = 2, 130

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Name = Annotated[str, typer.Argument(metavar="NAME_OR_FILE", help="A pipeline's name, or its YAML file.")]
OptionalName = Annotated[
    str | None, typer.Argument(metavar="NAME_OR_FILE", help="A pipeline's name, or its YAML file. Default: all.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
RunId = Annotated[
    str | None,
    typer.Option("--run", metavar="ID", help="The run id, by default a new one. The same id retries that run."),
]


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
    """Run pipelines from a source into a table in bounded runs, and account for every offset.

    Each command explains itself: sluice COMMAND --help.
    """


@app.command()
def run(
    pipeline: Name,
    recovery: Annotated[
        Recovery | None, typer.Option(help="The recovery strategy. Default: the pipeline file's.")
    ] = None,
    max_records_per_batch: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Records per batch of a live run, about. Default: the file's."),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(metavar="TS", help="Start of an interval of record time to replace (ISO 8601; needs --end)."),
    ] = None,
    end: Annotated[
        str | None, typer.Option(metavar="TS", help="End of the interval, exclusive. Times without a zone are UTC.")
    ] = None,
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The reason for the run, recorded in the ledger.")
    ] = None,
    validate: Annotated[bool, typer.Option(help="Validate the run after its last batch.")] = True,
    run_id: RunId = None,
    as_json: AsJson = False,
) -> None:
    """Process what the source holds now, write it to the sink, and validate the run.

    This needs no Airflow: it starts the same spark-submit as the Airflow
    operator, and waits for it. Connections are read from AIRFLOW_CONN_<ID> in
    JSON form, or from where Airflow keeps them. Without spark_default, Spark
    runs on local[*].

    With --start and --end, the run reprocesses (backfills) that interval of
    record time. It reads the offsets again, from the source or the write-ahead
    log, as its strategy says. It replaces exactly the interval's rows in
    sink and quarantine, in one transaction each. Live runs and other intervals
    may run meanwhile. Nothing beyond the live position is changed. Idempotent:
    running it twice leaves the same rows.

    Exit codes:
     0 done
     1 anything else
     2 wrong option or argument
    10 configuration or pipeline file is wrong
    20 source unreachable
    21 offsets are gone
    22 topic recreated
    23 not authorized
    30 sink failed
    40 another driver holds the lease
    41 checkpoint does not fit
    50 verdict failed or error, unless quality.on_failed is warn
    51 held: an earlier verdict failed, and quality.on_failed is hold
    """
    from sluice.cli.run import drive

    name = f"cli__{datetime.now(UTC).isoformat(timespec='milliseconds')}" if run_id is None else run_id
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


app.command()(init)
app.command()(preview)
app.command("test")(trial)
app.command()(accept)
app.command()(acknowledge)
app.command()(forget)
app.command()(retract)
app.command()(reset)
app.command()(failover)
app.command()(validate)
app.command()(verdict)
app.command()(profile)


@app.command()
def status(
    pipeline: OptionalName = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number of runs.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show the newest runs: state, offset counts, verdict, seconds, and why."""
    from sluice.cli.names import name_of
    from sluice.ledger import Ledger

    ledger = Ledger.open()
    name = name_of(ledger, pipeline) if pipeline else None
    newest = ledger.runs.newest(
        name, without=ledger.runs.forgotten(ledger.runs.pipelines()) if name is None else (), limit=limit
    )
    at_work = {(name, run) for name in {r.pipeline for r in newest} for run in ledger.runs.at_work(name).values()}
    rows = [
        {
            "pipeline": r.pipeline,
            "kind": r.kind,
            **ledger.runs.account(r.pipeline, r.run),
            # an open run whose driver died stays open until another run closes it
            "state": "running" if r.state == "open" and (r.pipeline, r.run) in at_work else r.state,
            "attempts": r.attempts,
            "notes": r.notes,
            "error": r.error,
        }
        for r in newest
    ]
    if as_json:
        print_json(rows)
    else:
        print_table(rows, ["pipeline", "run", "kind", "state", "recovery", *COUNTS, "verdict", "seconds"])
        if not rows and name is None and (gone := ledger.runs.pipelines()):
            err.print(
                f"each pipeline of the ledger was forgotten; sluice status NAME shows one: {', '.join(sorted(gone))}"
            )
        elif not rows:
            say_empty(name)
        for row in rows:
            moved = lines(row)
            moved += [f"tables: {of_tables(row['tables'])}"] if "tables" in row else []
            moved += [f"{row['state']}: {row['error']['what']}"] if row["error"] else []
            for note in [*moved, *row["notes"], *headed(row["verdict"], row.get("reasons", []))]:
                err.print(f"{row['run']}: {note}", markup=False)
        for told in held(ledger, [pipeline] if pipeline else {row["pipeline"] for row in rows}):
            err.print(told, markup=False)


@app.command()
def lag(
    pipeline: OptionalName = None,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat until Ctrl-C.")] = False,
    interval: Annotated[
        float | None, typer.Option(min=0.1, help="Seconds between two measurements, with --watch. Default: 10.")
    ] = None,
    as_json: AsJson = False,
    openmetrics: Annotated[
        str | None,
        typer.Option("--openmetrics", metavar="FILE", help="Write OpenMetrics text to FILE atomically; - for stdout."),
    ] = None,
) -> None:
    """Show how far pipelines are behind the broker.

    Compares the broker's log ends with the checkpoint's positions. Without a
    pipeline: each file in the folder of pipelines that reads Kafka, without its
    subfolders; the others are named on stderr.

    Columns per partition (a dash means unknown):
    lag     offsets that wait
    age     age of the first unread record
    share   that age as a share of the topic's retention time
    lost    offsets that the broker removed before they were read

    Statuses, from mild to severe (a pipeline's verdict is its worst status):
    OK         nothing waits
    NEW        nothing was read yet
    BACKLOG    records wait
    CLOCK      the first unread record is from the future
    GROWING    over the limits, and each run finds more
    UNKNOWN    no answer
    STUCK      three runs failed at the same position
    REWOUND    the checkpoint was rolled back
    LOST       records were removed before they were read
    RECREATED  the topic was recreated
    AUTH       the broker refused access

    Exit codes (with several pipelines, the worst one decides):
     0 OK, NEW, BACKLOG or CLOCK, within the limits of the pipeline file (key lag)
     1 over the limits, or worse
    10 UNKNOWN: a topic or connection does not exist, or a file is not valid
    20 UNKNOWN: no broker answers
    23 AUTH
    """
    from sluice.cli.lag import STDOUT, show

    if interval is not None and not watch:
        raise ConfigError("--interval goes with --watch", state="nothing was read", next_step="give --watch, too")
    if as_json and openmetrics == STDOUT:
        raise ConfigError(
            "--json and --openmetrics - both print to stdout",
            state="nothing was read",
            next_step="leave one of them out, or name a file for --openmetrics",
        )
    raise typer.Exit(show(pipeline, watch=watch, interval=interval or 10.0, as_json=as_json, metrics=openmetrics))


@app.command()
def ledger(
    pipeline: Name,
    run_id: Annotated[str | None, typer.Option("--run", metavar="ID", help="Only the events of this run.")] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number of events.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show the newest events that the ledger recorded for a pipeline, oldest first."""
    from sluice.cli.names import name_of
    from sluice.ledger import Ledger

    book = Ledger.open()
    name = name_of(book, pipeline)
    events = book.events(name, run_id, limit)
    if run_id is not None and not events:
        book.runs.known(name, run_id)  # a misspelt one must not look like one without events
    if as_json:
        print_json(events)
        return
    rows = [{**e, "payload": json.dumps(e["payload"])[:160]} for e in events]
    print_table(rows, ["id", "at", "type", "run", "payload"])
    if not rows:
        say_empty(pipeline)


@app.command()
def audit(
    pipeline: Name,
    deep: Annotated[
        bool,
        typer.Option(
            "--deep", help="Also compare sink and quarantine offset by offset, and check the write-ahead log."
        ),
    ] = False,
    windows: Annotated[
        bool,
        typer.Option(
            "--windows",
            help="Also recompute closed windows from their records, by Spark, and compare them; with --deep.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Prove that every offset is accounted for once; list lost ranges that are open.

    The default audit reads the ledger alone: ranges have no gap or overlap,
    counts add up, and lost and redriven ranges match them. With --deep, the
    tables must agree as well, and every segment of the write-ahead log is read
    and verified. Rows that cannot be traced to single records (rows: many or
    aggregate) are reported as not proved. --windows makes the closed windows
    or sessions of a pipeline once more, from the records that Kafka or the
    write-ahead log still has; those of which a record is gone are reported as
    not proved.

    Exit codes: 0 the account balances, 1 it does not.
    """
    from sluice.cli.audit import prove

    raise typer.Exit(prove(pipeline, deep=deep, windows=windows, as_json=as_json))


@app.command()
def quarantine(
    pipeline: Name,
    rule: Annotated[str | None, typer.Option(metavar="RULE", help="Only records that broke this rule.")] = None,
    run: Annotated[str | None, typer.Option(metavar="ID", help="Only records that this run refused.")] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TS|AGE", help="Only records of this time or later: ISO 8601, or an age such as 36h."),
    ] = None,
    before: Annotated[
        str | None, typer.Option(metavar="TS|AGE", help="Only records of an earlier time, or an older age such as 90d.")
    ] = None,
    show: Annotated[int, typer.Option(min=0, metavar="N", help="Also show the newest N records.")] = 0,
    drop: Annotated[
        bool, typer.Option("--drop", help="Take these records out, and write none of them; needs --reason.")
    ] = False,
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Why they are dropped; recorded in the ledger.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show which records were refused: counts by rule and column, and samples.

    A sample has topic, partition, offset, rule, key, why it was refused, and
    the record's text.

    With --drop, these records leave the quarantine for good: a run of Spark
    takes them out, and they count as filtered, with the reason in the ledger.
    --rule, --run and --before choose them. The topic may still have them.
    --drop --before 90d, on a schedule, is a retention of 90 days.
    """
    from sluice.cli.quarantine import drop as drop_refused
    from sluice.cli.quarantine import quarantine as show_refused

    if drop or reason is not None:
        if not drop or not (reason or "").strip() or since is not None or show:
            raise ConfigError(
                "--drop and --reason go together, with --rule, --run or --before, and without --since or --show",
                state="nothing was changed",
                next_step='write, for example, --rule json --drop --reason "test data"',
            )
        until = _time(before, "--before")
        raise typer.Exit(drop_refused(pipeline, rule=rule, run=run, before=until, reason=str(reason), as_json=as_json))
    show_refused(
        pipeline,
        rule=rule,
        run=run,
        since=_time(since, "--since"),
        before=_time(before, "--before"),
        show=show,
        as_json=as_json,
    )


@app.command()
def redrive(
    pipeline: Name,
    ranges: Annotated[
        list[str] | None,
        typer.Option("--range", metavar="TOPIC:PARTITION:START-END", help="Only these offsets; repeatable."),
    ] = None,
    of_run: Annotated[
        str | None, typer.Option("--of", metavar="ID", help="Only what the run with this id lost or quarantined.")
    ] = None,
    quarantined: Annotated[
        bool, typer.Option("--quarantined", help="Redrive quarantined records instead of lost ranges.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write nothing: show what could be redriven, and what could not.")
    ] = False,
    validate: Annotated[bool, typer.Option(help="Validate the rows that were written.")] = True,
    run_id: RunId = None,
    as_json: AsJson = False,
) -> None:
    """Write lost ranges that can be read again into the sink, exactly once.

    They are read from the write-ahead log or the source, and closed in the ledger.
    With --quarantined, write the quarantined records that decode and pass the
    row rules now, for example after a fix of the pipeline file. What still fails
    stays open, or in the quarantine. Idempotent: running it again finds nothing
    to do. --dry-run shows open lost ranges and where they can still be read,
    or with --quarantined how many records decode now. Exit codes: as sluice run.
    """
    from sluice.cli.redrive import redrive as drive_again
    from sluice.ranges import OffsetRange

    try:
        spans = [OffsetRange.parse(text) for text in ranges or []]
    except ValueError as error:
        raise ConfigError(str(error), state="nothing was read or written", next_step="fix --range") from None
    name = f"redrive__{datetime.now(UTC).isoformat(timespec='milliseconds')}" if run_id is None else run_id
    code = drive_again(
        pipeline, name, ranges=spans, of_run=of_run, quarantined=quarantined, dry_run=dry_run, validate=validate,
        as_json=as_json,
    )  # fmt: skip
    raise typer.Exit(code)


@app.command()
def clean(
    pipeline: Name,
    before: Annotated[
        str | None,
        typer.Option(metavar="TS", help="Remove what is older than this time (ISO 8601; UTC without a zone)."),
    ] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Remove what is older than this, such as 36h or 7d.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove old segments from a pipeline's write-ahead log.

    By default, segments older than wal.keep in the pipeline file are removed.
    Segments that are not applied to the sink, or hold an open lost range, are
    never removed.
    """
    from sluice.cli.clean import clean as clean_log

    age = _age(older_than, "--older-than")
    clean_log(pipeline, before=before, older_than=age, dry_run=dry_run, as_json=as_json)


@app.command()
def compact(
    pipeline: Name,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count the small files.")] = False,
    as_json: AsJson = False,
) -> None:
    """Merge the small files of a pipeline's sink and quarantine (OPTIMIZE).

    No row changes. Runs of any kind may be active meanwhile. The files that
    were replaced stay until sluice vacuum removes them.
    """
    from sluice.cli.upkeep import compact as merge

    merge(pipeline, dry_run=dry_run, as_json=as_json)


@app.command()
def vacuum(
    pipeline: Name,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", help="Remove files unused for longer than this, such as 7d.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be removed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove files that a pipeline's sink and quarantine no longer use (VACUUM).

    By default, files that have been unused for vacuum.keep of the pipeline file
    are removed. An age is refused if it is not longer than a run may take
    (airflow.execution_timeout), or shorter than the table's own
    delta.deletedFileRetentionDuration (a week, unless set).
    """
    from sluice.cli.upkeep import vacuum as sweep

    sweep(pipeline, older_than=_age(older_than, "--older-than"), dry_run=dry_run, as_json=as_json)


@app.command()
def adopt(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The name under which the pipeline ran before.")],
    new: Annotated[str, typer.Option("--as", metavar="NAME_OR_FILE", help="The pipeline file with the new name.")],
    as_json: AsJson = False,
) -> None:
    """Rename a pipeline: transfer its ledger, checkpoints, log and tables to a new name.

    The file of the new name must name the same sink. No run of either name may
    be active, and the last run of the old name must be in the ledger: if its
    driver died, first run the old name once more. After a crash, run the same
    command again: it continues where it stopped. Until it has finished, runs of
    both names are refused. Exit codes: as sluice run.
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


@app.command()
def state(
    pipeline: Annotated[str, typer.Argument(metavar="NAME_OR_FILE")],
    key: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN=VALUE", help="Only what is kept of this key; again for each of its columns."),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="As it was after this batch. Default: the newest.")
    ] = None,
    history: Annotated[
        bool, typer.Option("--history", help="Instead, how large it was after each run, as the ledger has it.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="With --history: maximum number of runs. Default: 20.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show which windows of event time are open, or how many keys dedupe or a processor keeps, and until when.

    With --key, show what Spark keeps of one key: for each of its windows, panes
    or sessions the values from which the aggregates are made, or each variable
    and timer of a processor. It reads the
    checkpoint with Spark, on this machine, beside runs of any kind.

    With --history, it reads the ledger alone, and shows for each run:
    keys     keys of open windows, or those that dedupe remembers (a dash: too
             many to count them in each run)
    windows  open windows
    live     bytes of all keys and values that the last batch found
    updated  keys that the run put or changed
    removed  keys that the run removed: their windows were closed
    bytes    files of the state, of all versions that the checkpoint retains
    memory   bytes of memory that Spark's state stores had

    It warns if the state grows and is not cleaned (key state of the file).
    """
    from sluice.cli import state as shown

    if history:
        if key or batch is not None:
            raise ConfigError(
                "--history shows what the ledger has of each run, and neither one key nor one batch",
                state="nothing was read",
                next_step="leave out --key and --batch, or --history",
            )
        raise typer.Exit(shown.history(pipeline, limit=limit or 20, as_json=as_json))
    if limit is not None:
        raise ConfigError("--limit goes with --history", state="nothing was read", next_step="give --history, too")
    raise typer.Exit(shown.state(pipeline, key=key or [], batch=batch, as_json=as_json))


@app.command("validate-spec")
def validate_spec(
    files: Annotated[
        list[str] | None, typer.Argument(metavar="NAME_OR_FILE", help="Names or YAML files of pipelines. Default: all.")
    ] = None,
    spark: Annotated[
        bool, typer.Option("--spark/--no-spark", help="Check transforms and suites with Spark and Great Expectations.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Check pipeline files; report every mistake with its file, line, key and fix.

    It also reads each suite. Spark (about ten seconds for all files, no broker)
    plans each transform without records, and compares sink.delta.partition_by
    and the suite's columns with the transform's columns. Great Expectations
    builds each expectation. Without Java or the jars these checks are skipped,
    and the output says so.

    Exit codes: 0 all files are valid, 10 there is a mistake.
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
    from sluice.fields import JsonSchema
    from sluice.pipeline import Pipeline, pipelines_folder

    found = Pipeline.model_json_schema(by_alias=True, schema_generator=JsonSchema)
    text = json.dumps(found, indent=2) + "\n"
    if write:
        file = pipelines_folder().parent / "pipeline.schema.json"
        try:
            file.write_text(text)
        except OSError as error:
            raise ConfigError(
                f"{file} cannot be written: {error.strerror}",
                state="nothing was written",
                next_step="make it writable, or print the schema: sluice schema",
            ) from None
    else:
        sys.stdout.write(text)


def _age(text: str | None, option: str) -> timedelta | None:
    from sluice.fields import duration

    try:
        return None if text is None else duration(text)
    except ValueError as error:
        raise ConfigError(
            f"{option}: {error}", state="nothing was removed", next_step="write it as 36h or 7d"
        ) from None


def _time(text: str | None, option: str) -> datetime | None:
    from sluice.fields import duration, meant

    if text is None:
        return None
    try:
        stamp = datetime.fromisoformat(text)
        return stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)
    except ValueError:
        pass
    try:
        return datetime.now(UTC) - duration(text)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{option}: {text!r} is neither a time nor an age{meant(text)}",
            state="nothing was read",
            next_step="write a time in ISO 8601, for example 2026-11-01T00:00, or an age, for example 36h or 7d",
        ) from None


def main() -> None:
    """Run the command line; a typed error is printed without a traceback, with ``--json`` as JSON, too."""
    before = printed()
    if isinstance(sys.stdout, io.TextIOWrapper):  # in another locale it may have no letter for what is printed
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or error.filename is not None:
            raise
        err.print(f"sluice: error: the output could not be written: {error.strerror}", markup=False)
        os._exit(1)  # Python would try once more to write the rest
    except SluiceError as error:
        err.print(f"sluice: error: {error}", markup=False)
        _end(int(error.exit_code), error.as_dict(), before)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        what = "wrong option or argument" if code == _USAGE else f"it ended with exit code {code}"
        from sluice.launch.launcher import last_words

        told = {"type": "Ended", "what": f"{what}: stderr says more", "state": "", "next": ""}
        _end(code, last_words() or told, before)


def _end(code: int, error: dict[str, str], before: int) -> None:
    """End the process. For a program that asked for JSON and got none, print why there is none."""
    if code and code != _INTERRUPTED and "--json" in sys.argv[1:] and printed() == before:
        with contextlib.suppress(BrokenPipeError):  # whoever read it went away, which is why the command ended
            print_json({"error": {**error, "exit_code": code}})
    sys.exit(code)
