"""The sections of a pipeline file: what each key stands for. :mod:`sluice.pipeline.model` holds them together."""

from __future__ import annotations

import re
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, Field, field_validator, model_validator

from sluice.decoders.avro import AvroDecode
from sluice.decoders.config import BytesDecode, CsvDecode, JsonDecode, Keyed, TextDecode
from sluice.decoders.protobuf import ProtobufDecode
from sluice.decoders.registered import Registered
from sluice.fields import Duration, Strict, given, one_of
from sluice.kinds import kind_of
from sluice.rules.config import NotNullRule, SqlRule
from sluice.sinks.base import SinkConfig, SinkKind
from sluice.sinks.console import ConsoleSink
from sluice.sinks.delta import DeltaSink
from sluice.sinks.files import FilesSink
from sluice.sinks.foreach import ForeachSink
from sluice.sinks.iceberg import IcebergSink
from sluice.sinks.kafka import KafkaSink
from sluice.sinks.postgres import PostgresSink
from sluice.sources.base import SourceConfig, SourceKind
from sluice.sources.files.config import FileSource
from sluice.sources.jdbc.config import JdbcSource
from sluice.sources.kafka.config import KafkaSource
from sluice.sources.queue.config import QueueSource
from sluice.sources.rate.config import RateSource

__all__ = [
    "EVERYTHING",
    "Decode",
    "IntervalRuns",
    "Quarantine",
    "QuarantineTable",
    "Rows",
    "Rule",
    "Sink",
    "Source",
    "Transform",
    "Vacuum",
    "Wal",
]


class Rows(StrEnum):
    """What the transform promises about rows; checked before each commit."""

    ONE = "one"
    """One sink row per record."""
    FILTER = "filter"
    """At most one sink row per record."""
    MANY = "many"
    """Any number of sink rows per record."""
    AGGREGATE = "aggregate"
    """A sink row may combine many records; the result need not keep any metadata column but ``_run``."""


class Source(Strict):
    """Where records come from."""

    kafka: KafkaSource | None = None
    """Topics of a Kafka cluster."""
    file: FileSource | None = None
    """Files that others put into a folder."""
    jdbc: JdbcSource | None = None
    """Rows of a PostgreSQL table, or of a query."""
    queue: QueueSource | None = None
    """Streams of a message queue."""
    rate: RateSource | None = None
    """Made-up rows that come at a steady rate, for load tests."""

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
        """The kind of source, which declares what it can do."""
        kind: SourceKind = kind_of("sources", self.key)
        return kind

    @property
    def config(self) -> SourceConfig:
        """The source's settings in the file."""
        config: SourceConfig = getattr(self, self.key)
        return config


class Decode(Strict):
    """How a record's value becomes columns."""

    json_: Annotated[JsonDecode | None, Field(alias="json")] = None
    """One JSON object per record."""
    csv: CsvDecode | None = None
    """One CSV record (RFC 4180) per record."""
    avro: AvroDecode | None = None
    """One Avro record per record, in the wire format of schema registries."""
    protobuf: ProtobufDecode | None = None
    """One Protobuf message per record, in the wire format of schema registries."""
    text: TextDecode | None = None
    """``text: {}``: the value as UTF-8 text, in the column ``value``."""
    bytes: BytesDecode | None = None
    """``bytes: {}``: key and value unchanged, in the columns ``key`` and ``value``."""

    @model_validator(mode="after")
    def _one(self) -> Decode:
        one_of(self, "decode")
        return self

    @property
    def key(self) -> str:
        """The decoder's key in the file."""
        return given(self)[0]

    @property
    def config(self) -> Any:
        """The decoder's settings in the file."""
        return next(value for value in (getattr(self, name) for name in type(self).model_fields) if value is not None)

    @property
    def headers(self) -> dict[str, str]:
        """The columns that are headers, with the names of these."""
        return self.config.headers if isinstance(self.config, Keyed) else {}

    @property
    def deletes(self) -> bool:
        """Whether tombstones delete rows of the sink."""
        return isinstance(self.config, Keyed) and self.config.deletes

    @property
    def needs(self) -> str | None:
        """The connection that decoding needs; None if it needs none."""
        return self.config.registry if isinstance(self.config, Registered) else None

    @property
    def rescues(self) -> bool:
        """Whether unknown fields are kept in a column."""
        return self.json_ is not None and self.json_.rescue


def _rule_name(name: str) -> str:
    if not re.fullmatch(_RULE_NAME, name):
        raise ValueError(f"{name!r}: use a-z, 0-9 and _, beginning with a letter, at most 63 characters")
    return name


