"""The pipeline file as a pydantic model. Unknown keys are refused; every optional key has a working default."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, create_model, field_validator, model_validator

from sluice.errors import ConfigError
from sluice.fields import Strict
from sluice.kinds import BUILT_IN, kind_of
from sluice.pipeline.aggregate import Aggregate
from sluice.pipeline.airflow import Airflow
from sluice.pipeline.dedupe import Dedupe
from sluice.pipeline.lookups import Lookup, check_names
from sluice.pipeline.operator import StateOperator
from sluice.pipeline.places import refuse_places
from sluice.pipeline.processor import Processor
from sluice.pipeline.quality import Quality
from sluice.pipeline.schedule import Lag, Schedule, is_cron
from sluice.pipeline.sections import (
    EVERYTHING,
    Decode,
    IntervalRuns,
    Quarantine,
    Rows,
    Rule,
    Sink,
    Source,
    Transform,
    Vacuum,
    Wal,
)
from sluice.pipeline.spark import Spark
from sluice.pipeline.state import State
from sluice.pipeline.support import (
    ARROW,
    FILE,
    INTERVAL,
    REBUILDING,
    RECOMPUTING,
    SINK,
    SPLITTING,
    STRATEGY,
    refuse,
    why_not,
)
from sluice.pipeline.window import Window
from sluice.recovery import Recovery
from sluice.sources.files.rows import Quoting
from sluice.sources.measurable import Topics
from sluice.text import length

__all__ = [
    "Pipeline",
    "model_for",
]

_NAME = re.compile(r"^[a-z][a-z0-9_-]{0,62}$")
_LATER: dict[str, Any] = {"key": None, "tombstone": "quarantine", "rescue": False, "headers": {}}
"""Keys of a decoder that earlier versions did not have, with what they did."""
_LATER_DECODERS = ("protobuf", "xml", "by_topic", "by_header")
"""Keys of ``decode`` that the first version which kept digests did not have."""


class Pipeline(Strict):
    """One pipeline: everything that a run needs to know, except secrets."""

    name: Annotated[str, Field(alias="pipeline")]
    """The name of the DAG, the checkpoint and the ledger's entries: a-z, 0-9, _ and -."""
    source: Source
    """Where records come from."""
    decode: Decode
    """How a record's value becomes columns; exactly one format."""
    rules: tuple[Rule, ...] = ()
    """Row rules, in order: a record that breaks one goes to the quarantine, under the name of the first."""
    transform: Transform = Transform(sql=EVERYTHING)
    """The transformation of each decoded batch; none by default."""
    tables: dict[str, Lookup] = Field(default={})
    """Delta tables that the transform can join, by the names that it calls them; each batch reads one version."""
    rows: Rows = Rows.ONE
    """How many sink rows the transform yields: ``one`` per record, ``filter`` at most one, ``many``, ``aggregate``."""
    window: Window | None = None
    """Windows of event time, which stay open between runs; the sink then gets a row for each window and key."""
    aggregate: Aggregate | None = None
    """A result for each group of all rows that were ever read; the sink then has a row for each group."""
    dedupe: Dedupe | None = None
    """Only the first of several rows with the same keys goes into the sink, for as long as the keys are remembered."""
    processor: Processor | None = None
    """Stateful logic of your own, which keeps state from run to run; the sink then gets the rows that it yields."""
    state: State = State()
    """When a run warns of what windows or ``dedupe`` keep from run to run."""
    sink: Sink
    """Where rows go."""
    also: tuple[Sink, ...] = ()
    """Further sinks, which get each batch's rows once ``sink`` has them."""
    quarantine: Quarantine | None = None
    """The dead-letter table: where refused records are kept, verbatim; by default beside a Delta sink."""
    quality: Quality = Quality()
    """Data-quality validation of each run, and its limits."""
    recovery: Recovery = Recovery.REPLAY
    """The recovery strategy, unless the task or the run sets another one."""
    recovery_choices: tuple[Recovery, ...] | None = None
    """The strategies that the trigger form offers; by default all that the pipeline can have."""
    wal: Wal = Wal()
    """Settings of the write-ahead log that ``recovery: wal`` uses."""
    vacuum: Vacuum = Vacuum()
    """Settings of ``sluice vacuum``."""
    interval: IntervalRuns = IntervalRuns()
    """Settings of interval runs (backfills of a range of record time)."""
    engine: Literal["auto", "spark"] = "auto"
    """What decodes and writes records: ``auto`` uses Arrow where it gives the same rows as Spark, ``spark`` never."""
    spark: Spark = Spark()
    """Settings of the pipeline's Spark applications."""
    airflow: Airflow = Airflow()
    """How Airflow runs the DAG's tasks."""
    schedule: Schedule | Literal["on_lag", "none"] = "none"
    """What starts the DAG: a clock (``cron``), a large enough backlog (``on_lag``), or only a user (``none``)."""
    lag: Lag = Lag()
    """Thresholds of the backlog that start a run; ``sluice lag`` and the task ``wait_for_lag`` use them, too."""

    _file: Path | None = PrivateAttr(default=None)
    _beside: Path | None = PrivateAttr(default=None)
    _called: str = PrivateAttr(default="")
    _places: dict[str, str] | None = PrivateAttr(default=None)

    @field_validator("name")
    @classmethod
    def _name(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r}: use a-z, 0-9, _ and -, beginning with a letter, at most 63 characters")
        return name

    @field_validator("rules")
    @classmethod
    def _rules(cls, rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
        names = [rule.name for rule in rules]
        if doubled := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"the rule name {doubled[0]!r} appears twice")
        return rules

    @field_validator("tables")
    @classmethod
    def _tables(cls, tables: dict[str, Lookup]) -> dict[str, Lookup]:
        return check_names(tables)

    @model_validator(mode="after")
    def _recovery(self) -> Pipeline:
        refusal = self.refusal(self.recovery)
        if refusal:
            raise ValueError(refusal)
        if self.recovery_choices is not None and self.recovery not in self.recovery_choices:
            raise ValueError(
                f"recovery_choices lacks {self.recovery}, which is the pipeline's recovery: add it, or choose another"
            )
        return self

    @model_validator(mode="after")
    def _possible(self) -> Pipeline:
        """Refuse settings that the source or the sink cannot support."""
        for key, sink in self.sinks.items():
            refuse(SINK, self, sink, key)
        refuse_places(self)
        refuse(FILE, self)
        if self.source.file is not None and self.decode.csv is not None:
            form = self.decode.csv
            self.source.file.declared(form.names, Quoting(form.separator, form.quote, form.escape))
        plain = self.transform.sql == EVERYTHING
        if self.decode.deletes and (why := self.sink.config.undeletable(self.decode.names if plain else ())):
            raise ValueError(f"decode.{self.decode.key}.tombstone: delete: {why}")
        source = self.source.config
        if self.decode.chosen:
            self.decode.chosen._clusters = self.origins is not None
        if (chosen := self.decode.chosen) and (problem := chosen.unread(self.source.key, source.streams, source.reads)):
            raise ValueError(f"decode.{self.decode.key}: {problem}")
        self._refuse_partitions()
        return self

    def _refuse_partitions(self) -> None:
        """Refuse to partition by a column that the rows of a window or processor do not have."""
        if (made := self.window or self.aggregate or self.processor) is None:
            return
        if lacking := [name for name in self.sink.config.partition_columns if name not in made.columns]:
            of = "processor.schema has" if self.processor else f"{self.keeps} writes"
            raise ValueError(
                f"sink.{self.sink.key}.partition_by: {lacking[0]!r} is not one of the columns that {of}: "
                f"{', '.join(made.columns)}"
            )

    @model_validator(mode="after")
    def _vacuum(self) -> Pipeline:
        if self.vacuum_keep <= self.airflow.execution_timeout:
            longest = length(self.airflow.execution_timeout.total_seconds())
            raise ValueError(
                f"vacuum.keep: a run may take {longest} (airflow.execution_timeout), and the "
                f"files that it reads or has staged must stay: write a longer time, such as {self.default_keep.days}d, "
                "or leave it out"
            )
        return self

    @field_validator("schedule", mode="before")
    @classmethod
    def _schedule(cls, value: Any) -> Any:
        if value is None:
            return "none"
        mapping = isinstance(value, dict | Schedule) and not (isinstance(value, dict) and "on_lag" in value)
        if not mapping and value not in ("on_lag", "none"):
            clock = value if is_cron(value) else "0 * * * *"
            raise ValueError(f'{value!r} is neither on_lag, none, nor a clock, such as {{cron: "{clock}"}}')
        return value

    @property
    def default_keep(self) -> timedelta:
        """``vacuum.keep`` where the file does not say it, in whole days: 7, or more if a run may take as long."""
        return timedelta(days=max(7, math.ceil(self.airflow.execution_timeout / timedelta(days=1)) + 1))

    @property
    def vacuum_keep(self) -> timedelta:
        """``vacuum.keep``, or its default."""
        return self.default_keep if self.vacuum.keep is None else self.vacuum.keep

    @property
    def file(self) -> Path:
        """The file that this pipeline was read from.

        Raises
        ------
        ValueError
            If the model was not created by :func:`sluice.pipeline.load`.
        """
        if self._file is None:
            raise ValueError("this pipeline was not read from a file")
        return self._file

    @property
    def origins(self) -> str | None:
        """What the header of a mirrored record may say, as a regular expression; None if there is one cluster."""
        return None if self.source.kafka is None else self.source.kafka.origins

    @property
    def unsplit(self) -> str | None:
        """Why no expectation can split this pipeline's rows, and the way out; None if some may."""
        return why_not(SPLITTING, self)

    @property
    def waits(self) -> str | None:
        """The key because of which no run starts without records, and its value; None if one may."""
        if self.schedule == "on_lag":
            return "schedule: on_lag"
        return None if self.lag.on_idle == "proceed" else f"lag.on_idle: {self.lag.on_idle}"

    @property
    def aggregates(self) -> bool:
        """Whether the sink's rows cannot be traced to single records: ``rows: aggregate``, a window or processor."""
        return self.rows is Rows.AGGREGATE or (self.stateful is not None and self.stateful.combines)

    @property
    def stateful(self) -> StateOperator | None:
        """What Spark's checkpoint keeps state for from run to run; None if each batch stands alone."""
        return next((getattr(self, key) for key in self.operators), None)

    @property
    def operators(self) -> tuple[str, ...]:
        """The keys of all operators that keep state; a file with more than one is refused."""
        return tuple(key for key, value in self.__dict__.items() if isinstance(value, StateOperator))

    @property
    def output(self) -> str:
        """Spark's output mode: ``append``, ``update`` or ``complete``."""
        return "append" if self.stateful is None else self.stateful.writes

    @property
    def keeps(self) -> str | None:
        """The key of :attr:`stateful`."""
        return None if self.stateful is None else self.stateful.key

    @property
    def kept_by(self) -> str | None:
        """What keeps state from run to run, in a sentence: "a window", "dedupe" or "a processor"; None if nothing."""
        return None if self.stateful is None else self.stateful.said

    @property
    def absorption(self) -> str:
        """A digest of the keys that decide of which rows state is made; not of a Python transform's own text."""
        later = {"tables"} if self.tables else set()
        if self.keeps is not None:
            later.add(self.keeps)
        return self._digest({"decode", "rules", "transform", "window", *later})  # window was there first, also as null

    @property
    def aggregation(self) -> str | None:
        """A digest of the keys by which windows are made of records, whatever ``output``; None without them."""
        if self.window is None:
            return None
        kept = {key: value for key, value in self.window.definition.items() if key != "output"}
        return hashlib.sha256(json.dumps([self.making, kept]).encode()).hexdigest()[:16]

    @property
    def making(self) -> str:
        """A digest of the keys by which rows are made of records; not of a Python transform's own text."""
        return self._digest({"decode", "rules", "transform", *(["tables"] if self.tables else [])})

    @property
    def timing(self) -> str | None:
        """A digest of the keys that decide which event time a record has.

        None if that is up to Python's own text, or may be up to a version of a joined table.
        """
        of = self.window or self.dedupe
        if of is None or self.transform.sql is None or self.tables:
            return None
        return f"{self.making} {of.time}"

    def _digest(self, deciding: set[str]) -> str:
        kept = self.model_dump(mode="json", include=deciding)
        _prune(kept["decode"])
        if (of := self.stateful) is not None and of.key in deciding:
            for key in of.moving:
                del kept[of.key][key]
        if self.decode.chosen is not None:
            chosen = kept["decode"][self.decode.key]
            for settings in filter(None, [*chosen["formats"].values(), chosen["default"]]):
                _prune(settings)
            chosen["formats"] = sorted(chosen["formats"].items(), key=lambda e: ("*" in e[0], "*" in e[0] or e[0]))
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def kafka(self) -> Topics:
        """The Kafka source, for callers that need Kafka.

        Raises
        ------
        ConfigError
            If the pipeline has another source.
        """
        if self.source.kafka is None:
            raise ConfigError(
                f"pipeline {self.name!r} reads from source.{self.source.key}, and this needs source.kafka",
                state="nothing was read or written",
                next_step="use sluice status or sluice audit, which work with every source",
            )
        return self.source.kafka

    @property
    def suite_file(self) -> Path | None:
        """The suite, looked up beside the folder of pipelines (``include/``), beside the file's folder, and in that."""
        if self.quality.suite is None:
            return None
        folders = [*([self._beside] if self._beside else []), self.file.parent.parent, self.file.parent]
        found = [folder / self.quality.suite for folder in folders if (folder / self.quality.suite).is_file()]
        return found[0] if found else folders[0] / self.quality.suite

    @property
    def no_recomputing(self) -> str | None:
        """Why ``audit --windows`` is not possible; None if it is."""
        return why_not(RECOMPUTING, self)

    @property
    def no_rebuilding(self) -> str | None:
        """Why the pipeline's state cannot be made again of its records; None if it can."""
        return why_not(REBUILDING, self)

    @property
    def no_intervals(self) -> str | None:
        """Why the pipeline cannot replace intervals; None if it can."""
        return why_not(INTERVAL, self)

    @property
    def called(self) -> str:
        """The argument by which commands find it, quoted for a shell: its name, or the path of a file elsewhere."""
        return self._called or self.name

    @property
    def unread_tables(self) -> str | None:
        """The first of ``tables`` that ``transform.sql`` does not name; None if it names each, or there is no SQL."""
        sql = self.transform.sql
        unread = (name for name in self.tables if sql is not None and not re.search(rf"(?i)\b{name}\b", sql))
        return next(unread, None)

    @property
    def sinks(self) -> dict[str, Sink]:
        """All sinks by their keys in the file: that of ``sink``, and then those of ``also``."""
        further = {f"also[{number}].{sink.key}": sink for number, sink in enumerate(self.also)}
        return {f"sink.{self.sink.key}": self.sink, **further}

    @property
    def sinks_need(self) -> list[str]:
        """The ids of the connections that the sinks need, each once; the driver gets them through its environment."""
        return list(dict.fromkeys(sink.config.needs for sink in self.sinks.values() if sink.config.needs))

    @property
    def irreplaceable(self) -> str | None:
        """What keeps single rows from being replaced, as the subject of a sentence; None if they can be."""
        for key, sink in self.sinks.items():
            if not sink.kind.replaceable:
                return f"{key}{' with mode: upsert' if sink.config.keyed else ''}"
        return None

    def refusal(self, recovery: Recovery) -> str | None:
        """Return why the pipeline cannot use a strategy; None if it can."""
        return why_not(STRATEGY, self, recovery)

    def spark_alone(self, recovery: Recovery) -> str | None:
        """Return why records cannot take the Arrow path, on which the JVM never sees them, as far as the file says.

        Parameters
        ----------
        recovery
            The strategy of a live run; ``replay`` for any other run.
        """
        return why_not(ARROW, self, recovery)

    @property
    def delta_path(self) -> str:
        """The path of the Delta sink, for callers that need one; absolute, a URL, or relative to ``SLUICE_HOME``.

        Raises
        ------
        ConfigError
            If the pipeline has another sink.
        """
        if not self.sink.kind.delta:
            raise ConfigError(
                f"pipeline {self.name!r} writes to sink.{self.sink.key}, and this needs a Delta table",
                state="nothing was read or written",
                next_step=f"sluice audit {self.name} proves the account from the ledger alone, with every sink",
            )
        return self.sink.config.location

    @property
    def quarantine_path(self) -> str:
        """The path of the quarantine; absolute, a URL, or relative to ``SLUICE_HOME``."""
        if self.quarantine is not None:
            return self.quarantine.delta.path
        return f"{self.sink.config.location}_quarantine" if self.sink.kind.delta else f"quarantine/{self.name}"


