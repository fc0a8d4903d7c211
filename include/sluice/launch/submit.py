"""Builds the spark-submit command: ``sluice run`` starts it itself, the Airflow operator by the Spark provider."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from sluice.connections import Connection, variable_of
from sluice.errors import ConfigError
from sluice.home import Home
from sluice.launch import jars
from sluice.launch.preflight import check_places
from sluice.pipeline import Pipeline
from sluice.pipeline.engine import spark_alone
from sluice.pipeline.sections import EVERYTHING
from sluice.pipeline.spark import CORE, DEFAULTS, LOCAL, WORKERS, Spark
from sluice.ranges import OffsetRange
from sluice.run.request import RunRequest, reason_option
from sluice.shipped import base, shipped
from sluice.text import checked_run

__all__ = [
    "Connections",
    "SparkSubmit",
    "archive_file",
    "archive_stamp",
    "audit_windows",
    "bounded_run",
    "failover",
    "is_whole",
    "preview",
    "read_state",
    "redrive",
    "reset",
    "retract",
    "spark_master",
    "validate_sink",
    "validate_spec",
]

_MASTER = re.compile(r"^(local(\[[^\]]+\])?|spark://[^/]+:\d+|yarn|k8s://.+)$")

_SMALL = 200_000

Connections = Connection | Sequence[Connection] | None
"""The connections of a source: none, one, or those of several clusters."""


@dataclass(frozen=True)
class SparkSubmit:
    """A Spark application that is ready to start.

    ``env`` contains the connections' secrets: pass it only in the child's environment, never in argv or a log.
    ``resources`` are options of the command line: in client mode the driver's JVM exists before any setting is read.
    """

    application: Path
    arguments: list[str]
    master: str
    conf: dict[str, str]
    jars: list[Path]
    java_options: str
    name: str
    env: dict[str, str] = field(repr=False)
    resources: dict[str, str] = field(default_factory=dict)

    def argv(self) -> list[str]:
        """Return the command line that starts it on this machine.

        Raises
        ------
        ConfigError
            If there is no ``spark-submit`` beside this Python or on the path.
        """
        beside = Path(sys.executable).with_name("spark-submit")
        program = str(beside) if beside.exists() else shutil.which("spark-submit")
        if not program:
            raise ConfigError(
                "spark-submit was not found",
                state="nothing was read or written",
                next_step="install pyspark into this environment: make setup, or the extra sluice[spark]",
            )
        argv = [program, "--master", self.master, "--deploy-mode", "client", "--name", self.name]
        for key, value in self.resources.items():
            argv += [f"--{key.replace('_', '-')}", value]
        for key, value in self.conf.items():
            argv += ["--conf", f"{key}={value}"]
        if self.java_options:
            argv += ["--driver-java-options", self.java_options]
        if self.jars:
            argv += ["--jars", ",".join(map(str, self.jars))]
        return [*argv, str(self.application), *self.arguments]


def spark_master(connection: Connection) -> str:
    """Return the master of a Spark connection.

    Raises
    ------
    ConfigError
        If it is not a ``spark`` connection in JSON form with a master as its host (Airflow's Spark hook would silently
        submit to ``yarn``), or if it asks for cluster mode.
    """
    host = connection.host or ""
    if host.startswith("spark://") and connection.port and not re.search(r":\d+$", host):
        host = f"{host}:{connection.port}"
    mode = str(connection.extra.get("deploy-mode") or "client")
    if connection.conn_type not in ("spark", "") or not _MASTER.match(host):
        raise ConfigError(
            f"connection {connection.conn_id!r} is not a Spark connection: type {connection.conn_type!r}, "
            f"host {connection.host!r}",
            state="nothing was read or written",
            next_step='write it in JSON form, for example {"conn_type":"spark","host":"local[2]"} or '
            '{"conn_type":"spark","host":"spark://master:7077"}',
        )
    if mode != "client":
        raise ConfigError(
            f"connection {connection.conn_id!r} asks for deploy-mode {mode!r}; in cluster mode the driver's exit code "
            "is lost and its secrets would have to travel in argv",
            state="nothing was read or written",
            next_step='set "deploy-mode": "client" in the extra of the connection',
        )
    return host


def bounded_run(
    pipeline: Pipeline,
    request: RunRequest,
    *,
    spark: Connection,
    kafka: Connections,
    sink: Connections = None,
    decoder: Connection | None = None,
    waiting: int | None = None,
    engine: str | None = None,
    settings: Spark | None = None,
) -> SparkSubmit:
    """Return the application of a live or interval run.

    Parameters
    ----------
    settings
        Of Spark, instead of the pipeline file's.
    kafka
        The connection of the source, if it needs one.
    sink
        The connections that the sinks need, if they need any.
    decoder
        The connection that decoding needs, if it needs one.
    waiting
        The approximate number of waiting records, if known: a small run skips the JVM's optimizing compiler, which
        would not pay off.
    engine
        What processed the records of the run before, as :meth:`~sluice.ledger.Ledger.engine` returns it. A run of which
        Python's workers process all records skips that compiler, too: it would take the cores from them.
    """
    arguments = ["--pipeline", str(pipeline.file), *request.arguments()]
    small = (waiting is not None and waiting <= _SMALL) or _in_workers(pipeline, request, engine)
    others = (kafka, sink, decoder)
    return _submit("bounded_run.py", pipeline, arguments, spark, others, small=small, settings=settings, writes=True)


def _in_workers(pipeline: Pipeline, request: RunRequest, engine: str | None) -> bool:
    """Return whether the JVM will probably see no record."""
    if spark_alone(pipeline, request.recovery or pipeline.recovery) is not None:
        return False
    # what another statement needs, only Spark's side can tell
    return engine == "arrow" or (engine is None and pipeline.transform.sql in (None, EVERYTHING))


def redrive(
    pipeline: Pipeline,
    run_id: str,
    *,
    spark: Connection,
    kafka: Connections,
    sink: Connections = None,
    decoder: Connection | None = None,
    ranges: Sequence[OffsetRange] = (),
    of_run: str | None = None,
    quarantined: bool = False,
    dropped: str | None = None,
    rule: str | None = None,
    before: datetime | None = None,
    validate: bool = True,
    settings: Spark | None = None,
) -> SparkSubmit:
    """Return the application that redrives lost ranges or quarantined records; ``settings`` as of :func:`bounded_run`.

    Parameters
    ----------
    ranges
        Only these offsets; empty means all.
    of_run
        Only what the run with this id lost or quarantined.
    dropped
        Why quarantined records are taken out and not written; None if they are to be written.
    rule
        Only quarantined records that broke this rule.
    before
        Only quarantined records of an earlier record time, or of none; aware.
    """
    arguments = ["--pipeline", str(pipeline.file), f"--run={checked_run(run_id)}"]
    for item in ranges:
        arguments += [f"--range={item.topic}:{item.partition}:{item.start}-{item.end}"]
    if of_run is not None:
        arguments += ["--of-run", of_run]
    arguments += ["--quarantined"] * quarantined + ["--no-validate"] * (not validate)
    arguments += [] if dropped is None else ["--drop", reason_option(dropped)]
    arguments += [] if rule is None else [f"--rule={rule}"]
    arguments += [] if before is None else [f"--before={before.isoformat()}"]
    return _submit(
        "redrive.py", pipeline, arguments, spark, (kafka, sink, decoder), small=True, settings=settings, writes=True
    )


def retract(
    pipeline: Pipeline,
    run_id: str,
    *,
    spark: Connection,
    sink: Connections = None,
    of_run: str | None = None,
    ranges: Sequence[OffsetRange] = (),
    reason: str,
    result: Path | None = None,
    settings: Spark | None = None,
) -> SparkSubmit:
    """Return the application that takes rows out of the sink; ``settings`` as of :func:`bounded_run`.

    Parameters
    ----------
    of_run, ranges
        What one run wrote, or the rows of some offsets: one of the two.
    result
        If given, nothing is changed: the file to which it writes, as JSON, what would be retracted.
    """
    arguments = ["--pipeline", str(pipeline.file), f"--run={checked_run(run_id)}", reason_option(reason)]
    for item in ranges:
        arguments += [f"--range={item.topic}:{item.partition}:{item.start}-{item.end}"]
    arguments += [] if of_run is None else [f"--of-run={of_run}"]
    arguments += [] if result is None else ["--result", str(result)]
    return _submit("retract.py", pipeline, arguments, spark, (sink,), small=True, settings=settings, writes=True)


def reset(
    pipeline: Pipeline,
    run_id: str,
    *,
    spark: Connection,
    kafka: Connections,
    sink: Connections = None,
    begin: str | None = None,
    truncate: bool = False,
    agreed: bool = False,
    rebuild: bool = False,
    reason: str,
    result: Path | None = None,
    settings: Spark | None = None,
) -> SparkSubmit:
    """Return the application that begins a pipeline in a new epoch; ``settings`` as of :func:`bounded_run`.

    Parameters
    ----------
    begin, truncate, agreed, rebuild
        As of ``sluice_spark.runs.reset.ResetRun``.
    result
        If given, nothing is changed: the file to which it writes, as JSON, what would be done.
    """
    arguments = ["--pipeline", str(pipeline.file), f"--run={checked_run(run_id)}", reason_option(reason)]
    arguments += [] if begin is None else [f"--from={begin}"]
    arguments += ["--truncate"] * truncate + ["--rebuild-state"] * rebuild + ["--yes"] * agreed
    arguments += [] if result is None else ["--result", str(result)]
    return _submit("reset.py", pipeline, arguments, spark, (kafka, sink), small=True, settings=settings, writes=True)


def failover(
    pipeline: Pipeline,
    run_id: str,
    *,
    spark: Connection,
    kafka: Connections,
    sink: Connections = None,
    to: str,
    reason: str,
    result: Path | None = None,
    settings: Spark | None = None,
) -> SparkSubmit:
    """Return the application that lets a pipeline go on with another cluster; ``settings`` as of :func:`bounded_run`.

    Parameters
    ----------
    to
        The connection of that cluster.
    result
        As of :func:`reset`.
    """
    arguments = ["--pipeline", str(pipeline.file), f"--run={checked_run(run_id)}", reason_option(reason)]
    arguments += [f"--to={to}"] + ([] if result is None else ["--result", str(result)])
    return _submit("failover.py", pipeline, arguments, spark, (kafka, sink), small=True, settings=settings, writes=True)


def validate_sink(
    pipeline: Pipeline,
    run_id: str,
    *,
    spark: Connection,
    kafka: Connections = None,
    sink: Connections = None,
    settings: Spark | None = None,
) -> SparkSubmit:
    """Return the application that validates a run again; ``settings`` as of :func:`bounded_run`."""
    arguments = ["--pipeline", str(pipeline.file), f"--run={run_id}"]
    return _submit("validate_sink.py", pipeline, arguments, spark, (kafka, sink), small=True, settings=settings)


def preview(
    pipeline: Pipeline,
    result: Path,
    *,
    spark: Connection,
    kafka: Connections,
    decoder: Connection | None = None,
    records: int = 0,
    quarantined: bool = False,
    ranges: Sequence[OffsetRange] = (),
    of_run: str | None = None,
) -> SparkSubmit:
    """Return the application that decodes records and writes none: see :func:`redrive` for what it may take.

    Parameters
    ----------
    result
        The file to which it writes, as JSON, what it found.
    records
        How many of the source's newest records it takes, unless it takes those of the quarantine.
    """
    arguments = ["--pipeline", str(pipeline.file), "--result", str(result), "--records", str(records)]
    for item in ranges:
        arguments += [f"--range={item.topic}:{item.partition}:{item.start}-{item.end}"]
    arguments += [] if of_run is None else [f"--of-run={of_run}"]
    arguments += ["--quarantined"] * quarantined
    return _submit("preview.py", pipeline, arguments, spark, (kafka, decoder), small=True)


def validate_spec(pipelines: Sequence[Pipeline], result: Path) -> SparkSubmit:
    """Return the application that runs the checks of pipelines that need Spark and Great Expectations.

    It runs on this machine, whatever the Spark connection says, and with Spark's own settings: no record is read, and
    the files may ask for different ones.

    Parameters
    ----------
    result
        The file to which it writes, as JSON, the list of problems of each pipeline file.
    """
    arguments = [word for pipeline in pipelines for word in ("--pipeline", str(pipeline.file))]
    spark = Connection("spark_default", "spark", host="local[1]")
    arguments += ["--result", str(result)]
    return _submit("validate_spec.py", pipelines[0], arguments, spark, (), small=True, settings=Spark())


def read_state(
    pipeline: Pipeline,
    checkpoint: str,
    batch: int,
    result: Path,
    spark: Connection,
    panes: Sequence[int] = (),
    of: tuple[Sequence[str], Mapping[str, str], int] | None = None,
) -> SparkSubmit:
    """Return the application that reads which windows are open, which keys are kept, or what is kept of one.

    Parameters
    ----------
    checkpoint, batch
        The checkpoint's path, and a batch that it has committed.
    result
        The file to which it writes what it found, as a JSON list.
    panes
        If windows are made of panes: their size, their slide and the watermark, in milliseconds.
    of
        Only what is kept of a key: the names of all its columns, of some the values, as text; how many rows at most.
    """
    arguments = ["--checkpoint", checkpoint, "--batch", str(batch), "--result", str(result)]
    if panes:
        arguments += ["--panes", *map(str, panes)]
    if pipeline.keeps in ("dedupe", "processor"):
        arguments.append(f"--{pipeline.keeps}")
    if of is not None:
        arguments += ["--of", json.dumps(of)]
    return _submit("read_state.py", pipeline, arguments, spark, (), small=True)


def audit_windows(
    pipeline: Pipeline,
    plan: Path,
    result: Path,
    *,
    spark: Connection,
    kafka: Connections,
    decoder: Connection | None = None,
    settings: Spark | None = None,
) -> SparkSubmit:
    """Return the application that recomputes windows and compares them with the table; it writes none.

    Parameters
    ----------
    plan, result
        The files with what is recomputed, and for what was found; both JSON.
    settings
        As of :func:`bounded_run`.
    """
    arguments = ["--pipeline", str(pipeline.file), "--plan", str(plan), "--result", str(result)]
    others = (kafka, decoder)
    return _submit("audit_windows.py", pipeline, arguments, spark, others, small=False, settings=settings)


def _submit(
    main: str,
    pipeline: Pipeline,
    arguments: list[str],
    spark: Connection,
    others: Iterable[Connections],
    *,
    small: bool,
    settings: Spark | None = None,
    writes: bool = False,
) -> SparkSubmit:
    if writes:
        check_places(pipeline)
    settings = settings or pipeline.spark
    home = Home.from_env()
    master = spark_master(spark)
    # resolved, so that homes that link to the same jars have the same class path and share the class-data archive
    found = [jar.resolve() for jar in jars.paths("spark")]
    # the class-data archive covers only jars on the driver's class path, whatever the master: the driver always runs
    # here; executors elsewhere need --jars as well
    local = master.startswith("local")
    light = small and local and "TieredStopAtLevel" not in settings.conf.get("spark.driver.defaultJavaOptions", "")
    env = {
        "SLUICE_HOME": home.root,
        "SPARK_HOME": os.environ.get("SPARK_HOME") or _spark_home(),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # arguments and times without a zone mean the same wherever a driver starts: a JVM of another locale may have no
        # letters for a text, and PySpark takes a time without a zone for one of the process's zone
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1") if local else "",
    }
    for name in ("SLUICE_LEDGER_URL", "SLUICE_KILL_AT"):
        if name in os.environ:
            env[name] = os.environ[name]
    for given in others:
        for connection in [given] if isinstance(given, Connection) else given or ():
            env[variable_of(connection.conn_id)] = connection.to_json()
    return SparkSubmit(
        application=shipped(f"spark_jobs/{main}"),
        arguments=arguments,
        master=master,
        conf=DEFAULTS
        | (LOCAL if local else {})
        | (WORKERS if local and "spark.pyspark.python" not in settings.conf else {})
        | settings.conf
        | CORE
        | {"spark.sql.warehouse.dir": home.join("warehouse")}  # by default Spark creates one in the working directory
        | {"spark.driver.extraClassPath": ":".join(map(str, found))},
        jars=[] if local else found,
        java_options=" ".join(_java_options(home, light=light)),
        name=f"sluice-{pipeline.name}",
        env={k: v for k, v in env.items() if v},
        resources=settings.resources,
    )


def archive_file(home: Home) -> Path:
    """Return the path of the class-data archive of a home's runs; see :mod:`sluice.local.archive`.

    ``SLUICE_JVM_ARCHIVE`` names another file: an image brings one, and a home that is a volume would hide it.
    """
    named = os.environ.get("SLUICE_JVM_ARCHIVE")
    return base() / named if named else Path(home.root) / "jvm" / "spark.jsa"


def archive_stamp(archive: Path) -> str:
    """Return the stamp of a finished archive: its size and modification time."""
    found = archive.stat()
    return f"{found.st_size} {found.st_mtime_ns}"


def is_whole(archive: Path) -> bool:
    """Return whether an archive is intact: the JVM ignores one that does not fit, but crashes on a truncated one."""
    try:
        return archive.with_suffix(".stamp").read_text() == archive_stamp(archive)
    except OSError:
        return False


def _spark_home() -> str:
    """Return the folder of the installed pyspark; its scripts would search it with any ``python`` on the path."""
    found = importlib.util.find_spec("pyspark")
    return next(iter(found.submodule_search_locations or [""])) if found else ""


def _java_options(home: Home, *, light: bool) -> list[str]:
    """Return JVM flags that shorten the start of an application.

    :mod:`sluice.local.archive` creates the class-data archive; with ``-Xshare:auto`` (the default) the JVM silently
    ignores one that does not fit its class path.
    """
    options = [
        "-XX:+UseParallelGC",
        "-Xlog:disable",
        "-Xlog:all=error:stderr",
        f"-Dlog4j2.configurationFile=file:{shipped('include/spark-log4j2.properties')}",
    ]
    if light:
        options.append("-XX:TieredStopAtLevel=1")
    archive = archive_file(home)
    if is_whole(archive):
        options.append(f"-XX:SharedArchiveFile={archive}")
    return options
