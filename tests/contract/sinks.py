"""Every kind of sink, opened without Spark: how a test stages rows for it, and how an independent reader finds them."""

from __future__ import annotations

import json
import shutil
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from adbc_driver_manager import AdbcStatusCode
from adbc_driver_postgresql import dbapi
from confluent_kafka import KafkaError, KafkaException
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType
from tests.fixtures.folder import named_files
from tests.fixtures.lake import catalog_of
from tests.fixtures.postgres import new_database
from tests.fixtures.runs import consume
from tests.fixtures.stream import origin

from sluice.kinds import kind_of
from sluice.local.kafka import Topics
from sluice.sinks.manifest import Manifest
from sluice_spark.sinks.base import NOTHING, Staged, StagedFile, Tally
from sluice_spark.sinks.kafka import producer
from sluice_spark.sinks.kafka.columns import _KEY, _TIME, _VALUE
from sluice_spark.sinks.parquet.staged_files import read_back

COLUMNS = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("_topic", pa.string()), ("_partition", pa.int32()),
     ("_offset", pa.int64()), ("_timestamp", pa.timestamp("us", "UTC")), ("_run", pa.string())]
)  # fmt: skip
SCHEMA = from_arrow_schema(COLUMNS)
BEGIN = 1_772_323_200_000
"""The record time of offset 0, 2026-03-01 in milliseconds since 1970; each further offset is a second later."""


def rows(first: int, last: int, run: str = "r") -> pa.Table:
    made = [(n, f"näme {n}", "t", 0, n, (BEGIN + 1000 * n) * 1000, run) for n in range(first, last)]
    return pa.Table.from_pylist([dict(zip(COLUMNS.names, row, strict=True)) for row in made], COLUMNS)


class SinkCase(ABC):
    """One kind of sink in a place of its own; ``writer`` opens as many writers of it as a test needs."""

    name: ClassVar[str]
    """As in the pipeline file, and with the mode where there are two."""
    key: ClassVar[str]
    """The key below ``sink``."""
    shared: ClassVar[bool] = True
    """Whether two pipelines could be given the same place."""
    readable: ClassVar[bool] = True
    """Whether :meth:`held` finds rows."""
    replaceable: ClassVar[bool] = False
    """Whether one commit can take rows out and put others in; the kind must declare the same."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
        self.root, self.monkeypatch, self.request = root, monkeypatch, request
        self.prepare()

    def prepare(self) -> None:  # noqa: B027 - few need anything
        """Make what the sink needs: a server's database, connections in the environment."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return the settings below the key."""

    @property
    def place(self) -> str:
        """The resolved path that a run would open the sink with."""
        return str(self.root / "out")

    @property
    def kind(self) -> Any:
        return kind_of("sinks", self.key)

    @property
    def config(self) -> Any:
        return self.kind.config.model_validate(self.settings())

    def writer(self, epoch: str = "1", pipeline: str = "p", *, check: bool = True) -> Any:
        """Open the sink for a writer, as a driver does before its first batch; without a check for other columns."""
        sink = self.kind.opened(self.config, self.place, f"sluice:{pipeline}:{epoch}")
        sink.examine()
        if check:
            sink.check(self.schema)
        return sink

    @property
    def schema(self) -> StructType:
        return SCHEMA

    def stage(self, sink: Any, batch: int, table: pa.Table, name: str = "p-e1") -> Staged:
        """Write rows where the sink stages them, as a task of a run does, and read the files back."""
        folder = f"batches/{name}-{batch:06d}-{uuid.uuid4().hex[:8]}"
        (Path(sink.staging) / folder).mkdir(parents=True)
        pq.write_table(self.staged(table), Path(sink.staging) / folder / "part-00000.parquet")
        return read_back(sink.staging, folder, offsets=True)

    def staged(self, table: pa.Table) -> pa.Table:
        """Return the columns of a staged file."""
        return table

    @abstractmethod
    def held(self) -> Mapping[int, str]:
        """Return the run of each offset that a reader finds; fails if one is there twice."""

    def lose_answer(self) -> list[bool]:
        """Let the next commit reach the sink, and its answer not; the list is filled when that has happened."""
        raise NotImplementedError

    def take_back(self) -> None:
        """Undo or remove, as a user or a backup does, what the pipeline committed last."""
        raise NotImplementedError

    def drop(self) -> None:
        """Remove all of the sink, as a user does."""
        raise NotImplementedError

    def worst(self) -> tuple[str, Any]:
        """Return a column, and a value in it that the sink does not hold."""
        raise NotImplementedError