def _prune(decode: dict[str, Any]) -> None:
    """Take out what earlier versions did not have, so that a new one goes on with what an old one kept."""
    for key in _LATER_DECODERS:
        if decode.get(key) is None:
            decode.pop(key, None)
    for settings in filter(None, decode.values()):
        for key, default in _LATER.items():
            if key in settings and settings[key] == default:
                del settings[key]


def model_for(data: Any) -> type[Pipeline]:
    """Return the model that reads a file: :class:`Pipeline`, with the keys of other packages that the file uses.

    Parameters
    ----------
    data
        The file's mapping, as YAML reads it. It may be invalid; the model reports that.
    """
    parts: dict[str, Any] = {}
    if not isinstance(data, dict):
        return Pipeline
    for key, (config, _) in _foreign("operators", [data], *Pipeline.model_fields).items():
        parts[key] = (config, None)
    sections: tuple[tuple[str, str, type[Strict]], ...] = (
        ("source", "sources", Source),
        ("sink", "sinks", Sink),
        ("decode", "decoders", Decode),
    )
    for name, group, model in sections:
        section = data.get(name)
        own = section if isinstance(section, dict) else {}
        more = _foreign(group, [own])
        if more:
            parts[name] = (create_model(model.__name__, __base__=model, __doc__=model.__doc__, **more), ...)
    further = data.get("also")
    of_sinks = _foreign("sinks", [own for own in further if isinstance(own, dict)] if isinstance(further, list) else [])
    if of_sinks:
        also = create_model("Sink", __base__=Sink, __doc__=Sink.__doc__, **of_sinks)
        parts["also"] = (tuple[also, ...], ())  # type: ignore[valid-type]
    listed = data.get("rules")
    rules = [own for own in listed if isinstance(own, dict)] if isinstance(listed, list) else []
    of_rules = _foreign("rules", rules, "name")
    if of_rules:
        rule = create_model("Rule", __base__=Rule, __doc__=Rule.__doc__, **of_rules)
        parts["rules"] = (tuple[rule, ...], ())  # type: ignore[valid-type]
    return create_model("Pipeline", __base__=Pipeline, __doc__=Pipeline.__doc__, **parts) if parts else Pipeline


def _foreign(group: str, sections: Sequence[Mapping[Any, Any]], *ours: str) -> dict[str, Any]:
    """Return the fields of those keys of sections of the file that are kinds of other packages."""
    keys = {key for own in sections for key in own if isinstance(key, str)} - {*ours, *BUILT_IN[group]}
    return {key: (kind.config | None, None) for key in sorted(keys) if (kind := kind_of(group, key)) is not None}
