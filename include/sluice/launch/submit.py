"""The one spark-submit: ``sluice run`` starts it itself, the Airflow operator hands it to the Spark provider."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sluice.connections import Connection, variable_of
from sluice.errors import ConfigError
from sluice.home import Home
from sluice.launch import jars
from sluice.pipeline import Pipeline
from sluice.ranges import OffsetRange
from sluice.run.request import RunRequest
from sluice.shipped import base, shipped
from sluice.text import checked_run

__all__ = [
    "SparkSubmit",
    "archive_file",
    "archive_stamp",
    "bounded_run",
    "is_whole",
    "redrive",
    "spark_master",
    "validate_sink",
    "validate_spec",
]

_MASTER = re.compile(r"^(local(\[[^\]]+\])?|spark://[^/]+:\d+|yarn|k8s://.+)$")

_SMALL = 200_000

_CONF = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    # strategy hot: for a minute after one executor died the others would know of no new one to send a second copy to
    "spark.storage.cachedPeersTtl": "0",
    # each read of a range makes consumers of its own, which hold what they fetched ahead (megabytes, see _BULK in
    # sources/kafka.py) until they are let go of: five minutes by default, and an old generation full of them
    "spark.kafka.consumer.cache.timeout": "15s",
    "spark.kafka.consumer.cache.evictorThreadRunInterval": "5s",
    "spark.kafka.consumer.fetchedData.cache.timeout": "15s",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "5s",
    # damage is an error, whoever's defaults are in spark-defaults.conf
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    # files are named one by one from a table's log: more than 32 of them must not cost a Spark job to list
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@dataclass(frozen=True)
class SparkSubmit:
    """A Spark application, ready to be started.

    ``env`` holds the connections' secrets: it goes to the child's environment, never into argv or a log.
    """

    application: Path
    arguments: list[str]
    master: str
    conf: dict[str, str]
    jars: list[Path]
    java_options: str
    name: str
    env: dict[str, str] = field(repr=False)

    def argv(self) -> list[str]:
        """Return the command line that starts it here.

        Raises
        ------
        ConfigError
            When there is no ``spark-submit`` beside this Python or on the path.
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
        When it is not the JSON form of a ``spark`` connection with a master as its host (Airflow's Spark hook would
        submit to ``yarn`` in silence instead), or when it asks for cluster mode.
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
    kafka: Connection | None,
    waiting: int | None = None,
) -> SparkSubmit:
    """Return the application of one run.

    Parameters
    ----------
    kafka
        The connection of the source, if it needs one.
    waiting
        About how many records wait, when the caller knows: a small run skips the JVM's optimizing compiler, whose work
        it would not live to enjoy.
    """
    arguments = ["--pipeline", str(pipeline.file), *request.arguments()]
    small = waiting is not None and waiting <= _SMALL
    return _submit("bounded_run.py", pipeline, arguments, spark, kafka, small=small)


def redrive(
    pipeline: Pipeline,
    run: str,
    *,
    spark: Connection,
    kafka: Connection | None,
    ranges: Sequence[OffsetRange] = (),
    of_run: str | None = None,
    quarantined: bool = False,
    validate: bool = True,
) -> SparkSubmit:
    """Return the application that redrives what was lost, or what was quarantined.

    Parameters
    ----------
    ranges
        Only these offsets; none for all.
    of_run
        Only what this run lost or quarantined.
    """
    arguments = ["--pipeline", str(pipeline.file), "--run", checked_run(run)]
    for item in ranges:
        arguments += ["--range", f"{item.topic}:{item.partition}:{item.start}-{item.end}"]
    if of_run is not None:
        arguments += ["--of-run", of_run]
    arguments += ["--quarantined"] * quarantined + ["--no-validate"] * (not validate)
    return _submit("redrive.py", pipeline, arguments, spark, kafka, small=True)


def validate_sink(pipeline: Pipeline, run: str, *, spark: Connection, kafka: Connection | None = None) -> SparkSubmit:
    """Return the application that judges a run again."""
    return _submit(
        "validate_sink.py", pipeline, ["--pipeline", str(pipeline.file), "--run", run], spark, kafka, small=True
    )


