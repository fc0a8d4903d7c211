"""The pipeline file as a pydantic model. Unknown keys are refused; everything optional has a default that works."""

from __future__ import annotations

import re
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, create_model, field_validator, model_validator

from sluice.decoders.config import BytesDecode, CsvDecode, JsonDecode, TextDecode
from sluice.errors import ConfigError
from sluice.fields import Duration, Strict, given, one_of
from sluice.kinds import BUILT_IN, kind_of
from sluice.pipeline.airflow import Airflow
from sluice.pipeline.quality import Quality
from sluice.pipeline.spark import Spark
from sluice.pipeline.starting import Lag, Schedule
from sluice.recovery import Recovery
from sluice.sinks.base import SinkConfig, SinkKind
from sluice.sinks.delta import DeltaSink
from sluice.sources.base import SourceConfig, SourceKind
from sluice.sources.kafka.config import KafkaSource

__all__ = [
    "Decode",
    "IntervalRuns",
    "Pipeline",
    "Quarantine",
    "Rows",
    "Sink",
    "Source",
    "Transform",
    "Wal",
    "model_for",
]

_NAME = re.compile(r"^[a-z][a-z0-9_-]{0,62}$")


class Rows(StrEnum):
    """What the transform promises about rows; checked before each commit."""

    ONE = "one"
    """One sink row per record."""
    FILTER = "filter"
    """At most one sink row per record."""
    MANY = "many"
    """Any number of sink rows per record."""
    AGGREGATE = "aggregate"
    """Sink rows are no longer of single records; metadata columns but ``_run`` need not survive."""


class Source(Strict):
    """Where records come from."""

    kafka: KafkaSource | None = None
    """Topics of a Kafka cluster."""

    @model_validator(mode="after")
    def _one(self) -> Source:
        one_of(self, "source")
        return self

    @property
    def key(self) -> str:
        """Its key in the file."""
        return given(self)[0]

    @property
    def kind(self) -> SourceKind:
        """What it can do."""
        kind: SourceKind = kind_of("sources", self.key)
        return kind

    @property
    def config(self) -> SourceConfig:
        """What the file says of it."""
        config: SourceConfig = getattr(self, self.key)
        return config


class Decode(Strict):
    """How a record's value becomes columns."""

    json_: Annotated[JsonDecode | None, Field(alias="json")] = None
    """One JSON object per record."""
    csv: CsvDecode | None = None
    """One CSV record (RFC 4180) per record."""
    text: TextDecode | None = None
    """``text: {}``: UTF-8 text, in a column ``value``."""
    bytes: BytesDecode | None = None
    """``bytes: {}``: as they are, in columns ``key`` and ``value``."""

    @model_validator(mode="after")
    def _one(self) -> Decode:
        one_of(self, "decode")
        return self

    @property
    def key(self) -> str:
        """Which decoder it is."""
        return given(self)[0]

    @property
    def config(self) -> Any:
        """What the file says of it."""
        return next(value for value in (getattr(self, name) for name in type(self).model_fields) if value is not None)


class Transform(Strict):
    """A pure function of the decoded batch, as SQL over ``source`` or as ``package.module:function``."""

    sql: str | None = None
    """A ``SELECT`` over ``source``: the decoded columns and the metadata columns, which must survive."""
    python: str | None = None
    """``package.module:function``, which takes and returns a DataFrame; ``include/`` of a checkout is on its path."""

    @model_validator(mode="after")
    def _one(self) -> Transform:
        one_of(self, "transform")
        return self

    @field_validator("python")
    @classmethod
    def _python(cls, target: str | None) -> str | None:
        if target is not None:
            from sluice.pipeline.targets import check_function

            check_function(target)
        return target


class Sink(Strict):
    """Where rows go."""

    delta: DeltaSink | None = None
    """A Delta table, which is made by the first run."""

    @model_validator(mode="after")
    def _one(self) -> Sink:
        one_of(self, "sink")
        return self

    @property
    def key(self) -> str:
        """Its key in the file."""
        return given(self)[0]

    @property
    def kind(self) -> SinkKind:
        """What it can do."""
        kind: SinkKind = kind_of("sinks", self.key)
        return kind

    @property
    def config(self) -> SinkConfig:
        """What the file says of it."""
        config: SinkConfig = getattr(self, self.key)
        return config


class QuarantineTable(Strict):
    """A Delta table of refused records."""

    path: Annotated[str, Field(min_length=1)]
    """Below ``SLUICE_HOME``, absolute, or a URL. Not to be changed while it holds records: they stay where they are."""


