"""``make demo-sources``: files into PostgreSQL, and a queue into Delta and on into Kafka, on servers of its own.

Without Airflow: each step is ``sluice run``, as a user would call it. Everything is in ``SLUICE_HOME/sources-demo``,
which is a home of its own, and ``down`` removes it.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from sluice.cli.output import COUNTS, print_json, print_table
from sluice.connections import Connection, variable_of
from sluice.delta.table import Table as DeltaTable
from sluice.errors import SluiceError
from sluice.home import Home
from sluice.launch import jars
from sluice.launch.submit import archive_file
from sluice.ledger import Ledger
from sluice.local import archive
from sluice.local.kafka import Broker
from sluice.local.servers import Postgres, Redis, refuse_missing
from sluice_demo import targets
from sluice_demo.flights import feed_into

__all__ = ["SourcesDemo", "main"]

_FIRST, _UNTIL = datetime(2013, 1, 1, tzinfo=UTC), datetime(2013, 1, 2, tzinfo=UTC)
_NAME = "flights"
_SCHEMA = "id BIGINT NOT NULL, carrier STRING, flight INT, origin STRING, dest STRING, dep_delay INT"
_COLUMNS = ("id", "carrier", "flight", "origin", "dest", "dep_delay")
_BROKEN = (b"this is no flight", b'{"id": "neither", "flight": "is this"}')
"""What the feeder does not write: records that are refused."""

_PIPELINES = {
    "files_to_postgres": {
        "source": '{file: {path: INBOX, format: json, glob: "*.json"}}',
        "sink": "{postgres: {connection: postgres_default, table: flights}}",
    },
    "queue_to_delta": {
        "source": "{queue: {connection: redis_default, kind: redis_streams, streams: [flights], field: value}}",
        "sink": "{delta: {path: flights}}",
    },
    "delta_to_kafka": {
        "source": '{file: {path: OUTBOX, format: parquet, glob: "*.parquet"}}',
        "sink": "{kafka: {connection: kafka_default, topic: flights, key: carrier, partitions: 2}}",
    },
}
_SMALL = "spark: {conf: {spark.driver.defaultJavaOptions: -XX:TieredStopAtLevel=1}}  # pays for so few records"

_DOWN = "make down"

_say = Console(stderr=True, highlight=False, soft_wrap=True).print

Rows = Counter[tuple[Any, ...]]


class SourcesDemo:
    """The servers, the pipelines and the data of the demo, below ``SLUICE_HOME/sources-demo``."""

    def __init__(self) -> None:
        outer = Home.from_env()
        self.root = Path(outer.join("sources-demo"))
        self.broker = Broker(self.root / "servers" / "kafka", port=0)
        self.postgres = Postgres(self.root / "servers" / "postgres")
        self.redis = Redis(self.root / "servers" / "redis")
        self.inbox, self.outbox = self.root / "inbox", self.root / "outbox"
        self._archive = archive_file(outer)
        self._steps = 0

    def up(self) -> dict[str, Any]:
        """Start the servers, feed them, run the three pipelines, and compare what came out with what went in.

        Called again, it finds everything in place: nothing is fed or written twice.

        Returns
        -------
        dict
            What ``make demo-sources`` prints last.

        Raises
        ------
        ConfigError
            If a server is not installed; with the Debian packages.
        SluiceError
            If a run fails, or what came out is not exactly what went in.
        """
        began = time.monotonic()
        refuse_missing(self.postgres, self.redis)
        self._step("jars, and the class-data archive for Spark")
        for name in ("kafka", "spark"):
            jars.fetch(name, report=_say)
        archive.make(report=_say)
        self._step("PostgreSQL, Redis and Kafka, each on a free port")
        self.postgres.start()
        self.redis.start()
        self.broker.start(detach=True)
        self._write()
        os.environ.update(self.environment())

        self._step(f"files: the flights of {_FIRST:%d %B %Y}, and {len(_BROKEN)} lines that are none")
        self._feed(targets.Files(str(self.inbox)))
        _put(self.inbox / "broken.json", b"\n".join(_BROKEN) + b"\n")
        self._run("files_to_postgres")
        self._compare("the table of PostgreSQL", self._in_table(), self._in_files())

        self._step(f"a stream of Redis: the same flights, and {len(_BROKEN)} entries that are none")
        self._break_stream()
        self._feed(targets.Stream(_NAME, _connection("redis_default", self.redis.connection())))
        self._run("queue_to_delta")
        self._compare("the Delta table", self._in_delta(), self._in_stream())

        self._step("the files that the Delta table's log names, linked into a folder: the source of the next pipeline")
        _say(f"  {self._link()} new files")
        self._run("delta_to_kafka")
        self._compare("the topic of Kafka", self._in_topic(), self._in_delta())

        ledger = Ledger.open()
        runs = [
            {"pipeline": name, **ledger.runs.account(name, row.run)}
            for name in _PIPELINES
            for row in reversed(ledger.runs.newest(name, limit=50))
        ]
        useful = [run for run in runs if run["planned"]]
        print_table(useful, ["pipeline", *COUNTS, "verdict", "seconds"])
        _say(f"\nThe pipeline files: {self.root}/*.yaml. Each run's log is beside them.")
        _say(f"For commands of your own in a shell: source {self.root}/demo.env")
        _say("Ask: sluice status; sluice quarantine files_to_postgres; sluice audit queue_to_delta")
        _say(f"End and remove it all: {_DOWN}")
        sums = {part: sum(run[part] for run in useful) for part in COUNTS}
        return {"home": str(self.root), "seconds": round(time.monotonic() - began, 1), **sums, "runs": useful}

    def down(self) -> None:
        """Stop the servers, and remove all that :meth:`up` made."""
        if not self.root.exists():
            _say("the demo of sources was not there")
            return
        self.postgres.remove()
        self.redis.remove()
        self.broker.stop()
        shutil.rmtree(self.root)
        _say(f"the demo of sources: servers stopped, {self.root} removed")

    def environment(self) -> dict[str, str]:
        """Return the variables with which ``sluice`` uses these servers."""
        kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": self.broker.bootstrap}}
        found = {
            "postgres_default": self.postgres.connection(),
            "redis_default": self.redis.connection(),
            "kafka_default": kafka,
            "spark_default": {"conn_type": "spark", "host": "local[2]"},
        }
        return {
            "SLUICE_HOME": str(self.root),
            "SLUICE_PIPELINES": str(self.root),
            "SLUICE_JVM_ARCHIVE": str(self._archive),
            "SLUICE_LEDGER_URL": f"sqlite:///{self.root}/ledger.db",
            **{variable_of(name): json.dumps(connection) for name, connection in found.items()},
        }

    def _step(self, text: str) -> None:
        self._steps += 1
        _say(f"[bold]{self._steps}. {text}[/bold]")

    def _write(self) -> None:
        for name, keys in _PIPELINES.items():
            source = keys["source"].replace("INBOX", str(self.inbox)).replace("OUTBOX", str(self.outbox))
            _put(
                self.root / f"{name}.yaml",
                f'pipeline: {name}\nsource: {source}\ndecode: {{json: {{schema: "{_SCHEMA}"}}}}\n'
                f"sink: {keys['sink']}\n{_SMALL}\n".encode(),
            )
        lines = [f"export {name}={shlex.quote(value)}" for name, value in self.environment().items()]
        lines.append(f'export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"')
        secret = self.root / "demo.env"
        secret.touch(mode=0o600)
        secret.write_text("\n".join(lines) + "\n")

    def _feed(self, target: targets.Target) -> None:
        fed = feed_into(target, start=_FIRST, until=_UNTIL, report=lambda line: _say(f"  {line}"))
        _say(f"  {fed.produced:,} flights fed, {fed.already:,} were there")

    def _break_stream(self) -> None:
        import redis

        for number, value in enumerate(_BROKEN, 1):
            try:
                self.redis.client().xadd(_NAME, {"value": value}, id=f"0-{number}")
            except redis.ResponseError:  # it is there: ids only grow
                return

    def _run(self, name: str) -> None:
        """Call ``sluice run``, and say how it goes and what came of it."""
        file, run = self.root / f"{name}.yaml", f"demo-{datetime.now(UTC):%Y%m%dT%H%M%S}"
        log = self.root / f"{name}.log"
        command = [str(Path(sys.executable).with_name("sluice")), "run", str(file), "--run", run, "--json"]
        _say(f"  sluice run {file}")
        began = time.monotonic()
        with log.open("ab") as out, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=out, text=True) as process:
            said = self._follow(process, name, run, began)
        if process.returncode:
            tail = log.read_text(errors="replace").splitlines()[-6:]
            raise SluiceError(
                "\n    ".join([f"sluice run {name} ended with exit code {process.returncode}:", *tail]),
                state="what was committed is in the sink; the same command goes on from there",
                next_step=f"read {log}, then call the demo again",
            )
        account = json.loads(said.splitlines()[-1])
        _say(
            f"  read {account['planned']:,}, written {account['written']:,}, refused {account['quarantined']:,}, "
            f"lost {account['lost']:,}; verdict {account['verdict']}; {time.monotonic() - began:.0f} s"
        )

    @staticmethod
    def _follow(process: subprocess.Popen[str], name: str, run: str, began: float) -> str:
        while True:
            try:
                return process.communicate(timeout=5)[0]
            except subprocess.TimeoutExpired:
                done = sum(len(account.range) for account in Ledger.open().offsets.accounts(name, run))
                _say(f"  {time.monotonic() - began:.0f} s: {done:,} offsets accounted for")
            except BaseException:  # Ctrl-C reaches the run, too, which ends its driver
                process.wait()
                raise

    def _compare(self, what: str, out: Rows, into: Rows) -> None:
        """Compare as multisets: a row that is missing, doubled or changed is an error."""
        if out != into:
            raise SluiceError(
                f"{what} is not what went in: {(into - out).total():,} rows are missing, {(out - into).total():,} are "
                "too many or changed",
                state=f"everything is in {self.root}",
                next_step="sluice audit the pipeline; and tell the project",
            )
        _say(f"  checked: {what} has each of the {into.total():,} flights exactly once")

    def _in_files(self) -> Rows:
        return _flights(line for file in self.inbox.glob("*.json") for line in file.read_bytes().splitlines())

    def _in_stream(self) -> Rows:
        return _flights(fields[b"value"] for _, fields in self.redis.client().xrange(_NAME))

    def _in_table(self) -> Rows:
        import sqlalchemy as sa

        known = self.postgres.connection()
        who = {"username": known["login"], "password": known["password"], "database": known["schema"]}
        url = sa.URL.create("postgresql+psycopg2", host=known["host"], port=known["port"], **who)
        with sa.create_engine(url, poolclass=sa.NullPool).connect() as connection:
            return Counter(map(tuple, connection.execute(sa.text(f"SELECT {', '.join(_COLUMNS)} FROM flights"))))

    def _in_delta(self) -> Rows:
        batches = DeltaTable.open("sink", str(self.root / _NAME)).rows(_COLUMNS)
        return Counter(_row(row) for batch in batches for row in batch.to_pylist())

    def _in_topic(self) -> Rows:
        from kafka import KafkaConsumer, TopicPartition

        with KafkaConsumer(bootstrap_servers=self.broker.bootstrap, isolation_level="read_committed") as consumer:
            parts = [TopicPartition(_NAME, part) for part in consumer.partitions_for_topic(_NAME) or ()]
            consumer.assign(parts)
            consumer.seek_to_beginning()
            ends, values = consumer.end_offsets(parts), []
            while any(consumer.position(part) < end for part, end in ends.items()):
                values += [record.value for batch in consumer.poll(1000).values() for record in batch]
        return _flights(values)

    def _link(self) -> int:
        """Link each file of the table into the outbox under its own name; return how many are new there.

        Sluice has no source that reads Delta. Files of a table to which rows are only appended never change, and what
        its log names is committed; a folder of all its files would also have those of a run that died.
        """
        import deltalake

        self.outbox.mkdir(exist_ok=True)
        new = 0
        for uri in deltalake.DeltaTable(str(self.root / _NAME)).file_uris():
            file = Path(uri.removeprefix("file://"))
            linked = self.outbox / f"{file.parent.name}-{file.name}"
            if not linked.exists():
                os.link(file, linked)
                new += 1
        return new


def _connection(name: str, parts: Mapping[str, Any]) -> Connection:
    return Connection(name, **parts)


def _flights(values: Iterable[bytes]) -> Rows:
    return Counter(_row(json.loads(value)) for value in values if value not in _BROKEN)


def _row(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[column] for column in _COLUMNS)


def _put(file: Path, content: bytes) -> None:
    """Write a file unless it has this content: a source would take it for another one."""
    if not file.exists() or file.read_bytes() != content:
        file.parent.mkdir(parents=True, exist_ok=True)
        hidden = file.with_name(f".{file.name}")
        hidden.write_bytes(content)
        os.replace(hidden, file)


def main(argv: list[str] | None = None) -> int:
    """Run ``up`` or ``down``; the last line of ``up`` on stdout is one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m sluice_demo.sources", description=__doc__)
    parser.add_argument("action", choices=["up", "down"])
    action = parser.parse_args(argv).action
    try:
        chain = SourcesDemo()
        if action == "up":
            print_json(chain.up())
        else:
            chain.down()
    except SluiceError as error:
        _say(f"sluice: error: {error}", markup=False)
        return int(error.exit_code) or 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
