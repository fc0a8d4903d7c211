"""Tests of a pipeline without a broker: records in; rows, refused records and the verdict out, by the steps of a run.

The run is a real one, in this process and in a home of its own: the file's decoder, rules, transform, operators and
suite, behind a source that has the given records, and before a Delta table instead of the file's sink. A process starts
Spark once, so the first call takes some seconds, and each further one about two. It must be this that starts it: its
workers find the records by their environment.
"""

from __future__ import annotations

import atexit
import base64
import json
import os
import shlex
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from sluice.connections import Connection, find
from sluice.errors import ConfigError
from sluice.fields import METADATA_COLUMNS
from sluice.home import Home
from sluice.launch import jars
from sluice.launch.submit import archive_file, submit
from sluice.ledger import Ledger
from sluice.pipeline import Pipeline, load
from sluice.run.actions import RunRequest
from sluice.sources.queue.base import Message, StreamState

__all__ = ["Records", "Trial", "trial"]

_RECORD = "_record"
"""The only key of a line that is a record with more than a value."""
_CONNECTION = "sluice_test"
_RUN = "test"
_ELSEWHERE = ("also", "recovery", "recovery_choices", "schedule", "lag", "airflow", "interval", "vacuum", "wal")
"""Sections that say where, when and by which strategy a run takes place; a test has none of them."""


@dataclass(frozen=True)
class Trial:
    """The outcome of a test: rows, refused records and the verdict.

    Attributes
    ----------
    rows
        The rows, without the columns that Sluice adds, in the order of their values.
    refused
        The refused records: ``stream``, ``offset`` (the number of its line among those of its stream), ``rule``,
        ``column`` and ``detail``.
    account
        What the run counted, as ``sluice run --json`` prints it: ``written``, ``filtered``, ``verdict``, windows.
    failed
        What did not hold, of the suite and of the limits, one sentence each.
    """

    rows: list[dict[str, Any]]
    refused: list[dict[str, Any]]
    account: dict[str, Any]
    failed: list[str]

    def lines(self) -> list[str]:
        """Return rows and refused records as lines of JSON, as a file of what is expected has them."""
        refused = [{"_refused": {key: row[key] for key in ("stream", "offset", "rule")}} for row in self.refused]
        return [json.dumps(line, ensure_ascii=False) for line in (*self.rows, *refused)]


class Records:
    """A queue whose streams are files of records; made by :func:`trial`, in the driver and in each worker."""

    def __init__(self, connection: Connection, owner: tuple[str, str] | None) -> None:
        self._root = Path(str(connection.host))

    def state(self, stream: str) -> StreamState:
        """Return how many records there are; each test has a stream of its own."""
        return StreamState((self._root / "id").read_text(), 0, len(self._messages(stream)))

    def guide(self, ranges: Sequence[Any]) -> None:
        """Return nothing."""

    def read(self, span: Any, guide: None) -> Iterator[list[Message]]:
        """Yield the records of a range."""
        yield self._messages(span.topic)[span.start : span.end]

    def first_at(self, stream: str, milliseconds: int) -> int | None:
        """Return the first record of a time or later."""
        return next((m.offset for m in self._messages(stream) if m.time >= milliseconds), None)

    def done(self, stream: str, position: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def _messages(self, stream: str) -> list[Message]:
        lines = (self._root / f"{stream}.jsonl").read_text().splitlines()
        return [_message(number, json.loads(line)) for number, line in enumerate(lines)]


def _message(offset: int, record: Mapping[str, Any]) -> Message:
    when = datetime.fromisoformat(str(record.get("timestamp") or "2026-01-01T00:00:00+00:00"))
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    headers = [(name, _bytes(value) or b"") for name, value in (record.get("headers") or {}).items()]
    return Message(offset, round(when.timestamp() * 1000), _bytes(record.get("key")), _bytes(record["value"]), headers)


def _bytes(value: Any) -> bytes | None:
    """Return a key, value or header as bytes: a text unchanged, ``{"base64": …}`` decoded, anything else as JSON."""
    if value is None:
        return None
    if isinstance(value, dict) and value.keys() == {"base64"}:
        return base64.b64decode(value["base64"])
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)).encode()


def trial(pipeline: str | Path, records: Iterable[str | bytes]) -> Trial:
    """Run a pipeline over some records, and return what became of each.

    Parameters
    ----------
    pipeline
        Its name, or its file.
    records
        The value of each record, such as the lines of a file. A JSON object with the one key ``_record`` is a record
        with more than a value: ``value`` (a text is used unchanged, null is a tombstone, ``{"base64": …}`` is decoded,
        anything else is written as JSON), ``key``, ``headers``, ``timestamp`` (ISO 8601; by default 2026-01-01) and
        ``topic`` (by default the first one of the file).

    Raises
    ------
    ConfigError
        If the file is not valid, or a record has another key.
    SluiceError
        By type, if the run fails. A verdict that fails is no error.
    """
    spec = load(str(pipeline))
    streams = list(spec.source.config.streams) or ["records"]
    given = [_record(number, line, streams) for number, line in enumerate(records, 1)]
    with tempfile.TemporaryDirectory(prefix="sluice-test-") as folder:
        for stream in streams:
            own = [json.dumps(record) for record in given if record["topic"] == stream]
            (_root() / f"{stream}.jsonl").write_text("\n".join(own))
        (_root() / "id").write_text(uuid.uuid4().hex)
        file = Path(folder) / f"{spec.name}.yaml"
        file.write_text(yaml.safe_dump(_changed(spec, streams), sort_keys=False))
        with _home(Path(folder)) as home:
            changed = load(file)
            _prepare(changed)
            return _ran(changed, home)


