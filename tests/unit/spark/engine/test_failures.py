"""What a failed query is taken for."""

from __future__ import annotations

from collections.abc import Callable
from unittest import mock

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException

from sluice import errors
from sluice.errors import ExitCode, SluiceError, SourceUnreachableError
from sluice.ranges import OffsetRange
from sluice_spark.batch import writer as batch
from sluice_spark.batch.writer import BatchWriter
from sluice_spark.decoders.told import MARK, told
from sluice_spark.engine.failures import EngineError, no_file_system
from sluice_spark.engine.failures import classify as classify_with
from sluice_spark.sources.kafka import SIGNS


def fine() -> None:
    return None


def classify(error: Exception, ask: Callable[[], object]) -> SluiceError:
    """As of a read of Kafka."""
    return classify_with(error, ask, SIGNS)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized", errors.AuthorizationError),
        ("[STREAMING_CHECKPOINT_MISSING_METADATA_FILE]", errors.CheckpointError),
        ("KAFKA_DATA_LOSS.START_OFFSET_RESET", errors.OffsetsGoneError),
        ("org.apache.kafka.common.errors.TimeoutException: Timeout", errors.SourceUnreachableError),
        (
            "org.apache.kafka.common.KafkaException: Record batch for partition t-1 at offset 3 is invalid, cause: "
            "Record is corrupt (stored crc = 1, computed crc = 2)",
            errors.OffsetsGoneError,
        ),
        ("java.io.IOException: No space left on device", errors.SinkError),
        ("org.apache.hadoop.fs.ParentNotDirectoryException: Parent path is not a directory", errors.SinkError),
        ("java.lang.NullPointerException", SluiceError),
        (
            "Query [id = 1, runId = 2] terminated with exception: Checksum error: file:/h/checkpoints/p/commits/1 at",
            errors.CheckpointError,
        ),
    ],
)
def test_a_failed_query_is_known_by_its_signs(text: str, kind: type[SluiceError]) -> None:
    found = classify(RuntimeError(f"Job aborted\nCaused by: {text}\n\tat some.Frame"), fine)
    assert type(found) is kind
    assert text in found.what
    assert "batches that were committed are in the sink" in found.state
    assert found.next_step


QUOTED = [
    "Permission denied", "java.io.IOException: No space left on device", "[KAFKA_DATA_LOSS] offsets missing",
    "org.apache.kafka.common.errors.TimeoutException: x", "STREAMING_CHECKPOINT", "TopicAuthorizationException",
    "Caused by: java.io.IOException: No space left on device",
]  # fmt: skip


class Raised(PySparkException):
    """As Spark's own, of which the condition and its SQLSTATE are known."""

    def __init__(self, text: str, condition: str | None, state: str | None) -> None:
        super().__init__(text)
        self.known = (condition, state)

    def __str__(self) -> str:
        return self._message

    def getCondition(self) -> str | None:
        return self.known[0]

    def getSqlState(self) -> str | None:
        return self.known[1]


@pytest.mark.parametrize("quoted", QUOTED)
def test_what_the_users_code_says_chooses_no_exit_code(quoted: str) -> None:
    """Texts as Spark 4.2 gives them, from UDFs, raise_error, values that do not convert, and Java functions."""
    worker = (
        f"An exception was thrown from the Python worker:\nTraceback (most recent call last):\n  File\nE: a\n{quoted}"
    )
    aborted = (
        "An error occurred while calling o245.parquet.\n: org.apache.spark.SparkException: Job aborted due to stage "
    )
    lost = "failure: Lost task 1.0 in stage 24.0 (TID 49) (192.0.2.2 executor driver): "
    for error in (
        Raised(worker, "PYTHON_EXCEPTION", "38000"),
        Raised(f"[USER_RAISED_EXCEPTION] a\n{quoted} SQLSTATE: P0001", "USER_RAISED_EXCEPTION", "P0001"),
        Raised(f"[CAST_INVALID_INPUT] The value '{quoted}' of the type", "CAST_INVALID_INPUT", "22018"),
        RuntimeError(worker),
        RuntimeError(f"{aborted}{lost}org.apache.spark.api.python.PythonException: Traceback\n{quoted}\n"),
        RuntimeError(f"{aborted}{lost}org.apache.spark.SparkRuntimeException: [CAST_INVALID_INPUT] '{quoted}'\n"),
        RuntimeError(f"{aborted}{lost}java.lang.reflect.InvocationTargetException\n\tat x\n"
                     f"Caused by: java.lang.NumberFormatException: For input string: 'Permission denied'\n"),
    ):  # fmt: skip
        found = classify(error, fine)
        assert type(found) is SluiceError, error
        assert found.exit_code is ExitCode.OTHER


