"""Turns what Spark throws into a typed error, by asking the source first and reading the message second."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Sequence
from typing import NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sluice.errors import (
    AuthorizationError,
    CheckpointError,
    ConfigError,
    OffsetsGoneError,
    SinkError,
    SluiceError,
    begin_again,
    quoted,
)
from sluice.storage import DENIALS
from sluice_spark.decoders.worker_errors import found_in

__all__ = ["EngineError", "Sign", "ask_engine", "classify", "no_file_system"]

_SAFE = "batches that were committed are in the sink and stay; the open batch is read again, exactly, by the next run"


class Sign(NamedTuple):
    """How a message of Spark's shows what kind of failure it is.

    Parameters
    ----------
    kind
        The error that it becomes.
    texts
        Any of these in the engine's own words shows it.
    next_step
        The error's next step.
    what
        What it means, in words that an alert may have.
    """

    kind: type[SluiceError]
    texts: tuple[str, ...]
    next_step: str
    what: str = "the query failed"


_OF_CHECKPOINT = Sign(
    CheckpointError,
    (
        "STREAMING_CHECKPOINT",
        "CHECKPOINT_",
        "INVALID_OFFSET_LOG",
        "MALFORMED_LOG",
        "batch metadata log",
        # files of its own that were cut, or emptied; a record that is cut ends a task, not the query itself
        "terminated with exception: Unexpected end-of-input",
        "terminated with exception: Checksum error",
        "Incomplete log file",
        "No content to map due to end-of-input",
    ),
    f"restore the checkpoint from a copy; or go on with a fresh one: {begin_again('PIPELINE')}",
)
_OF_ACCESS = Sign(
    AuthorizationError,
    DENIALS,
    "correct the credentials of the object store (a token expires), or give them the right; then run again",
)
_OF_SPACE = Sign(
    SinkError,
    ("No space left on device", "Disk quota exceeded"),
    "make room where the table, SLUICE_HOME and Spark's temporary files are, then run again",
    "a disk is full",
)
_OF_STORAGE = Sign(
    SinkError,
    (
        "Read-only file system",
        "Permission denied",
        "NoSuchBucket",
        "FileAlreadyExistsException",
        "ParentNotDirectoryException",
    ),
    "fix the sink's storage, then run again",
)
_OF_FOLDERS = Sign(
    SinkError,
    ("Mkdirs failed",),
    "fix the sink's storage, then run again. If it is sound, a partition column has a value that no folder can have as "
    "its name, of more than 255 bytes or with a NUL: leave out such records by a row rule",
)
_CLIENT = (
    "let Spark have what reads such URLs, below spark.conf in the pipeline file, for example "
    "spark.jars.packages: org.apache.hadoop:hadoop-aws:VERSION for s3a:// (which Hadoop does not call s3://); VERSION "
    "is that of the jar hadoop-client-api in Spark's folder of jars"
)


_OF_EXPRESSIONS = ("P0", "07", "0A", "21", "22", "23", "38", "39", "42", "54")
"""SQLSTATE classes of errors that the pipeline's own expressions, functions or values raise."""

_ENGINES = (
    "STREAM", "CHECKPOINT_", "KAFKA_", "TASK_WRITE_FAILED", "INVALID_OFFSET_LOG", "MALFORMED_LOG", "FAILED_READ_FILE",
    "FAILED_RENAME", "CANNOT_LOAD_CHECKPOINT", "CONCURRENT_STREAM_LOG", "BATCH_METADATA", "INTERNAL_ERROR",
)  # fmt: skip
"""Prefixes of error conditions whose message is the engine's own."""

_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]+)(?:\.[A-Z0-9_.]+)?\]")
_WORKER = re.compile(
    r"An exception was thrown from the Python worker|org\.apache\.spark\.api\.python\.PythonException"
    r"|Traceback \(most recent call last\)"
)
_RAISED = re.compile(r"(?:^|(?<=: ))((?:[a-z][\w$]*\.)+[A-Z][\w$]*)(?=:|\s|$)", re.MULTILINE)
_KIND = re.compile(
    r"(?:^|/ Caused by: |terminated with exception: )"
    r"(\[[A-Z][A-Z0-9_.]+\]|(?:[\w$]+\.)+[A-Z][\w$]*(?=:|\s|$)|[A-Z][\w$]*(?:Error|Exception)(?=:|$))"
)
"""Where a summary names a class of exceptions, or a condition of Spark's."""
_ANYBODYS = re.compile(r"java\.(?:lang\.(?!IllegalStateException\b)|util\.(?!concurrent\.)|time\.|math\.|text\.)")
"""Exception classes that any code may raise. Spark's Kafka reader reports missing offsets as IllegalStateException."""


_NO_FILE_SYSTEM = re.compile(
    r"java\.lang\.ClassNotFoundException: Class org\.apache\.hadoop\.fs\.\S+ not found"
    r"|UnsupportedFileSystemException: No FileSystem for scheme"
)
_OF_HEAP, _OF_STACK = "java.lang.OutOfMemoryError", "java.lang.StackOverflowError"
_TOO_DEEP = (
    "Java needs its stack for each repetition of a group in a regular expression, such as (a|b)*: write a set, [ab]*; "
    'or raise it, with spark: {conf: {spark.driver.defaultJavaOptions: "-Xss64m"}} (on a cluster '
    "spark.executor.defaultJavaOptions); or refuse long texts before, by a row rule"
)


class EngineError(SluiceError):
    """Spark's JVM is gone: a failure now says nothing about records, broker or sink."""