_RULE_NAME = r"^[a-z][a-z0-9_]{0,62}$"


class Rule(Strict):
    """A row rule: a decoded record that breaks it goes to the quarantine."""

    name: Annotated[str, AfterValidator(_rule_name), Field(json_schema_extra={"pattern": _RULE_NAME})]
    """What `_errors` calls it: a-z, 0-9 and _."""
    sql: SqlRule | None = None
    """A SQL condition on one record."""
    not_null: NotNullRule | None = None
    """Columns that must not be null."""

    @model_validator(mode="after")
    def _one(self) -> Rule:
        if len(given(self)) != 2:
            kinds = ", ".join(key for key in type(self).model_fields if key != "name")
            raise ValueError(f"rule {self.name} needs exactly one of: {kinds}")
        return self

    def made(self) -> Any:
        """Return the rule's Spark half, a ``sluice_spark.rules.base.Rule``."""
        (key,) = (key for key in given(self) if key != "name")
        return kind_of("rules", key).made(getattr(self, key))


EVERYTHING = "SELECT * FROM source"
"""The transform that changes nothing."""


class Transform(Strict):
    """A pure function of the decoded batch, as SQL over ``source`` or as ``package.module:function``."""

    sql: str | None = None
    """A ``SELECT`` over ``source``: the decoded columns and the metadata columns. The result must keep the latter."""
    python: str | None = None
    """``package.module:function``, which takes and returns a DataFrame; a checkout's ``include/`` is on the path."""
    arrow: str | None = None
    """``package.module:function``, which takes and returns a ``pyarrow.Table``.

    It gets any number of records at a time, and must treat each by itself.
    """

    @model_validator(mode="after")
    def _one(self) -> Transform:
        one_of(self, "transform")
        return self

    @property
    def key(self) -> str:
        """Its key in the file."""
        return given(self)[0]

    @field_validator("python", "arrow")
    @classmethod
    def _function(cls, target: str | None) -> str | None:
        if target is not None:
            from sluice.pipeline.targets import check_function

            check_function(target)
        return target


class Sink(Strict):
    """Where rows go."""

    delta: DeltaSink | None = None
    """A Delta table. The first run creates it."""
    files: FilesSink | None = None
    """Parquet files in a folder, with a manifest that says which of them count."""
    iceberg: IcebergSink | None = None
    """An Iceberg table. The first run creates it."""
    kafka: KafkaSink | None = None
    """A topic of a Kafka cluster."""
    postgres: PostgresSink | None = None
    """A table of a PostgreSQL database. The first run creates it."""
    foreach: ForeachSink | None = None
    """An object of yours takes the rows, at least once."""
    console: ConsoleSink | None = None
    """The first rows of each batch are printed into the driver's log, for a look."""

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
        """The kind of sink, which declares what it can do."""
        kind: SinkKind = kind_of("sinks", self.key)
        return self.config.of(kind)

    @property
    def config(self) -> SinkConfig:
        """The sink's settings in the file."""
        config: SinkConfig = getattr(self, self.key)
        return config


class QuarantineTable(Strict):
    """A Delta table of refused records."""

    path: Annotated[str, Field(min_length=1)]
    """Relative to ``SLUICE_HOME``, absolute, or a URL. Change it only while it is empty: its records do not move."""


class Quarantine(Strict):
    """Where refused records are kept, verbatim: a dead-letter table."""

    delta: QuarantineTable
    """A Delta table; by default ``PATH_quarantine`` beside a Delta sink, else ``quarantine/PIPELINE``."""


class Wal(Strict):
    """Settings of the write-ahead log that ``recovery: wal`` uses."""

    keep: Duration = timedelta(days=30)
    """How long applied segments are retained, by record time; ``sluice clean`` can remove them earlier."""
    segment_records: Annotated[int, Field(ge=1)] = 1_000_000
    """The maximum number of records in a segment."""
    roll: Duration = timedelta(seconds=60)
    """Maximum time from a segment's first record arriving in the log to the seal, estimated from the measured pace."""


class Vacuum(Strict):
    """Settings of ``sluice vacuum``, which removes files of sink and quarantine that these no longer use."""

    keep: Duration | None = None
    """How long such files stay, for old versions: by default ``7d``, or a day longer than a run may take."""


class IntervalRuns(Strict):
    """Settings of interval runs (backfills of a range of record time)."""

    slack: Duration = timedelta(0)
    """Obsolete and without effect: an interval run finds its records in any order of their times."""
