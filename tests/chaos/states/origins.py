"""Sandboxes that read something else than topics by their names, into Delta.

No run changes what it reads, so the recorded states are whole: of Redis the pipeline's consumer group apart, which
stays as the newest run left it. It is removed before a real kill, and the pipeline's first run makes it again. A socket
sends each line once; what its server sent to whom is put back, and new lines for the run that goes on.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from tests.chaos.states.boxes import Box, OnPostgres, closing, on_database
from tests.fixtures.database import CONNECTION
from tests.fixtures.lines import Server
from tests.fixtures.queues import Nats, Redis, started
from tests.fixtures.runs import consume, good

from sluice.connections import variable_of
from sluice.local.kafka import Broker, Topics

_STREAM = "orders"


class Read(NamedTuple):
    """A record, as a client of Kafka gives it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes


@dataclass
class _Origin(Box):
    """Another source; records are added by their values alone, in one order."""

    def source(self) -> dict[str, Any]:
        """The source, but for the size of a batch."""
        raise NotImplementedError

    def add(self, values: list[bytes]) -> None:
        raise NotImplementedError

    def configure(self, *, kafka: Any = None, **keys: Any) -> None:
        ((kind, parts),) = self.source().items()
        super().configure(**{"source": {kind: {**parts, **(kafka or {})}}, **keys})

    def produce(self, records: Any, topic: str | None = None) -> Any:
        self.add([record[2] for record in records])
        self.produced += [(_STREAM, 0, len(self.produced) + n) for n in range(len(records))]
        return self.produced[-len(records) :]


@dataclass
class PatternBox(Box):
    """Topics by a pattern: a second one appears behind the first run."""

    def configure(self, *, kafka: Any = None, **keys: Any) -> None:
        pattern = {"pattern": rf"{self.topic}(\..*)?", **(kafka or {})}
        super().configure(**{"source": {"kafka": pattern}, **keys})

    def grow(self) -> None:
        name = f"{self.topic}.b"
        self.topics.create(name, 2, {"retention.ms": -1})
        self.produce([(n % 2, b"k", good(100 + n)) for n in range(4)], name)

    def records(self) -> list[Any]:
        return [r for name in (self.topic, f"{self.topic}.b") for r in consume(self.broker, name)]


@dataclass
class ClustersBox(Box):
    """Two clusters that mirror each other; the run reads the first one."""

    second: Any = None

    def serve(self) -> None:
        self.second = Broker(self.outside / "standby", port=0)
        self.second.start()
        closing(self.second.stop)
        topics = Topics(self.second.bootstrap)
        if not topics.exists(self.topic):
            topics.create(self.topic, 2, {"retention.ms": -1})

    def env(self, **extra: str) -> dict[str, str]:
        there = {"conn_type": "kafka", "extra": {"bootstrap.servers": self.second.bootstrap}}
        return super().env(**({variable_of("kafka_standby"): json.dumps(there)} | extra))

    def configure(self, *, kafka: Any = None, **keys: Any) -> None:
        several = {"clusters": ["kafka_default", "kafka_standby"], "origin_header": "origin"}
        super().configure(kafka={**several, **(kafka or {})}, **keys)


@dataclass
class FileBox(_Origin):
    """JSON files of a folder beside the home."""

    format = "json"

    def source(self) -> dict[str, Any]:
        (self.outside / _STREAM).mkdir(exist_ok=True)
        return {"file": {"path": str(self.outside / _STREAM), "format": self.format, "glob": f"*.{self.format}"}}

    def add(self, values: list[bytes]) -> None:
        """Put a file into it, old enough to be read at once."""
        folder = self.outside / _STREAM
        file = folder / f"{len(list(folder.iterdir())):04}.{self.format}"
        self.write(file, values)
        os.utime(file, (time.time() - 100,) * 2)

    def write(self, file: Any, values: list[bytes]) -> None:
        file.write_bytes(b"\n".join(values) + b"\n")

    def read(self, file: Any) -> list[bytes]:
        return list(file.read_bytes().splitlines())

    def records(self) -> list[Any]:
        rows = [(f.name, v) for f in sorted((self.outside / _STREAM).iterdir()) for v in self.read(f)]
        return [Read(_STREAM, 0, n, name.encode(), value) for n, (name, value) in enumerate(rows)]


def _row(value: bytes, malformed: Any = None) -> Any:
    """Return a record as a row; what is malformed gets an id that is refused."""
    return json.loads(value) if value.endswith(b"}") else {"id": malformed, "name": "bad"}