def classify(error: Exception, ask_source: Callable[[], object], signs: Sequence[Sign] = ()) -> SluiceError:
    """Return the typed error behind a failed query.

    Parameters
    ----------
    ask_source
        Raises the typed error when the source is down or no longer has what was planned.
    signs
        The source's own.
    """
    if isinstance(error, SluiceError):
        return error
    text = str(error)
    if (told := found_in(text)) is not None:
        return told
    of_transform = _raised_by_transform(error)
    # compared by name, because not every PySpark has py4j
    gone = isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError"
    if gone and not of_transform:
        return EngineError(
            f"Spark's JVM does not answer any more: {_summary(text)}",
            state=_SAFE,
            next_step="run again; if it happens again, find what ended it: too little memory, or a kill",
        )
    raised = set() if of_transform else {found[1] for found in _RAISED.finditer(_of_nobody(error, text))}
    if _OF_HEAP in raised:  # however many records there are, it is none of theirs
        return EngineError(
            f"Spark's memory is used up: {_summary(text)}",
            state=_SAFE,
            next_step="raise spark.driver_memory (on a cluster spark.executor_memory), or lower max_records_per_batch; "
            "if the schema has a thousand fields or more, leave some out",
        )
    said = "" if of_transform else _said_by_engine(error, text)
    known = (_OF_CHECKPOINT, *signs, _OF_ACCESS, _OF_SPACE, _OF_STORAGE, _OF_FOLDERS)
    sign = next((sign for sign in known if any(text in said for text in sign.texts)), None)
    if sign is None and not of_transform and (found := no_file_system(error)) is not None:
        return found
    if sign is not _OF_CHECKPOINT:
        try:
            ask_source()
        except SluiceError as found:
            told = type(found)(f"{found.what} (while the run was reading)", state=_SAFE, next_step=found.next_step)
            if isinstance(told, OffsetsGoneError) and isinstance(found, OffsetsGoneError):
                told.ranges = found.ranges
            return told
    step = _TOO_DEEP if _OF_STACK in raised else "read the log above; run again when the cause is fixed"
    sign = sign or Sign(SluiceError, (), step)
    shown = next((line for line in said.splitlines() if any(text in line for text in sign.texts)), text)
    return sign.kind(f"{sign.what}: {_summary(shown.removeprefix(': '))}", state=_SAFE, next_step=sign.next_step)


def no_file_system(error: Exception) -> ConfigError | None:
    """Return the error for a URL of which Spark has no client; None if it is another failure."""
    text = _of_nobody(error, str(error))
    if not _NO_FILE_SYSTEM.search(text):
        return None
    return ConfigError(f"Spark cannot reach the URL: {_summary(text)}", state=_SAFE, next_step=_CLIENT)


def ask_engine(spark: SparkSession) -> None:
    """Compute something trivial.

    Raises
    ------
    EngineError
        If Spark's JVM is gone.
    SluiceError
        If Spark answers with an error.
    """
    try:
        spark.range(1).count()
    except Exception as error:
        raise classify(error, lambda: None) from error


def _raised_by_transform(error: Exception) -> bool:
    """Return whether the pipeline's own transform raised the error on the driver, not Spark beneath it."""
    if isinstance(error, PySparkException):
        return False  # these are classified by their condition
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    codes = [frame.f_code for frame in frames]
    from sluice_spark.transforms.transform import (
        apply,  # not above: each planner of a Python source imports this module
    )

    if apply.__code__ not in codes:
        return False
    return str(frames[-1].f_globals.get("__name__", "")).partition(".")[0] not in ("py4j", "pyspark")


def _said_by_engine(error: Exception, text: str) -> str:
    """Return a message without the parts that may come from records, expressions or functions.

    Such text may quote anything, including an engine error, and must not decide the exit code.
    """
    text = _of_nobody(error, text)
    parts, begin = [], 0
    for found in _RAISED.finditer(text):
        parts.append(text[begin : found.start()])
        begin = found.start()
    parts.append(text[begin:])
    return "".join(part for part in parts if not _ANYBODYS.match(part))


def _of_nobody(error: Exception, text: str) -> str:
    """Return a message as far as nothing in it is of an expression or a function."""
    if isinstance(error, PySparkException):
        condition, state = error.getCondition() or "", error.getSqlState() or ""
        if condition and state[:2] in _OF_EXPRESSIONS:
            return condition
    ends = [m.start() for m in _CONDITION.finditer(text) if not m[1].startswith(_ENGINES)]
    ends += [m.start() for m in _WORKER.finditer(text)]
    return text[: min(ends, default=len(text))]


def _summary(text: str) -> str:
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    causes = [line.strip() for line in lines if line.strip().startswith("Caused by:")]
    if lines and lines[0].startswith("An exception was thrown from the Python worker"):
        # the exception follows the last frame of the traceback
        frames = [n for n, line in enumerate(lines) if line.startswith("  File ")]
        raised = [line for line in lines[frames[-1] if frames else 0 :] if not line.startswith(" ")]
        lines = raised or lines
    elif len(lines) > 1 and lines[0].startswith("An error occurred while calling "):
        lines = [causes.pop().removeprefix("Caused by: ")] if causes else [lines[1].removeprefix(": ")]
        causes = []
    told = " / ".join([lines[0].strip() if lines else "no message", *causes[-1:]])
    kind = max(_KIND.finditer(told), key=lambda found: found.start(), default=None)
    if kind is None:
        return quoted(told)
    rest = told[kind.end() :].lstrip(": ") if kind.start(1) == 0 else told
    return f"{kind[1]}: {quoted(rest)}" if rest else kind[1]