def validate_spec(pipelines: Sequence[Pipeline], result: Path) -> SparkSubmit:
    """Return the application that checks what only Spark and Great Expectations know of pipelines.

    It runs here, whatever the Spark connection says: no record is read.

    Parameters
    ----------
    result
        Where it writes, as JSON, the list of problems of each file.
    """
    arguments = [word for pipeline in pipelines for word in ("--pipeline", str(pipeline.file))]
    spark = Connection("spark_default", "spark", host="local[1]")
    return _submit("validate_spec.py", pipelines[0], [*arguments, "--result", str(result)], spark, None, small=True)


def _submit(
    main: str,
    pipeline: Pipeline,
    arguments: list[str],
    spark: Connection,
    kafka: Connection | None,
    *,
    small: bool,
) -> SparkSubmit:
    home = Home.from_env()
    master = spark_master(spark)
    # resolved: homes that link to the same jars share one class path, and with it one class-data archive
    found = [jar.resolve() for jar in jars.paths("spark")]
    # on the driver's own class path the jars are in reach of the class-data archive, whoever the master is: the driver
    # always runs here. Executors elsewhere need --jars as well
    local = master.startswith("local")
    env = {
        "SLUICE_HOME": home.root,
        "SPARK_HOME": os.environ.get("SPARK_HOME") or _spark_home(),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1") if local else "",
    }
    for name in ("SLUICE_LEDGER_URL", "SLUICE_KILL_AT"):
        if name in os.environ:
            env[name] = os.environ[name]
    if kafka is not None:
        env[variable_of(kafka.conn_id)] = kafka.to_json()
    return SparkSubmit(
        application=shipped(f"spark_jobs/{main}"),
        arguments=arguments,
        master=master,
        conf=_CONF
        | {"spark.sql.warehouse.dir": home.join("warehouse")}  # by default Spark makes one wherever it is started
        | {"spark.driver.extraClassPath": ":".join(map(str, found))},
        jars=[] if local else found,
        java_options=" ".join(_java_options(home, master, small=small)),
        name=f"sluice-{pipeline.name}",
        env={k: v for k, v in env.items() if v},
    )


def archive_file(home: Home) -> Path:
    """Return where the class-data archive of a home's runs is kept; see :mod:`sluice.local.archive`.

    ``SLUICE_JVM_ARCHIVE`` names another file: an image brings one, and a home that is a volume would hide it.
    """
    named = os.environ.get("SLUICE_JVM_ARCHIVE")
    return base() / named if named else Path(home.root) / "jvm" / "spark.jsa"


def archive_stamp(archive: Path) -> str:
    """Return what is noted beside a finished archive: its size and time."""
    found = archive.stat()
    return f"{found.st_size} {found.st_mtime_ns}"


def is_whole(archive: Path) -> bool:
    """Tell whether an archive is as it was made: the JVM ignores one that does not fit, but dies of a cut one."""
    try:
        return archive.with_suffix(".stamp").read_text() == archive_stamp(archive)
    except OSError:
        return False


def _spark_home() -> str:
    """Return the folder of the installed pyspark: its scripts look for it with whatever ``python`` is on the path."""
    found = importlib.util.find_spec("pyspark")
    return next(iter(found.submodule_search_locations or [""])) if found else ""


def _java_options(home: Home, master: str, *, small: bool) -> list[str]:
    """Return JVM flags that make short applications short.

    The class-data archive comes from :mod:`sluice.local.archive`; with ``-Xshare:auto`` (the default) the JVM ignores
    one that does not fit its class path, without a word.
    """
    options = [
        "-XX:+UseParallelGC",
        "-Xlog:disable",
        "-Xlog:all=error:stderr",
        f"-Dlog4j2.configurationFile=file:{shipped('include/spark-log4j2.properties')}",
    ]
    if small and master.startswith("local"):
        options.append("-XX:TieredStopAtLevel=1")
    archive = archive_file(home)
    if is_whole(archive):
        options.append(f"-XX:SharedArchiveFile={archive}")
    return options
