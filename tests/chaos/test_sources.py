"""Files, tables of PostgreSQL and queues as sources: what changes, goes away or is late between runs.

That kills neither lose nor double is in test_kills.py; Kafka has test_source_faults.py and test_patterns.py.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.boxed import Box, made
from tests.chaos.cases import LONG
from tests.chaos.commands import drain, listed, reset
from tests.chaos.drivers import lost
from tests.chaos.states.origins import AvroBox, FileBox, JdbcBox, NatsBox, ParquetBox, RedisBox, TimedBox
from tests.fixtures.runs import good

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

BOXES: dict[str, type[Box]] = {
    "json": FileBox, "parquet": ParquetBox, "avro": AvroBox, "jdbc": JdbcBox, "jdbc-time": TimedBox,
    "redis": RedisBox, "nats": NatsBox,
}  # fmt: skip


@pytest.fixture
def box(request: pytest.FixtureRequest) -> Box:
    """A pipeline that reads the source of that name."""
    return made(BOXES[request.param], request)


def sources(*names: str, fast: Sequence[str] = ()) -> pytest.MarkDecorator:
    """Run a test with each of these sources, all but the fast ones among the long tests."""
    marked = [pytest.param(name, marks=() if name in fast else LONG) for name in names]
    return pytest.mark.parametrize("box", marked, indirect=True)


# --- files -----------------------------------------------------------------------------------------------------------


def put(box: Any, name: str, content: bytes | list[bytes], age: float = 100) -> Path:
    """Put a file into the folder, which was changed some seconds ago."""
    file: Path = box.outside / "orders" / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else b"\n".join(content) + b"\n")
    os.utime(file, (time.time() - age,) * 2)
    return file


def reading(box: Any, recovery: str = "replay", **keys: Any) -> None:
    """Read all files of the folder, with more keys of the source."""
    path = str(box.outside / "orders")
    source = {"path": path, "format": "json", "max_records_per_batch": 7}
    box.configure(source={"file": source | keys}, recovery=recovery)


def ids(box: Any) -> list[int]:
    return sorted(row["id"] for row in listed(box))


@pytest.mark.long
@sources("json", fast=["json"])
def test_file_that_changed_is_refused_ignored_or_read(box: Any) -> None:
    reading(box)
    put(box, "1.json", [good(0)])
    box.run("first")
    put(box, "1.json", [good(7), good(8)])
    assert "1.json" in box.run("refused", expect=10).message
    reading(box, changed="ignore")
    assert "1.json" in box.run("ignored").stderr
    assert box.account("ignored")["planned"] == 0
    reading(box, changed="read")
    box.run("read")
    assert ids(box) == [0, 7, 8]


@pytest.mark.long
@sources("json", fast=["json"])
def test_file_source_refuses_a_book_that_was_recreated_and_a_folder_that_is_gone(box: Any) -> None:
    drain(box, 3, "first")
    shutil.rmtree(box.home / "sources")
    box.run("forgotten", expect=22)
    shutil.rmtree(box.outside / "orders")
    box.run("gone", expect=20)


@sources("json")
def test_file_that_is_archived_can_still_be_read_again(box: Any) -> None:
    archive = box.outside / "archive"
    reading(box, archive=str(archive), glob="**/*.json", max_records_per_batch=5)
    put(box, "a/1.json", [good(0), good(1), b"nothing"], age=7200)
    put(box, "a/2.json", [good(2)])
    box.run("first")
    assert sorted(f.name for f in archive.glob("a/*")) == ["1.json", "2.json"]
    assert list((box.outside / "orders").glob("*/*")) == []
    now = datetime.now(UTC)
    box.run("again", interval=tuple((now - timedelta(seconds=ago)).isoformat() for ago in (10_000, 3600)))
    assert (box.account("again")["written"], box.account("again")["quarantined"]) == (2, 1)
    assert ids(box) == [0, 1, 2]


@sources("json")
@pytest.mark.parametrize(("recovery", "point"), [("replay", "batch-started"), ("wal", "segments-staged")])
def test_file_that_was_planned_and_went_away_is_given_up_by_name(box: Any, recovery: str, point: str) -> None:
    reading(box, recovery)
    put(box, "1.json", [good(0)] * 10)
    file = put(box, "2.json", [good(1)] * 10)
    box.run("killed", kill_at=point)
    then = file.stat()
    os.utime(file, (then.st_atime, then.st_mtime + 1))  # the same content, but who could know
    reading(box, recovery, changed="ignore")
    box.run("gone", expect=21)
    reading(box, "ignore_range", changed="ignore")
    box.run("given up")
    gone = lost(box)
    assert box.account("given up")["lost"] == gone.total() > 0
    assert set(gone) <= {("orders", 0, n) for n in range(10, 20)}
    os.utime(file, ns=(then.st_atime_ns, then.st_mtime_ns))
    box.run("back", redriven="lost")
    assert box.sink() == Counter(("orders", 0, n) for n in range(20))


@sources("parquet", "avro")
def test_file_that_is_damaged_loses_rows_by_name(box: Any) -> None:
    box.add([good(n) for n in range(1, 5)] * 3)
    box.add([good(n) for n in range(1, 5)] * 3)
    file = max((box.outside / "orders").iterdir())
    then, whole = file.stat(), file.read_bytes()
    at = len(whole) - 24 if box.format == "avro" else 4  # the rows of a block, or the head of a page
    file.write_bytes(whole[:at] + b"\xff" * 8 + whole[at + 8 :])
    os.utime(file, ns=(then.st_atime_ns, then.st_mtime_ns))
    assert file.name in box.run("damaged", expect=1).message
    box.configure(recovery="ignore_range")
    box.run("given up")
    assert box.account("given up")["lost"] == lost(box).total() > 0
    file.write_bytes(whole)
    os.utime(file, ns=(then.st_atime_ns, then.st_mtime_ns))
    box.run("back", redriven="lost")
    assert box.sink() == Counter(("orders", 0, n) for n in range(24))


@sources("json")
def test_file_that_went_away_beside_dedupe_is_lost_by_name_by_a_reset(box: Any) -> None:
    reading(box)
    box.configure(**{**box.spec, "dedupe": {"keys": ["id"], "within": "10d"}})
    first = put(box, "1.json", [good(0), good(1), good(1)])
    box.run("first")
    away = put(box, "2.json", [good(2), good(3)])
    put(box, "3.json", [good(1), good(4)])
    box.run("killed", kill_at="batch-started")
    away.unlink()
    assert "sluice reset" in box.run("gone", expect=21).message
    reset(box, "--rebuild-state")
    box.run("on")
    assert ids(box) == [0, 1, 4]
    assert set(lost(box)) == {("orders", 0, n) for n in (3, 4)}
    first.unlink()  # whose ids are remembered
    assert "no longer in the source" in reset(box, "--rebuild-state", expect=21)
    box.assert_balanced()


@sources("jdbc")
def test_jdbc_rows_that_changed_after_they_were_landed_are_written_and_redriven_as_they_were(box: Any) -> None:
    drain(box, 4, "dies", bad_every=4, kill_at="run-planned")
    box.sql("DELETE FROM orders WHERE n = 2")
    box.sql("UPDATE orders SET id = '99' WHERE n = 3")
    box.run("next")
    assert ids(box) == [1, 2, 3]
    box.run("nothing new")
    assert box.account("nothing new")["planned"] == 0
    box.configure(
        decode={"json": {"schema": "id STRING, name STRING"}},
        transform={"sql": "SELECT * EXCEPT (id), coalesce(try_cast(id AS BIGINT), -1) AS id FROM source"},
    )
    box.run("redriven", redriven="quarantined")
    assert ids(box) == [-1, 1, 2, 3]


@pytest.mark.long
@sources("redis", "nats", fast=["redis"])
def test_queue_messages_that_the_server_removed_are_given_up_by_name(box: Any) -> None:
    drain(box, 6, "first")
    box.feed(10)
    box.queue.trim("orders", 4)
    assert "6 planned offsets" in box.run("gone", expect=21).message
    box.configure(recovery="ignore_range")
    box.run("given up")
    assert lost(box) == Counter(("orders", 0, n) for n in range(6, 12))
    assert box.sink() + lost(box) == Counter(box.produced)
    box.assert_balanced()


@sources("jdbc-time", "redis", "nats")
def test_source_interval_is_found_by_the_times_of_its_records(box: Any) -> None:
    drain(box, 6, "first", bad_every=3)
    box.run("again", interval=("2020-01-01", datetime.now(UTC).isoformat()))
    assert box.account("again")["written"] == 4
    held = box.sink() + box.quarantine()
    assert (held.total(), set(held.values())) == (6, {1})
    box.assert_balanced()
