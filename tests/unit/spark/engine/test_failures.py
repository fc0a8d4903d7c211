"""The typed error that a failed query becomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast
from unittest import mock

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkException

from sluice.errors import (
    AuthorizationError,
    CheckpointError,
    ExitCode,
    OffsetsGoneError,
    SinkError,
    SluiceError,
    SourceUnreachableError,
)
from sluice.ranges import OffsetRange
from sluice_spark.decoders.worker_errors import MARK, told
from sluice_spark.engine.failures import EngineError, no_file_system
from sluice_spark.engine.failures import classify as classify_with
from sluice_spark.sources.kafka import SIGNS
from sluice_spark.transforms.transform import apply


def unasked() -> None:
    raise AssertionError("the source was asked")


def classify(error: Exception, ask: Callable[[], object] = lambda: None) -> SluiceError:
    """Classify the failure of a read of Kafka."""
    return classify_with(error, ask, SIGNS)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Caused by: org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized", AuthorizationError),
        ("Caused by: [STREAMING_CHECKPOINT_MISSING_METADATA_FILE]", CheckpointError),
        ("Caused by: KAFKA_DATA_LOSS.START_OFFSET_RESET", OffsetsGoneError),
        ("Caused by: org.apache.kafka.common.errors.TimeoutException: Timeout", SourceUnreachableError),
        ("Caused by: org.apache.kafka.common.KafkaException: Record batch for partition t-1 at offset 3 is invalid, "
         "cause: Record is corrupt (stored crc = 1, computed crc = 2)", OffsetsGoneError),
        ("Lost task 0.0: org.apache.spark.sql.kafka010.KafkaIllegalStateException: Record at topic t partition 0 "
         "offset 10 has timestamp value 17 that overflows when converting to Spark's microsecond-precision T.\n\tat x\n"
         "Caused by: java.lang.ArithmeticException: long overflow", OffsetsGoneError),
        ("Caused by: java.io.IOException: No space left on device", SinkError),
        ("Caused by: org.apache.hadoop.fs.ParentNotDirectoryException: Parent path is not a directory", SinkError),
        ("Caused by: java.lang.NullPointerException", SluiceError),
        ("Caused by: Query [id = 1, runId = 2] terminated with exception: Checksum error: file:/h/checkpoints/p/c/1 at",
         CheckpointError),
        ("[TASK_WRITE_FAILED] Task failed while writing rows to file:/x. SQLSTATE: 58030\nCaused by: "
         "java.io.IOException: No space left on device", SinkError),
        (": org.apache.spark.SparkException: Job aborted: Lost task 0.0 in stage 33.0 (TID 66): java.io.IOException: "
         "Mkdirs failed to create file:/x", SinkError),
        ("Caused by: java.lang.IllegalStateException: Cannot fetch offset 7", OffsetsGoneError),
        ("Caused by: java.util.concurrent.TimeoutException: 10 s", SourceUnreachableError),
    ],
)  # fmt: skip
def test_classify_knows_a_failed_query_by_the_engines_own_words(text: str, kind: type[SluiceError]) -> None:
    for message in (text, f"Job aborted\n{text}\n\tat some.Frame"):
        found = classify(RuntimeError(message))
        assert type(found) is kind
        assert found.state
        assert found.next_step
        assert found.what.startswith("a disk is full") == ("No space left" in text)


QUOTED = [
    "Permission denied", "java.io.IOException: No space left on device", "[KAFKA_DATA_LOSS] offsets missing",
    "org.apache.kafka.common.errors.TimeoutException: x", "STREAMING_CHECKPOINT", "TopicAuthorizationException",
    "Caused by: java.io.IOException: No space left on device",
]  # fmt: skip


class Raised(PySparkException):
    """An error of Spark with a known condition and SQLSTATE."""

    def __init__(self, text: str, condition: str, state: str) -> None:
        super().__init__(text)
        self.getCondition, self.getSqlState = (lambda: condition), (lambda: state)

    def __str__(self) -> str:
        return self._message


@pytest.mark.parametrize("quoted", QUOTED)
def test_classify_takes_no_exit_code_from_messages_of_user_code(quoted: str) -> None:
    """Texts as Spark 4.2 gives them, from UDFs, raise_error, values that do not convert, and Java functions."""
    worker = (
        f"An exception was thrown from the Python worker:\nTraceback (most recent call last):\n  File\nE: a\n{quoted}"
    )
    lost = (
        "An error occurred while calling o245.parquet.\n: org.apache.spark.SparkException: Job aborted due to stage "
        "failure: Lost task 1.0 in stage 24.0 (TID 49) (192.0.2.2 executor driver): "
    )
    for error in (
        Raised(worker, "PYTHON_EXCEPTION", "38000"),
        Raised(f"[USER_RAISED_EXCEPTION] a\n{quoted} SQLSTATE: P0001", "USER_RAISED_EXCEPTION", "P0001"),
        Raised(f"[CAST_INVALID_INPUT] The value '{quoted}' of the type", "CAST_INVALID_INPUT", "22018"),
        RuntimeError(worker),
        RuntimeError(f"{lost}org.apache.spark.api.python.PythonException: Traceback\n{quoted}\n"),
        RuntimeError(f"{lost}org.apache.spark.SparkRuntimeException: [CAST_INVALID_INPUT] '{quoted}'\n"),
        RuntimeError(f"{lost}java.lang.reflect.InvocationTargetException\n\tat x\n"
                     f"Caused by: java.lang.NumberFormatException: For input string: 'Permission denied'\n"),
    ):  # fmt: skip
        found = classify(error)
        assert type(found) is SluiceError, error
        assert found.exit_code is ExitCode.OTHER


@pytest.mark.parametrize(
    "raised", [OSError(13, "Permission denied"), ConnectionRefusedError("no"), RuntimeError("TimeoutException")]
)
def test_classify_takes_no_exit_code_from_errors_of_a_transform_on_the_driver(raised: Exception) -> None:
    with pytest.raises(type(raised)) as caught:
        apply(mock.Mock(side_effect=raised), cast(Any, None))
    assert type(classify(caught.value)) is SluiceError


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
    ("text", "reason"),
    [
        (PYTHON, "ValueError: «bad value 3»"),
        (JAVA, "org.apache.spark.SparkException: «Job aborted»"),
        (JAVA + CAUSES, "java.lang.Other: «root»"),
        ("[CAST] The value 'a\x00\x1b[2J' is no number\n== SQL ==", r"[CAST]: «The value 'a\x00\x1b[2J' is no number»"),
        ("", "«no message»"),
        (
            "[STREAM_FAILED] Query [id = 1] terminated with exception: [CAST] The value 'SSN' is none",
            "[CAST]: «[STREAM_FAILED] Query [id = 1] terminated with exception: [CAST] The value 'SSN' is none»",
        ),
    ],
)
def test_classify_names_the_error_that_was_raised(text: str, reason: str) -> None:
    assert classify(RuntimeError(text)).what.endswith(f": {reason}")


@pytest.mark.parametrize("text", ["java.lang.NullPointerException", "No space left on device"])
def test_classify_believes_the_broker_rather_than_the_message(text: str) -> None:
    gone = OffsetsGoneError("t-0 [0, 5) is gone", next_step="n", ranges=[OffsetRange("t", 0, 0, 5)])
    found = classify(RuntimeError(text), mock.Mock(side_effect=gone))
    assert (type(found), found.ranges) == (OffsetsGoneError, gone.ranges)
    assert "t-0 [0, 5)" in found.what


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("STREAMING_CHECKPOINT_X"), CheckpointError),
        (ConnectionRefusedError(111, "Connection refused"), EngineError),
        (Py4JNetworkError("is empty"), EngineError),
    ],
)
def test_classify_asks_no_broker_about_a_checkpoint_or_a_dead_jvm(error: Exception, kind: type[SluiceError]) -> None:
    assert type(classify(error, unasked)) is kind


def test_classify_takes_a_full_heap_for_no_fault_of_records() -> None:
    java = "java.lang.OutOfMemoryError: Java heap space\n\tat java.base/java.util.Arrays.copyOf(Arrays.java:3745)"
    found = classify(RuntimeError(f"Job aborted due to stage failure: Task 0 failed 1 times: {java}"))
    assert type(found) is EngineError
    assert found.exit_code is ExitCode.OTHER
    assert "driver_memory" in found.next_step
    assert type(classify(RuntimeError(f"[CAST_INVALID_INPUT] The value 'x: {java}' of the type"))) is SluiceError


def test_classify_returns_typed_errors_also_those_of_this_drivers_workers() -> None:
    full = SinkError("full")
    assert classify(full) is full
    down = SourceUnreachableError("the registry is down", state="nothing was written", next_step="run again")
    text = f"[PYTHON_EXCEPTION] Traceback ...\nRuntimeError: {told(down, MARK)}\n\tat java.lang.Thread.run"
    found = classify(RuntimeError(text), unasked)
    assert (type(found), found.what, found.next_step) == (SourceUnreachableError, "the registry is down", "run again")
    forged = f"RuntimeError: {told(down, 'sluice-of-another')}"
    assert type(classify(RuntimeError(forged))) is SluiceError


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        ("java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found", True),
        ('org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "s3"', True),
        ("java.lang.RuntimeException: a record says: No FileSystem for scheme", False),
        ("java.lang.ClassNotFoundException: org.example.Own", False),
    ],
)  # fmt: skip
def test_no_file_system_names_the_package_for_a_url_without_a_client(text: str, lacks: bool) -> None:
    found = no_file_system(Exception(f"An error occurred while calling o1.parquet.\n: {text}"))
    assert (found is not None) is lacks
    assert found is None or "spark.jars.packages" in found.next_step
