"""The pipeline file as a pydantic model. Unknown keys are refused; everything optional has a default that works."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, available_timezones

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from sluice.pipeline.ddl import check_ddl
from sluice.recovery import Recovery

__all__ = [
    "METADATA_COLUMNS",
    "Decode",
    "IntervalRuns",
    "KafkaSource",
    "Lag",
    "Pipeline",
    "Quality",
    "Rows",
    "Schedule",
    "Transform",
    "Wal",
    "exceeds",
]

METADATA_COLUMNS = ("_topic", "_partition", "_offset", "_timestamp", "_run")
"""Columns that ingestion adds to every sink row."""

_NAME = re.compile(r"^[a-z][a-z0-9_-]{0,62}$")
_TOPIC = re.compile(r"^[A-Za-z0-9._-]{1,249}$")
_DURATION = re.compile(r"^(\d+)\s*(s|m|h|d)$")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, use_attribute_docstrings=True)


def _duration(value: Any) -> Any:
    match = _DURATION.match(value) if isinstance(value, str) else None
    return timedelta(**{_UNITS[match[2]]: int(match[1])}) if match else value


Duration = Annotated[timedelta, BeforeValidator(_duration)]
"""A length of time such as ``15m``, ``2h``, ``7d``."""


def _ddl(value: str) -> str:
    names = check_ddl(value)
    taken = sorted(name for name in names if name.lower() in METADATA_COLUMNS or name.lower().startswith("__sluice"))
    if taken:
        raise ValueError(f"column {taken[0]!r} is a name that ingestion adds itself: rename it in the schema")
    return value


Ddl = Annotated[str, AfterValidator(_ddl)]


def _exactly_one(model: BaseModel, what: str) -> None:
    fields = type(model).model_fields
    given = [name for name in fields if getattr(model, name) is not None]
    if len(given) != 1:
        names = ", ".join(field.alias or name for name, field in fields.items())
        raise ValueError(f"{what} needs exactly one of: {names}")


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


class KafkaSource(_Strict):
    """Which topics of which cluster."""

    connection: str = "kafka_default"
    """The id of an Airflow connection; outside Airflow it is read from ``AIRFLOW_CONN_<ID>``."""
    topics: Annotated[list[str], Field(min_length=1)]
    """Names, no patterns. Partitions that are added later are read from their beginning."""
    starting_offsets: Literal["earliest", "latest"] = "earliest"
    """Where a pipeline that has read nothing yet begins: at the first record, or behind the last one."""
    max_records_per_batch: Annotated[int, Field(gt=0)] = 500_000
    """A batch reads about this many at most, and a crash repeats a batch at most."""
    isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
    """Whether records of aborted transactions are read, as Kafka calls it; markers count as ``absent``."""

    @field_validator("topics")
    @classmethod
    def _topics(cls, topics: list[str]) -> list[str]:
        for topic in topics:
            if not _TOPIC.match(topic):
                raise ValueError(f"{topic!r} is not a Kafka topic name")
        if len(set(topics)) < len(topics):
            raise ValueError("a topic is named twice")
        return topics


class Source(_Strict):
    """Where records come from."""

    kafka: KafkaSource
    """Topics of a Kafka cluster."""


class JsonDecode(_Strict):
    """One JSON object per record, typed by DDL; the contract is in ``docs/decoding.md``."""

    ddl: Annotated[Ddl, Field(alias="schema")]
    """Columns and types, as in ``CREATE TABLE``: ``id BIGINT, name STRING``."""


_CsvCharacter = Annotated[str, Field(min_length=1, max_length=1, pattern=r"^[^\r\n]$")]


class CsvDecode(_Strict):
    """One CSV record (RFC 4180) per record, typed by DDL; the contract is in ``docs/decoding.md``."""

    ddl: Annotated[Ddl, Field(alias="schema")]
    """Columns and types, in the order of the line: ``id BIGINT, name STRING``."""
    separator: _CsvCharacter = ","
    """Between two columns."""
    quote: _CsvCharacter = '"'
    """Around a field that holds a separator, a quote or a line break."""
    escape: _CsvCharacter | None = None
    """Before a quote (or itself) in a quoted field; without one a quote is written twice."""
    null_text: str = ""
    """What stands for null, without quotes."""
    header: bool = False
    """Whether producers send header lines: a record that consists of the column names is refused (rule ``header``)."""

    @field_validator("ddl")
    @classmethod
    def _flat(cls, ddl: str) -> str:
        nested = re.search(r"\b(ARRAY|MAP|STRUCT)\s*<|\sVARIANT\b", ddl, re.IGNORECASE)
        if nested:
            raise ValueError(f"a CSV field cannot hold {nested[0].strip(' <').upper()}: declare it as STRING")
        return ddl

    @model_validator(mode="after")
    def _distinct(self) -> CsvDecode:
        escape = self.escape or self.quote
        if self.separator in (self.quote, escape):
            raise ValueError("the separator must be neither the quote nor the escape")
        if any(c in self.null_text for c in (self.separator, self.quote, "\r", "\n")):
            raise ValueError("null_text must hold no separator, no quote and no line break")
        return self


class TextDecode(_Strict):
    """The value as UTF-8 text in a column ``value``."""


class BytesDecode(_Strict):
    """The key and value as they are in columns ``key`` and ``value``."""


class Decode(_Strict):
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
        _exactly_one(self, "decode")
        return self


class Transform(_Strict):
    """A pure function of the decoded batch, as SQL over ``source`` or as ``package.module:function``."""

    sql: str | None = None
    """A ``SELECT`` over ``source``: the decoded columns and the metadata columns, which must survive."""
    python: str | None = None
    """``package.module:function``, which takes and returns a DataFrame. On the path: ``include/``, ``spark_jobs/``."""

    @model_validator(mode="after")
    def _one(self) -> Transform:
        _exactly_one(self, "transform")
        return self

    @field_validator("python")
    @classmethod
    def _python(cls, target: str | None) -> str | None:
        if target is not None:
            from sluice.pipeline.targets import check_function

            check_function(target)
        return target


class DeltaSink(_Strict):
    """A Delta table; a relative path is relative to ``SLUICE_HOME``."""

    path: Annotated[str, Field(min_length=1)]
    """Below ``SLUICE_HOME``, absolute, or a URL. The quarantine lies beside it, as ``PATH_quarantine``."""
    partition_by: list[str] = []
    """Columns by whose values the table's files are parted; chosen once, when the table is made."""