@dataclass
class ParquetBox(FileBox):
    """Parquet files of a folder; what is malformed elsewhere is here a row without the id that is required."""

    format = "parquet"

    def configure(self, **keys: Any) -> None:
        super().configure(**{"decode": {"json": {"schema": "id BIGINT NOT NULL, name STRING"}}, **keys})

    def write(self, file: Any, values: list[bytes]) -> None:
        rows = [_row(value) for value in values]
        pq.write_table(pa.Table.from_pylist(rows, pa.schema({"id": pa.int64(), "name": pa.string()})), file)

    def read(self, file: Any) -> list[bytes]:
        return [json.dumps(row).encode() for row in pq.read_table(file).to_pylist()]

    def token(self, key: bytes | None, value: bytes | None) -> Any:
        return key, json.dumps(json.loads(value or b"null"))


@dataclass
class AvroBox(ParquetBox):
    """The same in Avro files."""

    format = "avro"

    def write(self, file: Any, values: list[bytes]) -> None:
        fields = [{"name": name, "type": ["null", kind]} for name, kind in (("id", "long"), ("name", "string"))]
        rows = [_row(value) for value in values]
        with file.open("wb") as out:
            fastavro.writer(out, {"type": "record", "name": "row", "fields": fields}, rows)

    def read(self, file: Any) -> list[bytes]:
        with file.open("rb") as rows:
            return [json.dumps(row).encode() for row in fastavro.reader(rows)]


@dataclass
class JdbcBox(OnPostgres, _Origin):
    """A table of PostgreSQL, which runs only read; its key is a number."""

    key = "n"

    def source(self) -> dict[str, Any]:
        return {"jdbc": {"connection": "postgres_default", "table": _STREAM, "key": self.key}}

    def env(self, **extra: str) -> dict[str, str]:
        return super().env(**({CONNECTION: self.connection} | extra))

    def serve(self) -> None:
        super().serve()
        self.sql(f"CREATE TABLE IF NOT EXISTS {_STREAM} (n BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id JSONB, "
                 "name TEXT, at TIMESTAMPTZ DEFAULT now())")  # fmt: skip

    def add(self, values: list[bytes]) -> None:
        """Insert rows; what is malformed elsewhere is here an id that is no number."""
        for value in values:
            row = _row(value, "no")
            statement = f"INSERT INTO {_STREAM} (id, name) VALUES (CAST(:id AS JSONB), :name)"
            self.sql(statement, id=json.dumps(row["id"]), name=row["name"])

    def records(self) -> list[Any]:
        rows = self.sql(f"SELECT n, to_json(o)::text FROM {_STREAM} o ORDER BY n")
        return [
            Read(f"public.{_STREAM}", 0, place, json.dumps({"n": n}).encode(), text.encode())
            for place, (n, text) in enumerate(rows)
        ]

    def token(self, key: bytes | None, value: bytes | None) -> Any:
        named, row = json.loads(key or b"null"), json.loads(value or b"null")
        return json.dumps(named, sort_keys=True), json.dumps(row)

    def sql(self, statement: str, **values: Any) -> list[Any]:
        return on_database(self.database, statement, **values)


@dataclass
class TimedBox(JdbcBox):
    """The same by a time, which two rows may share."""

    key = "at"

    def serve(self) -> None:
        super().serve()
        # without an index each run says so
        self.sql(f"CREATE INDEX IF NOT EXISTS by_time ON {_STREAM} (at)")

    def records(self) -> list[Any]:
        """The rows; each was inserted by a transaction of its own, so later numbers have later times."""
        return [r._replace(key=self._named(r)) for r in super().records()]

    def _named(self, record: Read) -> bytes:
        row = json.loads(record.value)
        return json.dumps({"at": row["at"], "n": row["n"]}).encode()


@dataclass
class _QueueBox(_Origin):
    """A stream of a message queue."""

    queue: Any = None
    program: Any = None

    def serve(self) -> None:
        self.queue = started(self.program, self.outside / "server")
        closing(self.queue.stop)

    def env(self, **extra: str) -> dict[str, str]:
        return super().env(**({variable_of("queue"): json.dumps(self.queue.connection())} | extra))

    def add(self, values: list[bytes]) -> None:
        self.queue.add(_STREAM, values)


@dataclass
class RedisBox(_QueueBox):
    """A stream of Redis."""

    program: Any = Redis

    def source(self) -> dict[str, Any]:
        return {"queue": {"connection": "queue", "kind": "redis_streams", "streams": [_STREAM], "field": "value"}}

    def records(self) -> list[Any]:
        entries = self.queue.client.xrange(_STREAM)
        return [Read(_STREAM, 0, n, key, fields[b"value"]) for n, (key, fields) in enumerate(entries)]

    def rewind(self, *, killed: bool) -> None:
        """Before a kill, remove the groups: the recorded run is the pipeline's first."""
        for group in self.queue.client.xinfo_groups(_STREAM) if killed else ():
            self.queue.client.xgroup_destroy(_STREAM, group["name"])


