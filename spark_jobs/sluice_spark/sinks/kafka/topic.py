"""A topic of Kafka as a sink: Parquet files are staged, and their rows sent in one transaction.

The transaction also sends the batch's mark to the topic of commits (:mod:`sluice_spark.sinks.kafka.marks`). Each run
first opens the pipeline's producer, which keeps those of earlier drivers out and ends what they left open, and reads
the marks after that. So a batch that has a mark is never sent again, and one that has none is in no reader's sight.

A topic cannot be read back by run. So the staged files stay until the run is judged, and a while longer.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from sluice.delta.names import owner
from sluice.errors import START_OVER, ConfigError, SinkError
from sluice.sinks.kafka import KafkaSink
from sluice_spark.sinks.base import Fence, Staged, TakenBackError
from sluice_spark.sinks.kafka.cluster import MARKS_CONFIG, NOTHING_COMMITTED, Cluster, Topic
from sluice_spark.sinks.kafka.columns import misfits, records, with_records
from sluice_spark.sinks.kafka.marks import newest, read
from sluice_spark.sinks.kafka.producer import Transactions, UnknownOutcomeError
from sluice_spark.sinks.parquet.kept_files import KeepsStaged, kept_as

__all__ = ["KafkaTopic", "opened"]

_OPEN: dict[tuple[str, str], Transactions] = {}
"""The producers of this process, by connection and transactional id: the writers of a pipeline share one."""


def opened(config: KafkaSink, path: str, app_id: str) -> KafkaTopic:
    """Open the sink of a pipeline."""
    return KafkaTopic(config, path, app_id)


class KafkaTopic(KeepsStaged):
    """One topic, and the topic of its commits.

    Parameters
    ----------
    config
        Connection and topic.
    staging
        The folder below which files are staged.
    app_id
        The id of the writer, such as a pipeline's epoch; each writer counts its own batches.
    """

    plain = False

    def __init__(self, config: KafkaSink, staging: str, app_id: str) -> None:
        self.path, self.staging, self.app_id = f"topic {config.shown}", staging, app_id
        self.keep = config.keep
        self.partition_by: list[str] = []
        self._config = config
        self._owner = str(owner({"app_id": app_id}))
        self._cluster = Cluster(config.connection, self.path, f"sluice.{self._owner}.{config.topic}")

    # --- queries -----------------------------------------------------------------------------------------------

    def examine(self) -> list[str]:
        """Keep drivers of earlier runs out, and check who owns the topic and whether it is the one that was written.

        Raises
        ------
        ConfigError
            If it belongs to another pipeline, or does not exist.
        CheckpointError
            If it was made again since this pipeline wrote to it.
        """
        self._cluster.reached()
        topic = self._cluster.topic(self._config.topic)
        if topic is None and self._config.partitions is None:
            raise self._missing()
        mine = Transactions(self._cluster, self._config, topic)
        self._let_pass(topic, mine.marks)
        _OPEN[self._key] = mine
        return []

    def is_cut_off(self) -> bool:
        """Return False: a transaction is there whole, or not at all."""
        return False

    def version(self) -> int:
        """Return the highest batch that this writer committed; -1 if there is none."""
        return newest(self.marks(), self.app_id)

    def notes(self, newer_than: int) -> Iterator[dict[str, Any]]:
        """Yield the commit metadata of this writer's batches above a number, newest first, but none of cut marks."""
        for mark in reversed(self.marks()):
            if "cut" in mark:
                return
            if mark["app_id"] == self.app_id and mark["version"] > newer_than:
                yield mark

    def ahead_of(self, known: Mapping[str, int]) -> set[str]:
        """Return which of these writers committed a higher batch than the given one."""
        marks = self.marks()
        return {writer for writer, batch in known.items() if newest(marks, writer) > batch}

    def as_it_is(self) -> tuple[KafkaTopic, T.StructType] | None:
        """Return the sink, which has no columns of its own; None if there is no topic."""
        return (self, T.StructType([])) if self._cluster.topic(self._config.topic) is not None else None

    def check(self, schema: T.StructType) -> None:
        """Create what is missing of the two topics; refuse rows of which no records can be made.

        Raises
        ------
        ConfigError
            With each column in question.
        """
        if problems := misfits(self._config, schema):
            raise ConfigError(
                f"the {self.path} does not fit the pipeline: {'; '.join(f'sink.kafka.{p}' for p in problems[:8])}",
                state="nothing was read or written; the position stays where it was",
                next_step="change the pipeline file so that they match",
            )
        topic = self._cluster.topic(self._config.topic)
        if topic is not None and "compact" in topic.policy and self._config.key is None:
            raise ConfigError(
                f"the {self.path} is compacted, and takes no records without a key",
                state="nothing was read or written; the position stays where it was",
                next_step="name a column in sink.kafka.key",
            )
        if topic is None:
            if self._config.partitions is None:
                raise self._missing()
            self._cluster.create(self._config.topic, self._config.partitions, {})
        if self._cluster.topic(self._config.marks) is None:
            self._cluster.create(self._config.marks, 1, MARKS_CONFIG)

    # --- writing -----------------------------------------------------------------------------------------------

    def stage(self, rows: DataFrame, batch: str, *, offsets: bool = True, options: Any = None) -> Staged:
        """Write rows to a folder of their own, with the records that they become, and read the files back."""
        return super().stage(with_records(rows, self._config), batch, offsets=offsets, options=options)

    def commit(
        self,
        staged: Staged,
        schema: T.StructType,
        version: int,
        note: Mapping[str, Any],
        *,
        fence: Fence | None = None,
    ) -> bool:
        """Send staged rows in one transaction, with the batch's mark; also without rows.

        Returns
        -------
        bool
            False if this writer committed this batch before; nothing was changed then.

        Raises
        ------
        LeaseHeldError
            If another driver of the pipeline has begun to write.
        ConfigError, CheckpointError
            As :meth:`examine`.
        SinkError
            If the cluster refuses a record or does not answer, or staged files are gone.
        """
        if self.version() >= version:
            return False
        topic = self._cluster.topic(self._config.topic)
        if topic is None:
            raise self._missing()
        self._let_pass(topic, self.marks())
        self.refuse_missing(staged, "run again")
        mark = {
            **note, "app_id": self.app_id, "version": version, "attempt": uuid.uuid4().hex, "topic_id": topic.id,
            **kept_as(staged, schema),
        }  # fmt: skip
        try:
            self._transactions().send(topic, records(self.staging, staged, self._config), staged.rows, mark)
        except UnknownOutcomeError as error:
            if not self._landed(mark):
                raise SinkError(
                    f"the {self.path} did not take the batch: {error.__cause__}",
                    state=NOTHING_COMMITTED,
                    next_step="run again when the cluster answers",
                ) from error
        except BaseException:
            _OPEN.pop(self._key, None)  # it is in a state of its own
            raise
        return True

    # --- what they share ---------------------------------------------------------------------------------------

    @property
    def _key(self) -> tuple[str, str]:
        return self._cluster.settings.bootstrap, self._cluster.transactional_id

    def marks(self) -> list[dict[str, Any]]:
        """Return the marks: all that there can be, if this process has the producer."""
        mine = _OPEN.get(self._key)
        return mine.marks if mine is not None else read(self._cluster, self._config.marks, all_of_them=False)

    def _transactions(self) -> Transactions:
        if self._key not in _OPEN:
            self.examine()
        return _OPEN[self._key]

    def _landed(self, mark: Mapping[str, Any]) -> bool:
        """Return whether a transaction was committed, after making sure that it cannot be any more if it was not."""
        _OPEN.pop(self._key, None)
        try:
            self.examine()
        except SinkError as error:
            error.state = "whether this batch was committed is not known; the next run finds out, and sends it once"
            raise
        return any(known["attempt"] == mark["attempt"] for known in self.marks())

    def _let_pass(self, topic: Topic | None, marks: Sequence[Mapping[str, Any]]) -> None:
        others = {owner(mark) for mark in marks} - {self._owner}
        if others:
            raise ConfigError(
                f"the {self.path} belongs to pipeline {others.pop()!r}",
                state="nothing was read or written",
                next_step="choose another topic: two pipelines in one would hold up each other's readers",
            )
        if marks and (topic is None or marks[-1]["topic_id"] != topic.id):
            how = "is gone" if topic is None else "was made again"
            raise TakenBackError(
                f"the {self.path} {how} since this pipeline wrote to it: what it had sent before is lost",
                state="nothing was read or written",
                next_step=f"to start over, {START_OVER}",
            )

    def _missing(self) -> ConfigError:
        return ConfigError(
            f"there is no {self.path}",
            state="nothing was read or written",
            next_step=f"create it, for example by kafka-topics --create --topic {self._config.topic} --partitions 6; "
            "or write sink.kafka.partitions: 6, and the first run creates it",
        )
