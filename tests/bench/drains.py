"""A run against what people would write instead, for each kind of source, sink and shape of data."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pyspark
import sqlalchemy as sa
from tests.bench.harness import COUNTRIES, HERE, Bench, Figure, Goal, Options, compare, measure, median
from tests.bench.shapes import SCHEMA, SHAPES
from tests.fixtures.postgres import binaries, new_database, server
from tests.fixtures.queues import Redis
from tests.fixtures.runs import consume

from sluice.cli.output import err
from sluice.connections import variable_of
from sluice.errors import ConfigError
from sluice.launch import jars

_SMALL = 10_000

_PEERS = {
    "arrow": ("peer_arrow.py", ("confluent-kafka==2.16.1", "deltalake", "pyarrow")),
    "dlt": ("peer_dlt.py", ("dlt[deltalake]==1.31.0", "confluent-kafka==2.16.1", "pyarrow")),
    "flink": ("peer_flink.py", ("apache-flink==2.2.1", "setuptools<81")),
}
"""Scripts, and what they need; installed for the bench alone."""


def _peer(bench: Bench, name: str, topic: str) -> Callable[[], Figure] | None:
    """Return what runs a script of others; None if it cannot be installed here."""
    script, needs = _PEERS[name]
    python, more, env = bench.python(name, needs), list[str](), dict[str, str]()
    if name == "flink" and python:
        try:
            more = [",".join(map(str, jars.fetch("flink", report=err.print)))]
        except ConfigError as error:
            err.print(str(error))
            return None
        # its Parquet format needs Hadoop's classes, which PySpark has
        hadoop = sorted((Path(pyspark.__file__).parent / "jars").glob("hadoop-client-*.jar"))
        env = {"HADOOP_CLASSPATH": ":".join(map(str, hadoop))}

    def run() -> Figure:
        out = bench.fresh(script.removesuffix(".py"))
        argv = [str(python), str(HERE / script), bench.broker.bootstrap, topic, str(bench.scratch / out), *more]
        return measure(argv, env, bench.scratch / f"{out}.log").figure

    return run if python else None


def _bare(bench: Bench, topic: str, schema: str = SCHEMA) -> tuple[Figure, Path]:
    out = bench.scratch / bench.fresh("bare")
    return bench.bare("bare.py", bench.broker.bootstrap, topic, schema, str(out)), out


def volume(bench: Bench, options: Options) -> dict[str, Any]:
    """Drain a large topic, not judged."""
    topic = bench.topic("big", options.records)
    sides = {"bare": lambda: _bare(bench, topic)[0], "ours": lambda: bench.drain(topic).figure}
    for name in _PEERS:
        if peer := _peer(bench, name, topic):
            sides[name] = peer
        else:
            err.print(f"{name} cannot be installed here: left out")
    return compare("volume: drain, not judged", options.records, options.runs, sides)


def shapes(bench: Bench, options: Options) -> dict[str, Any]:
    """Drain topics of other shapes, not judged."""
    found = {}
    for name, shape in SHAPES.items():
        if name == "small":  # the volume
            continue
        records, decode = int(options.records * shape.records), {"json": {"schema": shape.schema}}
        topic = bench.topic(f"shape-{name}", records, name)
        sides = {
            "bare": lambda topic=topic, shape=shape: _bare(bench, topic, shape.schema)[0],
            "ours": lambda topic=topic, decode=decode: bench.drain(topic, decode=decode).figure,
        }
        found[name] = compare(f"{name}: drain, not judged", records, options.runs, sides)
    return found


def fixed(bench: Bench, options: Options) -> dict[str, Any]:
    """Drain and judge a small topic."""
    topic = bench.topic("tiny", _SMALL)

    def bare() -> Figure:
        drained, out = _bare(bench, topic)
        return drained + bench.bare("bare_gx.py", str(out), str(bench.suite), str(bench.scratch / bench.fresh("gx")))

    sides = {"bare": bare, "ours": lambda: bench.drain(topic, judge=True).figure}
    return compare("fixed cost: drain and judge", _SMALL, options.runs, sides)


def also(bench: Bench, options: Options) -> dict[str, Any]:
    """Drain a topic into a table and another topic, not judged, against a pipeline for each."""
    records = int(options.records * 0.4)
    topic = bench.topic("twofold", records)

    def into_topic() -> dict[str, Any]:
        target = bench.fresh("further")
        bench.topics.create(target, 4, {"retention.ms": "-1"})
        return {"kafka": {"topic": target, "key": "id"}}

    sides = {
        "a pipeline each": lambda: bench.drain(topic).figure + bench.drain(topic, sink=into_topic()).figure,
        "also": lambda: bench.drain(topic, also=[into_topic()]).figure,
        "the table alone": lambda: bench.drain(topic).figure,
    }
    title = "a table and a topic: drain, not judged"
    return compare(title, records, options.runs, sides, goal=Goal("of two pipelines", 1.0))


_FILES = 100


def files(bench: Bench, options: Options) -> dict[str, Any]:
    """Drain a folder of a hundred files of JSON lines, not judged."""
    folder, begin, each = bench.scratch / "inbox", datetime(2026, 1, 1, tzinfo=UTC), options.records // _FILES
    err.print(f"filling {_FILES} files with {options.records:,} records")
    folder.mkdir()
    for number in range(_FILES):
        with (folder / f"part-{number:03d}.json").open("w") as out:
            for n in range(number * each, (number + 1) * each):
                row = {"id": n, "ts": (begin + timedelta(seconds=n // 60)).isoformat(timespec="milliseconds")}
                row |= {"amount": n * 7921 % 100_000 / 100, "country": COUNTRIES[n % 5]}
                row |= {"payload": hashlib.md5(b"%d" % n, usedforsecurity=False).hexdigest()}
                out.write(json.dumps(row) + "\n")
    source = {"file": {"path": str(folder), "format": "json", "settle": "0s"}}
    sides = {
        "bare": lambda: bench.bare("bare_files.py", str(folder), SCHEMA, str(bench.scratch / bench.fresh("bare"))),
        "ours": lambda: bench.drain("", source=source).figure,
    }
    title = "files of JSON lines: drain, not judged"
    return compare(title, options.records, options.runs, sides, goal=Goal("of the bare file stream", 1.0))


def queue(bench: Bench, options: Options) -> dict[str, Any]:
    """Drain a Redis stream and a topic with the same records, not judged."""
    if not shutil.which(Redis.program):
        err.print("there is no Redis here: left out")
        return {}
    records = int(options.records * 0.1)  # Redis keeps them in memory
    topic = bench.topic("queued", records)
    redis = Redis(bench.scratch / "redis")
    redis.start()
    try:
        err.print(f"filling a stream of Redis with {records:,} records")
        values = (record.value for record in consume(bench.broker, topic))
        while portion := list(itertools.islice(values, 10_000)):
            redis.add("queued", portion)
        os.environ[variable_of("redis_default")] = json.dumps(redis.connection())
        source = {"queue": {"connection": "redis_default", "kind": Redis.kind, "streams": ["queued"], "field": "value"}}
        sides = {"kafka": lambda: bench.drain(topic).figure, "redis": lambda: bench.drain(topic, source=source).figure}
        title = "a queue (Redis Streams) and Kafka: drain, not judged"
        return compare(title, records, options.runs, sides, goal=Goal("of Kafka", 2.0))
    finally:
        redis.stop()


_DRIVER = "org/postgresql/postgresql/42.7.4/postgresql-42.7.4.jar"


def postgres(bench: Bench, options: Options) -> dict[str, Any]:
    """Drain a topic into PostgreSQL, not judged; the server writes through to the disk, as it does by default."""
    programs, records = binaries(), int(options.records * 0.4)
    if programs is None:
        err.print("there is no PostgreSQL here: left out")
        return {}
    topic, driver = bench.topic("into-postgres", records), _driver(bench.scratch)
    with server(programs, durable=True) as running:
        url = sa.make_url(new_database(running.url))
        parts = {"host": url.host, "port": url.port, "login": url.username, "schema": url.database}
        os.environ[variable_of("postgres_default")] = json.dumps({"conn_type": "postgres", **parts})
        jdbc = f"jdbc:postgresql://{url.host}:{url.port}/{url.database}?user={url.username}"

        def ours(**mode: Any) -> Figure:
            return bench.drain(topic, sink={"postgres": {"table": bench.fresh("t").replace("-", "_"), **mode}}).figure

        def bare(options: str) -> Figure:
            table = bench.fresh("bare").replace("-", "_")
            asked = (bench.broker.bootstrap, topic, SCHEMA, str(bench.scratch / table), jdbc + options)
            return bench.bare("bare.py", *asked, jars=[driver])

        sides = {
            "bare": lambda: bare(""),
            "ours": ours,
            "bare, tuned": lambda: bare("&reWriteBatchedInserts=true"),
            "ours, upsert": lambda: ours(mode="upsert", key=["id"], sequence="_offset"),
        }
        if driver is None:
            err.print("the JDBC driver cannot be had here: the bare script is left out")
            sides = {name: side for name, side in sides.items() if name.startswith("ours")}
        return compare("into PostgreSQL: drain, not judged", records, options.runs, sides)


def _driver(folder: Path) -> Path | None:
    """Download the JDBC driver, which Sluice does not need."""
    repository = os.environ.get("SLUICE_MAVEN_REPO") or jars.DEFAULT_REPOSITORY
    try:
        came = httpx.get(f"{repository}/{_DRIVER}", follow_redirects=True).raise_for_status()
    except httpx.HTTPError:
        return None
    file = folder / "postgresql.jar"
    file.write_bytes(came.content)
    return file


_MANY = 100
_LIGHT = "spark.driver.defaultJavaOptions=-XX:TieredStopAtLevel=1"
"""The bare script's JVM does without the optimizing compiler, as a run's on the Arrow path does."""


def batches(bench: Bench, options: Options) -> dict[str, Any]:
    """Drain a large topic in one batch and in 100, not judged; and plan the same batches without doing anything."""
    topic = bench.topic("big", options.records)

    def ours(number: int) -> Figure:
        kafka = {"topics": [topic], "max_records_per_batch": -(-options.records // number)}
        ran = bench.drain(topic, source={"kafka": kafka})
        if len(ran.batches) not in (number, number + 1):  # the cap is shared out by partition, and rounded down
            raise SystemExit(f"{len(ran.batches)} batches, not {number}")
        return ran.figure

    def empty(number: int) -> Figure:
        asked = (topic, str(-(-options.records // number)), str(bench.scratch / bench.fresh("empty")))
        return bench.bare("bare_empty.py", bench.broker.bootstrap, *asked, conf=[_LIGHT])

    sides = {"one": partial(ours, 1), "many": partial(ours, _MANY)}
    sides |= {"one, empty": partial(empty, 1), "many, empty": partial(empty, _MANY)}
    title, goal = f"one batch and {_MANY}: drain, not judged", Goal(f"{_MANY} batches / one wall", 1.15)
    found = compare(f"{title}; and Spark's batches that do nothing", options.records, options.runs, sides, goal=goal)
    more = {}
    for what, one, many in (("ours", "one", "many"), ("empty", "one, empty", "many, empty")):
        apart = {f: median([r[many][f] - r[one][f] for r in found["rounds"]]) for f in ("wall", "cpu")}
        more[what] = {f: round(value, 1) for f, value in apart.items()}
        err.print(f"{_MANY - 1} more batches, {what}: {more[what]['wall']} s, {more[what]['cpu']} CPU s")
    return {**found, "more": more}


def split(bench: Bench, options: Options) -> dict[str, Any]:
    """Drain a topic with and without a suite that splits its rows, not judged afterwards, on both paths."""
    suite = {"name": "split", "expectations": _expectations()}
    (bench.scratch / "split.json").write_text(json.dumps(suite))
    topic, found = bench.topic("big", options.records), {}
    for path, keys in {"Arrow path": {}, "Spark path": {"engine": "spark"}}.items():

        def run(split: str, keys: dict[str, Any] = keys) -> Figure:
            quality = {"suite": "split.json", "split": split}
            return bench.drain(topic, written=options.records, quality=quality, **keys).figure

        title, sides = f"20 expectations that split rows, {path}", {"none": partial(run, "none")}
        sides["split"] = partial(run, "critical")
        found[path] = compare(title, options.records, options.runs, sides, goal=Goal("split / none wall", 1.1))
    return found


def _expectations() -> list[dict[str, Any]]:
    def of(kind: str, **kwargs: Any) -> dict[str, Any]:
        return {"type": f"expect_column_{kind}", "kwargs": kwargs}

    return [
        *(of("values_to_not_be_null", column=name) for name in ("id", "ts", "amount", "country", "payload")),
        of("values_to_be_between", column="id", min_value=0),
        of("values_to_be_between", column="id", max_value=10**12),
        of("values_to_be_between", column="amount", min_value=0, max_value=1000),
        of("values_to_be_between", column="amount", min_value=-1, strict_min=True),
        of("values_to_be_between", column="ts", min_value="2000-01-01"),
        of("values_to_be_between", column="ts", max_value="2100-01-01T00:00:00Z"),
        of("values_to_be_in_set", column="country", value_set=list(COUNTRIES)),
        of("values_to_not_be_in_set", column="country", value_set=["XX", ""]),
        of("value_lengths_to_equal", column="country", value=2),
        of("value_lengths_to_be_between", column="payload", min_value=1, max_value=64),
        of("values_to_match_regex", column="country", regex="^[A-Z]{2}$"),
        of("values_to_match_regex", column="payload", regex="^[0-9a-f]+$"),
        of("values_to_not_match_regex", column="payload", regex="[A-Z]"),
        of("pair_values_a_to_be_greater_than_b", column_A="id", column_B="_partition", or_equal=True,
           row_condition="id > 100", condition_parser="spark"),
        of("values_to_be_between", column="_offset", min_value=0, row_condition="country = 'DE'",
           condition_parser="spark"),
    ]  # fmt: skip