def exact(found: list[tuple[int, str]] | pa.Table) -> Mapping[int, str]:
    """Return runs by offset; no offset may be there twice."""
    if isinstance(found, pa.Table):
        found = list(zip(found["_offset"].to_pylist(), found["_run"].to_pylist(), strict=True))
    twice = [offset for offset, count in Counter(offset for offset, _ in found).items() if count > 1]
    assert twice == []
    return dict(found)


def losing(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: Exception) -> list[bool]:
    """Let a method do its work once and fail afterwards."""
    real, lost = getattr(owner, name), list[bool]()

    def call(*arguments: Any, **keys: Any) -> Any:
        answer = real(*arguments, **keys)
        if not lost:
            lost.append(True)
            raise error
        return answer

    monkeypatch.setattr(owner, name, call)
    return lost


class Delta(SinkCase):
    name = key = "delta"
    replaceable = True

    def settings(self) -> dict[str, Any]:
        return {"path": "out"}

    def held(self) -> Mapping[int, str]:
        if not DeltaTable.is_deltatable(self.place):
            return {}
        return exact(DeltaTable(self.place).to_pyarrow_table())

    def lose_answer(self) -> list[bool]:
        return losing(self.monkeypatch, DeltaTable, "create_write_transaction", CommitFailedError("version exists"))

    def drop(self) -> None:
        shutil.rmtree(self.place)

    def take_back(self) -> None:
        table = DeltaTable(self.place)
        table.restore(table.version() - 1)


class DeltaUpsert(Delta):
    """A Delta table that keeps the newest row of each key; here each row has a key of its own."""

    name = "delta-upsert"
    replaceable = False

    def settings(self) -> dict[str, Any]:
        return {"path": "out", "mode": "upsert", "key": ["id"]}

    def lose_answer(self) -> list[bool]:
        return losing(self.monkeypatch, DeltaTable, "create_write_transaction", OSError("connection reset"))

    def worst(self) -> tuple[str, Any]:
        return "id", None


class Iceberg(SinkCase):
    name = key = "iceberg"
    replaceable = True

    def prepare(self) -> None:
        (self.root / "out").mkdir()
        self.properties = {
            "type": "sql", "uri": f"sqlite:///{self.root}/catalog.db", "warehouse": f"file://{self.root}/lake",
        }  # fmt: skip
        self.connect()

    def connect(self) -> None:
        connection = {"conn_type": "iceberg", "extra": self.properties}
        self.monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps(connection))

    def worst(self) -> tuple[str, Any]:
        return "_timestamp", pa.scalar(20_000 * 365 * 86_400_000_000, pa.timestamp("us", "UTC"))

    def settings(self) -> dict[str, Any]:
        return {"table": "shop.orders"}

    @property
    def table(self) -> Any:
        """The table as it is now, by pyiceberg."""
        return catalog_of(self.properties).load_table("shop.orders")

    def held(self) -> Mapping[int, str]:
        return exact(self.table.scan().to_arrow())

    def lose_answer(self) -> list[bool]:
        error = sa.exc.OperationalError("COMMIT", {}, Exception("the connection is lost"))
        return losing(self.monkeypatch, SqlCatalog, "commit_table", error)

    def drop(self) -> None:
        self.table.catalog.drop_table(self.table.name())

    def take_back(self) -> None:
        *_, before, _ = [snapshot.snapshot_id for snapshot in self.table.snapshots()]
        self.table.manage_snapshots().set_current_snapshot(snapshot_id=before).commit()


class Files(SinkCase):
    name = key = "files"
    replaceable = True

    def settings(self) -> dict[str, Any]:
        return {"path": "out"}

    def held(self) -> Mapping[int, str]:
        tables = [pq.read_table(self.root / "out" / path) for path in named_files(self.root / "out")]
        return exact(pa.concat_tables(tables) if tables else [])

    def lose_answer(self) -> list[bool]:
        return losing(self.monkeypatch, Manifest, "commit", OSError("stale file handle"))

    def drop(self) -> None:
        shutil.rmtree(self.root / "out")

    def take_back(self) -> None:
        min((self.root / "out" / "_sluice").glob("*.json")).unlink()


