"""The key ``spark`` of a pipeline file: what the Spark application gets, and what is the core's own to set."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError, field_validator

from sluice.errors import ConfigError
from sluice.fields import Strict
from sluice.pipeline.mistakes import said
from sluice.storage import has_secret

__all__ = ["CORE", "LOCAL", "RESERVED", "RESOURCES", "WORKERS", "Spark"]

CORE = {
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
    # the default manager starts a process for each look at a file of the checkpoint: some 16 a batch
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming.checkpointing."
    "FileSystemBasedCheckpointFileManager",
    # damage is an error, whoever's defaults are in spark-defaults.conf
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    # files are named one by one from a table's log: more than 32 of them must not cost a Spark job to list
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    "spark.ui.showConsoleProgress": "false",
    # a table would need a feature that neither Spark's Delta nor delta-rs enters into its protocol
    "spark.sql.variant.writeShredding.enabled": "false",
}
"""Settings of every application, which are reserved: rows, their times and the account depend on them."""

DEFAULTS = {
    "spark.ui.enabled": "false",
    # with it each operation on a column asks the JVM for settings and tells it where it was called in Python: 0.6 s of
    # each batch with 60 columns
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
"""Settings of every application where ``conf`` says nothing else. Spark's web UI costs time at each start."""

LOCAL = {
    # by default Spark ends the JVM when a task runs out of stack, as Java's regular expressions do on long texts, or of
    # heap: the failure would be silent, no strategy could skip the record, and the exit codes 50 and 51 are others here
    "spark.executor.killOnFatalError.depth": "0",
}
"""Settings of every application whose driver is its only executor."""

WORKERS = {
    # workers share what they import, and import it once
    "spark.python.daemon.module": "sluice_spark.daemon",
}
"""More of them, where workers have the driver's Python."""

WEB_UI = "Spark's web UI: "
"""The words before its address in a driver's log."""

RESERVED = {
    "spark.master": "the Spark connection's host is the master",
    "spark.submit.deployMode": "it is client: a driver's exit code is lost in cluster mode",
    "spark.app.name": "it is made of the pipeline's name",
    "spark.jars": "it holds the jars of the lock file; name more as Maven coordinates in spark.jars.packages",
    "spark.driver.extraClassPath": "it holds the jars of the lock file; name more in spark.jars.packages",
    "spark.driver.extraJavaOptions": "write spark.driver.defaultJavaOptions, which the JVM gets as well",
    "spark.sql.warehouse.dir": "it lies in SLUICE_HOME",
    "spark.driver.memory": "write driver_memory",
    "spark.executor.memory": "write executor_memory",
    "spark.executor.cores": "write executor_cores",
    "spark.executor.instances": "write num_executors",
    "spark.cores.max": "write total_executor_cores",
}
"""More keys that ``conf`` cannot have, each with what to do instead."""

RESOURCES = ("driver_memory", "executor_memory", "executor_cores", "num_executors", "total_executor_cores")
"""The keys that are options of ``spark-submit``, by the names that Airflow has for them."""

_SECRET = re.compile(r"secret|passw(or)?d|token|(access|account|private|api)[._-]?key|\.sas\.", re.IGNORECASE)
_HARMLESS = re.compile(
    r"(providers?|type|enabled|file|endpoint)$|^spark\.kubernetes\.(driver|executor)\.(secrets|secretKeyRef)\.",
    re.IGNORECASE,
)
"""Keys that say where a secret is, and not what it is."""
_MEMORY = re.compile(r"^[1-9]\d*[kmgt]b?$", re.IGNORECASE)


def _text(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _memory(value: Any) -> Any:
    if not isinstance(value, str) or not _MEMORY.match(value):
        raise ValueError(f"{value!r} is no amount of memory, such as 512m or 4g")
    return value


Memory = Annotated[str, BeforeValidator(_memory), Field(json_schema_extra={"pattern": r"^[1-9]\d*[kKmMgGtT][bB]?$"})]
"""An amount of memory as a JVM takes it. Without a unit it would mean bytes, or megabytes, depending on who reads."""

Value = Annotated[str, BeforeValidator(_text, json_schema_input_type=str | int | float | bool)]
Count = Annotated[int, Field(ge=1)]


class Spark(Strict):
    """What the pipeline's Spark applications get: its runs, its redrives, and judging again."""

    connection: Annotated[str, Field(min_length=1)] = "spark_default"
    """An Airflow connection's id; its host is the master."""
    conf: dict[str, Value] = Field(default_factory=dict)
    """Spark's settings by their names. What Sluice sets itself, and secrets, are refused here."""
    driver_memory: Memory | None = None
    """The heap of the driver's JVM, such as ``4g``; a master ``local`` has no other. Spark's default is 1g."""
    executor_memory: Memory | None = None
    """The heap of each executor's JVM; not with a master ``local``."""
    executor_cores: Count | None = None
    """Cores of each executor; not with a master ``local``."""
    num_executors: Count | None = None
    """How many executors; on YARN and Kubernetes alone."""
    total_executor_cores: Count | None = None
    """Cores of all executors together; on a standalone cluster and Kubernetes alone."""

    @field_validator("conf")
    @classmethod
    def _conf(cls, conf: dict[str, str]) -> dict[str, str]:
        problems = [f"{key}: {why}" for key in conf if (why := _refusal(key, conf[key])) is not None]
        if problems:
            raise ValueError("; ".join(problems))
        return conf

    def over(self, **instead: Any) -> Spark:
        """Return these settings with others in their place; ``conf`` key by key, and None for nothing.

        Raises
        ------
        ConfigError
            When one of them cannot be set.
        """
        given = {key: value for key, value in instead.items() if value is not None}
        if isinstance(given.get("conf"), dict):
            given["conf"] = self.conf | given["conf"]
        try:
            return type(self).model_validate(self.model_dump() | given)
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {said(e)}" for e in error.errors())
            raise ConfigError(
                f"these Spark settings cannot be had: {wrong}",
                state="nothing was read or written",
                next_step="fix them where the task or the DAG names them: docs/pipeline.md lists what spark takes",
            ) from None

    @property
    def resources(self) -> dict[str, str]:
        """What ``spark-submit`` has options for, of :data:`RESOURCES`; what is not given is not there."""
        return {key: str(value) for key in RESOURCES if (value := getattr(self, key)) is not None}


def _refusal(key: str, value: str = "") -> str | None:
    if key in CORE:
        return f"Sluice sets it to {CORE[key]!r}; leave it out"
    if key in RESERVED:
        return f"{RESERVED[key]}; leave it out here"
    if not key.startswith("spark."):
        return "Spark ignores a key that does not begin with spark."
    if (_SECRET.search(key) and not _HARMLESS.search(key)) or has_secret(value):
        return (
            "a secret would be in the command line, which every user of the machine can read; put it where Spark's "
            "driver finds it, such as a credentials provider or conf/spark-defaults.conf"
        )
    return None
