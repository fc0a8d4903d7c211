"""Builds the spark-submit command: ``sluice run`` starts it itself, the Airflow operator by the Spark provider."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from sluice.connections import Connection, variable_of
from sluice.errors import ConfigError
from sluice.home import Home
from sluice.launch import jars
from sluice.launch.preflight import check_places
from sluice.launch.programs import check_programs
from sluice.pipeline import Pipeline
from sluice.pipeline.load import refuse_namesake
from sluice.pipeline.sections import EVERYTHING
from sluice.pipeline.spark import CORE, DEFAULTS, LOCAL, WORKERS, Spark
from sluice.run.actions import Action, RunRequest
from sluice.shipped import base, shipped

__all__ = ["SparkSubmit", "archive_file", "archive_stamp", "is_small", "is_whole", "spark_master", "submit"]

_MASTER = re.compile(r"^(local(\[[^\]]+\])?|spark://[^/]+:\d+|yarn|k8s://.+)$")

_SMALL = 200_000


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


def submit(
    pipeline: Pipeline,
    action: Action,
    *,
    spark: Connection,
    find: Callable[[str], Connection],
    settings: Spark | None = None,
    small: bool | None = None,
) -> SparkSubmit:
    """Return the application that carries out an action.

    Parameters
    ----------
    find
        Returns a connection by its id: those that the action needs.
    settings
        Of Spark, instead of the pipeline file's.
    small
        Whether to skip the JVM's optimizing compiler; by default as the action says. :func:`is_small` says it of a run.

    Raises
    ------
    ConfigError
        If a connection that is needed is not defined, or Java or Spark is not where a variable says; or if the action
        writes, and another file has the pipeline's name.
    SinkError
        If the action writes, and home, sink or quarantine cannot be written.
    """
    spark_home = os.environ.get("SPARK_HOME") or _spark_home()
    check_programs(spark_home)
    if action.writes:
        refuse_namesake(pipeline)
        check_places(pipeline)
    settings = settings or pipeline.spark
    home = Home.from_env()
    master = spark_master(spark)
    # resolved, so that homes that link to the same jars have the same class path and share the class-data archive
    found = [jar.resolve() for jar in jars.paths("spark")]
    # the class-data archive covers only jars on the driver's class path, whatever the master: the driver always runs
    # here; executors elsewhere need --jars as well
    local = master.startswith("local")
    light = action.small if small is None else small
    light = light and local and "TieredStopAtLevel" not in settings.conf.get("spark.driver.defaultJavaOptions", "")
    env = {
        "SLUICE_HOME": home.root,
        "SPARK_HOME": spark_home,
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
    for name in _needed(pipeline, action):
        env[variable_of(name)] = find(name).to_json()
    return SparkSubmit(
        application=shipped("spark_jobs/job.py"),
        arguments=[str(pipeline.file), *action.arguments()],
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


def _needed(pipeline: Pipeline, action: Action) -> list[str]:
    """Return the ids of the connections that an action needs."""
    source = pipeline.source.config
    ids: dict[str, Iterable[str | None]] = {
        "source": [source.needs, *source.needs_also] if source.needs else [],
        "sink": pipeline.sinks_need,
        "decoder": [pipeline.decode.needs],
    }
    return [name for part in action.needed for name in ids[part] if name]


def is_small(pipeline: Pipeline, request: RunRequest, *, waiting: int | None, engine: str | None) -> bool:
    """Return whether the JVM's optimizing compiler will probably not pay off in a run.

    Parameters
    ----------
    waiting
        The approximate number of waiting records, if known.
    engine
        What processed the records of the run before: :meth:`sluice.ledger.runs.Runs.engine`. Where Python's workers
        process all records, the compiler would take the cores from them.
    """
    if waiting is not None and waiting <= _SMALL:
        return True
    if pipeline.spark_alone(request.recovery or pipeline.recovery) is not None:
        return False
    # what another statement needs, only Spark's side can tell
    return engine == "arrow" or (engine is None and pipeline.transform.sql in (None, EVERYTHING))


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
    if is_whole(archive) and not any(map(str.isspace, str(archive))):  # Spark divides the options at blanks
        options.append(f"-XX:SharedArchiveFile={archive}")
    return options
