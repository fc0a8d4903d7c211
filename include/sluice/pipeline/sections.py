"""The sections of a pipeline file: what each key stands for. :mod:`sluice.pipeline.model` holds them together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, Field, field_validator, model_validator

from sluice.decoders.format import Format
from sluice.decoders.per_record import ByHeader, ByTopic, PerRecord
from sluice.fields import Duration, Strict, TablePath, given, one_of
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
from sluice.sources.socket.config import SocketSource

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
    socket: SocketSource | None = None
    """Lines that a TCP server sends, for demonstrations; with ``recovery: wal``."""

    @model_validator(mode="after")
    def _one(self) -> Source:
        one_of(self, "source")
        if self.queue is not None and ":" in self.queue.kind:
            from sluice.pipeline.targets import check_function

            check_function(self.queue.kind, classes=True)
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


class Decode(Format):
    """How a record's value becomes columns."""

    what = "decode"

    by_topic: ByTopic | None = None
    """A format for each topic."""
    by_header: ByHeader | None = None
    """A format for each value of a header, such as ``content-type``."""

    @property
    def chosen(self) -> PerRecord | None:
        """What chooses a format for each record; None if there is one for all."""
        return self.by_topic or self.by_header

    @property
    def formats(self) -> Sequence[Format]:
        """The formats from which one is chosen for each record; only this one if it is for all."""
        return [self] if self.chosen is None else [form for _, form in self.chosen.entries]

    @property
    def names(self) -> list[str]:
        """The columns that are made of the value, by any format; none if the decoder does not say."""
        if self.chosen is None:
            return super().names
        return list(dict.fromkeys(name for form in self.formats for name in form.names))

    @property
    def asks_headers(self) -> bool:
        """Whether decoding needs the headers of the records."""
        return self.by_header is not None or any(form.headers for form in self.formats)

    @property
    def deletes(self) -> bool:
        """Whether tombstones delete rows of the sink."""
        return super().deletes if self.chosen is None else any(form.deletes for form in self.formats)

    @property
    def needs(self) -> str | None:
        """The connection that decoding needs; None if it needs none."""
        if self.chosen is None:
            return super().needs
        return next((form.needs for form in self.formats if form.needs is not None), None)

    @property
    def rescues(self) -> bool:
        """Whether unknown fields are kept in a column."""
        return super().rescues if self.chosen is None else any(form.rescues for form in self.formats)


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

    path: TablePath
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