class Postgres(SinkCase):
    name = key = "postgres"
    replaceable = True

    def prepare(self) -> None:
        self.url = sa.make_url(new_database(self.request.getfixturevalue("postgres")))
        self.connect()

    def connect(self, **more: Any) -> None:
        parts = {"host": self.url.host, "port": self.url.port, "login": self.url.username, "schema": self.url.database}
        self.connection = json.dumps({"conn_type": "postgres", **parts, **more})
        self.monkeypatch.setenv("AIRFLOW_CONN_POSTGRES_DEFAULT", self.connection)

    def worst(self) -> tuple[str, Any]:
        return "name", "zero \0"

    def settings(self) -> dict[str, Any]:
        return {"table": "orders"}

    def execute(self, *statements: str) -> list[Any]:
        """Change the database behind the sink's back; return what the last statement gives."""
        engine, found = sa.create_engine(self.url), list[Any]()
        with engine.begin() as connection:
            for statement in statements:
                result = connection.execute(sa.text(statement))
                found = list(result) if result.returns_rows else []
        engine.dispose()
        return found

    def held(self) -> Mapping[int, str]:
        if not self.execute("SELECT 1 FROM pg_class WHERE relname = 'orders'"):
            return {}
        return exact([tuple(row) for row in self.execute("SELECT _offset, _run FROM public.orders")])

    def lose_answer(self) -> list[bool]:
        error = dbapi.OperationalError("the connection is lost", status_code=AdbcStatusCode.IO, sqlstate="08006")
        return losing(self.monkeypatch, dbapi.Connection, "commit", error)

    def drop(self) -> None:
        self.execute("DROP TABLE public.orders, public.sluice_commits")

    def take_back(self) -> None:
        self.execute("DROP TABLE public.orders")


class PostgresUpsert(Postgres):
    """A table of PostgreSQL that keeps the newest row of each key."""

    name = "postgres-upsert"
    replaceable = False

    def worst(self) -> tuple[str, Any]:
        return "id", None

    def settings(self) -> dict[str, Any]:
        return {"table": "orders", "mode": "upsert", "key": ["id"]}


class Kafka(SinkCase):
    """A topic."""

    name = key = "kafka"

    def prepare(self) -> None:
        self.broker = self.request.getfixturevalue("broker")
        self.topics: Topics = self.request.getfixturevalue("topics")
        self.topic = self.request.getfixturevalue("topic")(3)
        self.request.addfinalizer(self._remove_marks)
        kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": self.broker.bootstrap}}
        self.monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(kafka))

    def _remove_marks(self) -> None:
        if self.topics.exists(f"{self.topic}.sluice-commits"):
            self.topics.delete(f"{self.topic}.sluice-commits")

    def worst(self) -> tuple[str, Any]:
        self.topics.recreate(self.topic, 3, {"max.message.bytes": 1_000_000})
        return "name", "x" * 1_100_000

    def settings(self) -> dict[str, Any]:
        return {"topic": self.topic, "key": "id"}

    def staged(self, table: pa.Table) -> pa.Table:
        """Return the rows with the records that they become, as Spark makes them."""
        lines = table.select(["id", "name"]).to_pylist()
        times = [int(moment.timestamp() * 1000) for moment in table["_timestamp"].to_pylist()]
        table = table.append_column(_VALUE, pa.array([json.dumps(line).encode() for line in lines], pa.binary()))
        table = table.append_column(_KEY, pa.array([str(line["id"]).encode() for line in lines], pa.binary()))
        return table.append_column(_TIME, pa.array(times, pa.int64()))

    def held(self) -> Mapping[int, str]:
        sent = consume(self.broker, self.topic, "read_committed")
        return exact([(origin(record)[2], dict(record.headers)["_run"].decode()) for record in sent])

    def lose_answer(self) -> list[bool]:
        error = KafkaException(KafkaError(KafkaError._TIMED_OUT, "the connection is lost"))
        return losing(self.monkeypatch, producer.Transactions, "_commit", producer.UnknownOutcomeError(error))

    def take_back(self) -> None:
        self.topics.recreate(self.topic, 3)