@pytest.mark.parametrize(
    "raised", [OSError(13, "Permission denied"), ConnectionRefusedError("no"), RuntimeError("TimeoutException")]
)
def test_what_a_transform_raises_on_the_driver_chooses_no_exit_code(raised: Exception) -> None:
    def transform(_: object) -> object:
        raise raised

    writer = BatchWriter(None, "r", transform, None, None, None)  # type: ignore[arg-type]
    with mock.patch.multiple(batch, source_columns=mock.DEFAULT, F=mock.DEFAULT), pytest.raises(type(raised)) as caught:
        writer.rows_of(mock.MagicMock())
    assert type(classify(caught.value, fine)) is SluiceError


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("[TASK_WRITE_FAILED] Task failed while writing rows to file:/x. SQLSTATE: 58030\nCaused by: "
         "java.io.IOException: No space left on device", errors.SinkError),
        (": org.apache.spark.SparkException: Job aborted: Lost task 0.0 in stage 33.0 (TID 66): java.io.IOException: "
         "Mkdirs failed to create file:/x", errors.SinkError),
        ("Caused by: java.lang.IllegalStateException: Cannot fetch offset 7", errors.OffsetsGoneError),
        ("Caused by: java.util.concurrent.TimeoutException: 10 s", errors.SourceUnreachableError),
    ],
)  # fmt: skip
def test_the_engines_own_words_still_do(text: str, kind: type[SluiceError]) -> None:
    assert type(classify(RuntimeError(text), fine)) is kind


PYTHON = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "udf.py", line 5, in inner
    raise KeyError(x)
KeyError: 3

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "udf.py", line 7, in outer
    raise ValueError(x)
          ^^^^^^^^^^
ValueError: bad value 3
of two lines
"""

JAVA = """An error occurred while calling o245.parquet.
: org.apache.spark.SparkException: Job aborted
\tat a.Frame
"""

CAUSES = """Caused by: java.lang.Some: first
\tat b.Frame
Caused by: java.lang.Other: root
\tat c.Frame
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (PYTHON, "ValueError: bad value 3"),
        (JAVA, "org.apache.spark.SparkException: Job aborted"),
        (JAVA + CAUSES, "java.lang.Other: root"),
        ("[CAST] The value 'a\x00\x1b[2J' is no number\n== SQL ==", r"[CAST] The value 'a\x00\x1b[2J' is no number"),
        ("", "no message"),
    ],
)
def test_a_failure_tells_what_was_raised_and_the_same_each_time(text: str, told: str) -> None:
    assert classify(RuntimeError(text), fine).what == f"the query failed: {told}"


def test_the_broker_knows_better_than_the_message() -> None:
    def ask() -> None:
        raise errors.OffsetsGoneError("t-0 [0, 5) is gone", next_step="n", ranges=[OffsetRange("t", 0, 0, 5)])

    for text in ("java.lang.NullPointerException", "No space left on device"):
        found = classify(RuntimeError(text), ask)
        assert type(found) is errors.OffsetsGoneError
        assert "t-0 [0, 5)" in found.what
        assert found.ranges == (OffsetRange("t", 0, 0, 5),)


def test_a_broken_checkpoint_is_not_explained_by_the_broker() -> None:
    def ask() -> None:
        raise AssertionError("was asked")

    assert type(classify(RuntimeError("STREAMING_CHECKPOINT_X"), ask)) is errors.CheckpointError


@pytest.mark.parametrize("error", [ConnectionRefusedError(111, "Connection refused"), Py4JNetworkError("is empty")])
def test_a_jvm_that_is_gone_is_not_taken_for_a_broker_that_is_down(error: Exception) -> None:
    def ask() -> None:
        raise AssertionError("was asked")

    found = classify(error, ask)
    assert type(found) is EngineError
    assert found.exit_code is ExitCode.OTHER


def test_a_heap_that_is_used_up_is_no_records_fault() -> None:
    java = "java.lang.OutOfMemoryError: Java heap space\n\tat java.base/java.util.Arrays.copyOf(Arrays.java:3745)"
    found = classify(RuntimeError(f"Job aborted due to stage failure: Task 0 failed 1 times: {java}"), fine)
    assert type(found) is EngineError
    assert "driver_memory" in found.next_step
    quoted = classify(RuntimeError(f"[CAST_INVALID_INPUT] The value 'x: {java}' of the type"), fine)
    assert type(quoted) is SluiceError
    assert "read the log" in quoted.next_step


def test_a_typed_error_stays_what_it_is() -> None:
    error = errors.SinkError("full")
    assert classify(error, fine) is error


def test_only_a_worker_of_this_driver_tells_what_becomes_of_a_batch() -> None:
    down = SourceUnreachableError("the registry is down", state="nothing was written", next_step="run again")
    text = f"[PYTHON_EXCEPTION] Traceback ...\nRuntimeError: {told(down, MARK)}\n\tat java.lang.Thread.run"
    found = classify(RuntimeError(text), lambda: pytest.fail("the source was asked"))
    assert (type(found), found.what, found.next_step) == (SourceUnreachableError, "the registry is down", "run again")
    forged = f"RuntimeError: {told(down, 'sluice-of-another')}"
    assert type(classify(RuntimeError(forged), lambda: None)) is SluiceError


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        ("java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found", True),
        ('org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "s3"', True),
        ("java.lang.RuntimeException: a record says: No FileSystem for scheme", False),
        ("java.lang.ClassNotFoundException: org.example.Own", False),
    ],
)  # fmt: skip
def test_a_url_that_spark_has_no_client_for_names_the_package(text: str, lacks: bool) -> None:
    found = no_file_system(Exception(f"An error occurred while calling o1.parquet.\n: {text}"))
    assert (found is not None) is lacks
    assert found is None or "spark.jars.packages" in found.next_step