class Quarantine(Strict):
    """Where refused records are kept, verbatim: a dead-letter table."""

    delta: QuarantineTable
    """A Delta table; by default ``PATH_quarantine`` beside a Delta sink, else ``quarantine/PIPELINE``."""


class Wal(Strict):
    """The write-ahead log; used by ``recovery: wal`` alone."""

    keep: Duration = timedelta(days=30)
    """How long applied segments are kept, by record time; ``sluice clean`` removes them earlier."""
    segment_records: Annotated[int, Field(ge=1)] = 1_000_000
    """A segment holds at most this many records."""
    roll: Duration = timedelta(seconds=60)
    """A segment is sealed at the latest this long after its first record arrived in the log, by the pace measured."""


class IntervalRuns(Strict):
    """Runs of an interval of record time."""

    slack: Duration = timedelta(0)
    """No longer needed, and without effect: an interval finds its records whatever the order of their times."""


class Pipeline(Strict):
    """One pipeline: everything that a run needs to know, without secrets."""

    name: Annotated[str, Field(alias="pipeline")]
    """Names the DAG, the checkpoint and the ledger's entries: a-z, 0-9, _ and -."""
    source: Source
    """Where records come from."""
    decode: Decode
    """How a record's value becomes columns; exactly one way."""
    transform: Transform = Transform(sql="SELECT * FROM source")
    """What becomes of a decoded batch; as it is by default."""
    rows: Rows = Rows.ONE
    """What the transform promises: ``one`` row per record, ``filter`` at most one, ``many``, or ``aggregate``."""
    sink: Sink
    """Where rows go."""
    quarantine: Quarantine | None = None
    """Where refused records are kept; by default beside a Delta sink."""
    quality: Quality = Quality()
    """Who judges each run."""
    recovery: Recovery = Recovery.REPLAY
    """How a run recovers, unless the task or the run says otherwise."""
    wal: Wal = Wal()
    """The write-ahead log of ``recovery: wal``."""
    interval: IntervalRuns = IntervalRuns()
    """Runs of an interval of record time."""
    spark: Spark = Spark()
    """What its Spark applications get."""
    airflow: Airflow = Airflow()
    """How Airflow runs the DAG's tasks."""
    schedule: Schedule | Literal["on_lag", "none"] = "none"
    """When the DAG runs by itself: by the clock, when enough waits (``on_lag``), or never."""
    lag: Lag = Lag()
    """Which backlog is worth a run; also what ``sluice lag`` and the task ``wait_for_lag`` judge by."""

    _file: Path | None = PrivateAttr(default=None)

    @field_validator("name")
    @classmethod
    def _name(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r}: use a-z, 0-9, _ and -, beginning with a letter, at most 63 characters")
        return name

    @model_validator(mode="after")
    def _recovery(self) -> Pipeline:
        refusal = self.refusal(self.recovery)
        if refusal:
            raise ValueError(refusal)
        return self

    @model_validator(mode="after")
    def _possible(self) -> Pipeline:
        """Hold what is asked for to what source and sink can do."""
        sink = self.sink.kind
        if not sink.transactional:
            raise ValueError(
                f"sink.{self.sink.key} cannot commit a batch together with its mark, so that a crash would lose or "
                "double rows: choose a sink that can, such as sink.delta"
            )
        if self.schedule == "on_lag" and self.source.kafka is None:
            raise ValueError(f"schedule: on_lag cannot watch source.{self.source.key}: give it a cron schedule")
        if self.lag.on_idle != "proceed" and self.source.kafka is None:
            raise ValueError(f"lag.on_idle: the lag of source.{self.source.key} is not known: leave it out")
        if self.lag.on_idle != "proceed" and not isinstance(self.schedule, Schedule):
            raise ValueError(
                f"lag.on_idle: {self.lag.on_idle} is for runs of a cron schedule, and the schedule is {self.schedule}: "
                "give a cron, or leave it out"
            )
        if self.lag.mirror_group is not None and self.source.kafka is None:
            raise ValueError(
                f"lag.mirror_group is a consumer group, and source.{self.source.key} has none: leave it out"
            )
        if self.quality.suite is not None and not sink.readable:
            raise ValueError(
                f"quality.suite judges rows that are read back, and those of sink.{self.sink.key} cannot be: leave the "
                "suite out, or choose sink.delta"
            )
        return self

    @field_validator("schedule", mode="before")
    @classmethod
    def _schedule(cls, value: Any) -> Any:
        return "none" if value is None else value

    @property
    def file(self) -> Path:
        """The file that this pipeline was read from.

        Raises
        ------
        ValueError
            When the model was not made by :func:`sluice.pipeline.load`.
        """
        if self._file is None:
            raise ValueError("this pipeline was not read from a file")
        return self._file

    @property
    def aggregates(self) -> bool:
        """Whether rows cannot be traced to single records: ``rows: aggregate``."""
        return self.rows is Rows.AGGREGATE

    @property
    def kafka(self) -> KafkaSource:
        """The source, where only Kafka will do.

        Raises
        ------
        ConfigError
            When it is another one.
        """
        if self.source.kafka is None:
            raise ConfigError(
                f"pipeline {self.name!r} reads from source.{self.source.key}, and this is for source.kafka alone",
                state="nothing was read or written",
                next_step="sluice status and sluice audit tell of it, whatever its source",
            )
        return self.source.kafka

    @property
    def suite_file(self) -> Path | None:
        """The suite, looked up beside the pipeline's folder (``include/``), then beside the file."""
        if self.quality.suite is None:
            return None
        folders = (self.file.parent.parent, self.file.parent)
        found = [folder / self.quality.suite for folder in folders if (folder / self.quality.suite).is_file()]
        return found[0] if found else folders[0] / self.quality.suite

    @property
    def no_intervals(self) -> str | None:
        """Why intervals of it cannot be replaced; None when they can."""
        if self.aggregates:
            return (
                f"pipeline {self.name!r} has rows: aggregate: its rows do not say which records they came from, so "
                "those of an interval cannot be replaced"
            )
        if not self.source.kind.replayable:
            return f"pipeline {self.name!r} has no intervals: source.{self.source.key} cannot be read again"
        if not self.source.kind.seek_by_time:
            return (
                f"pipeline {self.name!r} has no intervals: source.{self.source.key} cannot say which records are of a "
                "time"
            )
        if not self.sink.kind.replaceable:
            return f"pipeline {self.name!r} has no intervals: rows of sink.{self.sink.key} cannot be replaced"
        return None

    def refusal(self, recovery: Recovery) -> str | None:
        """Return why it cannot have a strategy; None when it can."""
        if not self.source.kind.replayable and recovery is not Recovery.WAL:
            return (
                f"recovery: {recovery} reads records again, and source.{self.source.key} cannot: choose recovery: wal"
            )
        return recovery.refusal(aggregates=self.aggregates)

    @property
    def delta_path(self) -> str:
        """Where the sink is, for what only a Delta table can do; a relative path is relative to ``SLUICE_HOME``.

        Raises
        ------
        ConfigError
            When it is another sink.
        """
        if not self.sink.kind.delta:
            raise ConfigError(
                f"pipeline {self.name!r} writes to sink.{self.sink.key}, and this is for Delta tables alone",
                state="nothing was read or written",
                next_step=f"sluice audit {self.name} proves the account from the ledger alone, whatever the sink",
            )
        return self.sink.config.path

    @property
    def quarantine_path(self) -> str:
        """Where refused records are kept; a relative path is relative to ``SLUICE_HOME``."""
        if self.quarantine is not None:
            return self.quarantine.delta.path
        return f"{self.sink.config.path}_quarantine" if self.sink.kind.delta else f"quarantine/{self.name}"


def model_for(data: Any) -> type[Pipeline]:
    """Return the model that reads a file: :class:`Pipeline`, with the keys of other packages that the file uses.

    Parameters
    ----------
    data
        The file's mapping, as YAML reads it; whatever is wrong with it is left for the model to say.
    """
    parts: dict[str, Any] = {}
    if not isinstance(data, dict):
        return Pipeline
    sections: tuple[tuple[str, str, type[Strict]], ...] = (
        ("source", "sources", Source),
        ("sink", "sinks", Sink),
        ("decode", "decoders", Decode),
    )
    for name, group, model in sections:
        section = data.get(name)
        own = section if isinstance(section, dict) else {}
        keys = [key for key in own if isinstance(key, str) and key not in BUILT_IN[group]]
        more: dict[str, Any] = {
            key: (kind.config | None, None) for key in keys if (kind := kind_of(group, key)) is not None
        }
        if more:
            parts[name] = (create_model(model.__name__, __base__=model, __doc__=model.__doc__, **more), ...)
    return create_model("Pipeline", __base__=Pipeline, __doc__=Pipeline.__doc__, **parts) if parts else Pipeline