class Foreach(SinkCase):
    """A writer of the user's."""

    name = key = "foreach"
    shared = False

    def prepare(self) -> None:
        self.monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "fixtures" / "modules"))
        self.monkeypatch.setenv("COLLECTED", str(self.root / "collected"))

    def settings(self) -> dict[str, Any]:
        return {"python": "collector:Lines"}

    def held(self) -> Mapping[int, str]:
        file = self.root / "collected" / "rows.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return exact([(line["_offset"], line["run"]) for line in lines])

    def lose_answer(self) -> list[bool]:
        raise NotImplementedError("it promises each row at least once")

    def take_back(self) -> None:
        min((self.root / "out" / "_sluice").glob("*.json")).unlink()


class Console(Foreach):
    name = key = "console"
    readable = False

    def settings(self) -> dict[str, Any]:
        return {}

    def held(self) -> Mapping[int, str]:
        raise NotImplementedError


class Toy(SinkCase):
    """The sink of a package outside: JSON lines."""

    name = key = "jsonl"

    def prepare(self) -> None:
        self.monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "fixtures" / "toy"))
        kind_of.cache_clear()
        self.request.addfinalizer(kind_of.cache_clear)

    def settings(self) -> dict[str, Any]:
        return {"path": "out"}

    def stage(self, sink: Any, batch: int, table: pa.Table, name: str = "p-e1") -> Staged:
        folder = f"batches/{name}-{batch:06d}-{uuid.uuid4().hex[:8]}"
        file = self.root / "out" / folder / "part.json"
        file.parent.mkdir(parents=True)
        lines = [{**row, "_timestamp": row["_timestamp"].isoformat()} for row in table.to_pylist()]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        offsets = table["_offset"].to_pylist()
        tally = Tally(len(offsets), len(set(offsets)), min(offsets), max(offsets))
        staged = StagedFile(f"{folder}/part.json", file.stat().st_size, 0, len(offsets), {}, "{}")
        return Staged(folder, (staged,), {("t", 0): tally})

    def held(self) -> Mapping[int, str]:
        commits = [json.loads(file.read_text()) for file in sorted((self.root / "out" / "_commits").glob("*.json"))]
        files = [self.root / "out" / file for commit in commits for file in commit["files"]]
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return exact([(line["_offset"], line["_run"]) for line in lines])


CASES: tuple[type[SinkCase], ...] = (
    Delta, DeltaUpsert, Iceberg, Files, Postgres, PostgresUpsert, Kafka, Foreach, Console, Toy,
)  # fmt: skip


def put(case: SinkCase, sink: Any, batch: int, table: pa.Table, run: str = "r") -> bool:
    schema = from_arrow_schema(table.schema)
    sink.check(schema)
    done: bool = sink.commit(case.stage(sink, batch, table), schema, batch, note(run, batch))
    return done


def records(*values: Mapping[str, Any], first: int = 0, **types: pa.DataType) -> pa.Table:
    """Return rows of some columns, at offsets that follow each other; what a row lacks is null."""
    count = len(values)
    columns = {name: pa.array([value.get(name) for value in values], kind) for name, kind in types.items()}
    beside = rows(first, first + count).drop_columns(["id", "name"])
    return pa.table({**columns, **{name: beside[name] for name in beside.column_names}})


def commit(case: SinkCase, sink: Any, batch: int, first: int, last: int, *, run: str = "r", **more: Any) -> bool:
    """Stage and commit a range of offsets as one batch; none for an empty range."""
    staged = case.stage(sink, batch, rows(first, last, run)) if last > first else NOTHING
    done: bool = sink.commit(staged, case.schema, batch, note(run, batch), **more)
    return done


def note(run: str, batch: int) -> dict[str, Any]:
    return {"pipeline": "p", "run": run, "batch": batch, "accounts": [["t", 0, batch, {"é": None}]]}


@pytest.fixture
def case(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[type[SinkCase]], SinkCase]:
    """Make a sink of a kind in a place of its own, for what is particular to the kind."""
    return lambda kind: kind(tmp_path, monkeypatch, request)