class Sink(_Strict):
    """Where rows go."""

    delta: DeltaSink
    """A Delta table, which is made by the first run."""


_SHARE = re.compile(r"^(\d{1,3}(?:\.\d+)?)\s*%$")


def _limit(value: Any) -> Any:
    share = _SHARE.match(value) if isinstance(value, str) else None
    count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if not count and (share is None or Decimal(share[1]) > 100):
        raise ValueError(
            f"{value!r} is neither a share of the run's records, such as 1%, nor a number of them, such as 100"
        )
    return value


Limit = Annotated[
    int | str,
    BeforeValidator(_limit),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^\d{1,3}(\.\d+)?\s*%$"}]}
    ),
]
"""How many of a run's records: a share such as ``1%``, or a number."""


def exceeds(limit: int | str, count: int, of: int) -> bool:
    """Tell whether ``count`` of ``of`` records are more than a :data:`Limit` allows."""
    share = _SHARE.match(limit) if isinstance(limit, str) else None
    return count > int(limit) if share is None else count * 100 > Decimal(share[1]) * of


class Quality(_Strict):
    """The Great Expectations suite that judges each run, and how much of it may go wrong before."""

    suite: str | None = None
    """A suite's JSON file, looked up from ``include/`` and from the file's folder; without one nothing is expected."""
    on_failed: Literal["fail", "warn"] = "fail"
    """What a verdict ``failed`` or ``error`` does: fails the run's ``validate`` (exit code 50), or is told only."""
    max_quarantined: Limit = "1%"
    """More records in quarantine make the verdict ``failed``: a share of the records that the run read, or a number."""
    max_lost: Limit | None = None
    """More lost records make the verdict ``failed``; without this key each lost one makes it ``warned``."""


class Schedule(_Strict):
    """When the DAG runs by itself."""

    cron: str
    """Five fields, or ``@hourly`` and the like."""
    timezone: str = "UTC"
    """In which ``cron`` is meant, such as ``Europe/Berlin``."""

    @field_validator("cron")
    @classmethod
    def _cron(cls, cron: str) -> str:
        from croniter import croniter  # type: ignore[import-untyped]

        if cron != "@quarterly" and (
            not croniter.is_valid(cron) or not (cron.startswith("@") or len(cron.split()) == 5)
        ):
            raise ValueError(f"{cron!r} is not a cron expression of five fields, such as 0 * * * * (each hour)")
        return cron

    @field_validator("timezone")
    @classmethod
    def _zone(cls, zone: str) -> str:
        if zone not in available_timezones():
            raise ValueError(f"{zone!r} is not a time zone of the tz database, such as Europe/Berlin")
        ZoneInfo(zone)
        return zone


class Wal(_Strict):
    """The write-ahead log; used by ``recovery: wal`` alone."""

    keep: Duration = timedelta(days=30)
    """How long applied segments are kept, by record time; ``sluice clean`` removes them earlier."""
    segment_records: Annotated[int, Field(ge=1)] = 1_000_000
    """A segment holds at most this many records."""
    roll: Duration = timedelta(seconds=60)
    """A segment is sealed at the latest this long after its first record arrived in the log, by the pace measured."""


class Lag(_Strict):
    """From which backlog on a run is worth starting. ``max_records`` counts beside the others only when written."""

    max_records: Annotated[int, Field(ge=0)] = 0
    """More offsets than these wait."""
    max_age: Duration | None = None
    """The first record that waits is older, by Kafka's time."""
    max_retention_share: Annotated[float, Field(gt=0, le=1)] | None = None
    """The first record that waits has used up more of the topic's retention time."""
    match: Literal["any", "all"] = "any"
    """Whether any of the limits must be passed, or all that are given."""
    mirror_group: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    """A consumer group into which each run copies its positions, for tools that only know groups; never read back."""


class IntervalRuns(_Strict):
    """Runs of an interval of record time."""

    slack: Duration = timedelta(0)
    """No longer needed, and without effect: an interval finds its records whatever the order of their times."""


class Pipeline(_Strict):
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
    quality: Quality = Quality()
    """Who judges each run."""
    recovery: Recovery = Recovery.REPLAY
    """How a run recovers, unless the task or the run says otherwise."""
    wal: Wal = Wal()
    """The write-ahead log of ``recovery: wal``."""
    interval: IntervalRuns = IntervalRuns()
    """Runs of an interval of record time."""
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
        refusal = self.recovery.refusal(aggregates=self.aggregates)
        if refusal:
            raise ValueError(refusal)
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
        """The source."""
        return self.source.kafka

    @property
    def suite_file(self) -> Path | None:
        """The suite, looked up beside the pipeline's folder (``include/``), then beside the file."""
        if self.quality.suite is None:
            return None
        folders = (self.file.parent.parent, self.file.parent)
        found = [folder / self.quality.suite for folder in folders if (folder / self.quality.suite).is_file()]
        return found[0] if found else folders[0] / self.quality.suite