def _record(number: int, line: str | bytes, streams: Sequence[str]) -> dict[str, Any]:
    text = line.decode() if isinstance(line, bytes) else line
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    whole = found[_RECORD] if isinstance(found, dict) and found.keys() == {_RECORD} else {"value": text}
    if not isinstance(whole, dict):
        raise _wrong(number, f"has {_RECORD}: {json.dumps(whole)[:80]}", streams)
    record = {"topic": streams[0], "value": None, **whole}
    unknown = record.keys() - {"topic", "value", "key", "headers", "timestamp"}
    if unknown or record["topic"] not in streams:
        what = f"has {', '.join(sorted(unknown))}" if unknown else f"is of topic {record['topic']!r}"
        raise _wrong(number, what, streams)
    try:
        _message(number, record)
    except (AttributeError, ValueError) as error:  # of a time, of base64, or of headers that are no object
        raise _wrong(number, f"cannot be read: {error}", streams) from None
    return record


def _wrong(number: int, what: str, streams: Sequence[str]) -> ConfigError:
    return ConfigError(
        f"record {number} {what}",
        state="nothing was run",
        next_step=f"a record has topic (one of {', '.join(streams)}), value, key, headers (an object) and timestamp "
        "(ISO 8601)",
    )


def _changed(spec: Pipeline, streams: Sequence[str]) -> dict[str, Any]:
    """Return the pipeline's file with another source and sink."""
    text: dict[str, Any] = yaml.safe_load(spec.file.read_text())
    home, kept = Home.from_env(), {key: value for key, value in text.items() if key not in _ELSEWHERE}
    kept["source"] = {"queue": {"connection": _CONNECTION, "kind": f"{__name__}:Records", "streams": list(streams)}}
    keyed = (
        {key: text["sink"][spec.sink.key].get(key) for key in ("mode", "key", "sequence")}
        if spec.sink.config.keyed
        else {}
    )
    kept["sink"] = {"delta": {"path": "rows", **{key: value for key, value in keyed.items() if value is not None}}}
    kept["quarantine"] = {"delta": {"path": "refused"}}
    kept["spark"] = {key: value for key, value in (text.get("spark") or {}).items() if key == "conf"}
    for name, table in (text.get("tables") or {}).items():
        kept["tables"][name]["delta"]["path"] = home.resolve(table["delta"]["path"])
    quality = {key: value for key, value in (text.get("quality") or {}).items() if key not in ("history", "on_failed")}
    if spec.suite_file is not None:
        quality["suite"] = str(spec.suite_file)
    return kept | ({"quality": quality} if quality else {})


def _ran(spec: Pipeline, home: Home) -> Trial:
    from sluice_spark.engine.session import session
    from sluice_spark.quality.judge import Judge
    from sluice_spark.runs.context import RunContext
    from sluice_spark.runs.factory import requested

    ledger, request = Ledger.open(), RunRequest.of(spec, _RUN)
    judge = Judge(spec, home, _RUN)
    context = RunContext(spec, _RUN, ledger, home, session, spec.recovery, judge, None)
    account = requested(context, request).execute()
    judgement = ledger.runs.known(spec.name, _RUN).judgement or {}
    return Trial(_rows(home, "rows"), _refused(home), account, [str(text) for text in judgement.get("reasons", ())])


def _rows(home: Home, name: str) -> list[dict[str, Any]]:
    own = (*METADATA_COLUMNS, "_run")
    found = [{key: value for key, value in row.items() if key not in own} for row in _table(home, name)]
    rows = [json.loads(json.dumps(row, default=_plain)) for row in found]
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))


def _refused(home: Home) -> list[dict[str, Any]]:
    found = [
        {
            "stream": row["_topic"],
            "offset": row["_offset"],
            **{k: row["_errors"][0][k] for k in ("rule", "column", "detail")},
        }
        for row in _table(home, "refused")
    ]
    return sorted(found, key=lambda row: (row["stream"], row["offset"]))


def _table(home: Home, name: str) -> list[dict[str, Any]]:
    from deltalake import DeltaTable

    path = home.resolve(name)
    if not DeltaTable.is_deltatable(path):
        return []
    rows: list[dict[str, Any]] = DeltaTable(path).to_pyarrow_table().to_pylist()
    return rows


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


# --- a home and a session of the test's own ------------------------------------------------------------------------


@cache
def _root() -> Path:
    """Return where the records are: one folder, because Spark's workers know the environment of their first test."""
    folder = Path(tempfile.mkdtemp(prefix="sluice-records-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ[f"AIRFLOW_CONN_{_CONNECTION.upper()}"] = json.dumps({"conn_type": "generic", "host": str(folder)})
    return folder


@contextmanager
def _home(folder: Path) -> Iterator[Home]:
    """Let the process have a home of its own, with the jars of its former one."""
    own = {
        "SLUICE_HOME": str(folder),
        "SLUICE_JARS": str(jars.paths("spark")[0].parent.parent),
        "SLUICE_JVM_ARCHIVE": str(archive_file(Home.from_env()).absolute()),
    }
    before = {name: os.environ.pop(name, None) for name in (*own, "SLUICE_LEDGER_URL")}
    os.environ.update(own)
    try:
        yield Home.from_env()
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _prepare(spec: Pipeline) -> None:
    """Let this process' session be started as that of a run is; it is, when a run first needs it."""
    if "PYSPARK_SUBMIT_ARGS" in os.environ:
        return
    started = submit(
        spec, RunRequest.of(spec, _RUN), spark=Connection("spark_default", "spark", host="local[2]"), find=find
    )
    argv = started.argv()
    options = argv[1 : argv.index(str(started.application))]
    os.environ.update(started.env)
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{shlex.join(options)} pyspark-shell"
    os.environ["PYSPARK_PYTHON"] = sys.executable