@dataclass
class NatsBox(_QueueBox):
    """A stream of NATS JetStream."""

    program: Any = Nats

    def source(self) -> dict[str, Any]:
        return {"queue": {"connection": "queue", "kind": "nats_jetstream", "streams": [_STREAM]}}

    def records(self) -> list[Any]:

        async def read(_: Any, js: Any) -> list[Any]:
            last = (await js.stream_info(_STREAM)).state.last_seq
            return [await js.get_msg(_STREAM, n) for n in range(1, last + 1)]

        found = self.queue._do(read)
        return [Read(_STREAM, 0, n, m.subject.encode(), m.data) for n, m in enumerate(found)]


@dataclass
class RateBox(_Origin):
    """Made-up rows, one a second; those whose number ends in 0 are refused."""

    def source(self) -> dict[str, Any]:
        return {"rate": {"rows_per_second": 1, "partitions": 2, "backlog": "60s"}}

    def configure(self, **keys: Any) -> None:
        rules = [{"name": "odd", "sql": {"passes": "value % 10 <> 0"}}]
        decode = {"json": {"schema": "value BIGINT, timestamp TIMESTAMP"}}
        super().configure(**{"rules": rules, "decode": decode, **keys})

    def add(self, values: list[bytes]) -> None:
        """Nothing: rows come by themselves."""

    def records(self) -> list[Any]:
        """Nothing: how many rows there are depends on the time."""
        return []


class Sent(NamedTuple):
    """What a server sent to a run, and how many lines had been landed when that run connected."""

    lines: list[bytes]
    landed: int


@dataclass
class SocketBox(_Origin):
    """A server that sends each line once; the lines that wait go to who connects next."""

    moves = True
    waiting: list[list[bytes]] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)
    mortal: int | None = None
    """Which of :attr:`sent` went to a run that died."""
    port: int = 1

    def serve(self) -> None:
        noted = self.outside / "port"
        server = Server(self._portions(), port=int(noted.read_text()) if noted.exists() else 0)
        closing(server.stop)
        self.port = server.port
        noted.write_text(str(server.port))

    def source(self) -> dict[str, Any]:
        return {"socket": {"host": "127.0.0.1", "port": self.port}}

    def add(self, values: list[bytes]) -> None:
        """Let lines wait, with those that do."""
        self.waiting = [[*(line for lines in self.waiting for line in lines), *values]]

    def remember(self) -> None:
        """Keep what was sent, and what waits for the run that is recorded."""
        kept = {"sent": [([*map(bytes.decode, lines)], landed) for lines, landed in self.sent]}
        kept["recorded"] = [*map(bytes.decode, *self.waiting)]
        (self.outside / "sent.json").write_text(json.dumps(kept))

    def rewind(self, *, killed: bool) -> None:
        """Let the recorded run have had its lines, or a driver that is to be killed get them; others wait behind."""
        kept = json.loads((self.outside / "sent.json").read_text())
        self.sent = [Sent([*map(str.encode, lines)], landed) for lines, landed in kept["sent"]]
        self.mortal = len(self.sent)
        recorded = [*map(str.encode, kept["recorded"])]
        if not killed:
            self.sent.append(Sent(recorded, sum(len(s.lines) for s in self.sent)))
        self.waiting = [*([recorded] if killed else []), [good(200 + n) if n else b"{" for n in range(5)]]

    def records(self) -> list[Any]:
        """All lines, but those of a run that died before they were landed."""
        due = [s for n, s in enumerate(self.sent) if n != self.mortal or self.sent[n + 1].landed > s.landed]
        return [Read("socket", 0, n, None, line) for n, line in enumerate(line for s in due for line in s.lines)]

    def _portions(self) -> Iterator[bytes]:
        """Yield what each connection gets."""
        while True:
            lines = self.waiting.pop(0) if self.waiting else []
            self.sent.append(Sent(lines, self._landed()))
            yield b"".join(line + b"\n" for line in lines)

    def _landed(self) -> int:
        """Count what was landed; the newest lines are never forgotten."""
        book = str(self.home / "sources" / self.name / "book")
        if not DeltaTable.is_deltatable(book):
            return 0
        parts = pa.table(DeltaTable(book).scan().read_all()).to_pylist()
        return max((part["start"] + part["rows"] for part in parts if part["name"]), default=0)
