"""Files of a folder as a source: each row lands once, whatever is killed, and files that change are named."""

from __future__ import annotations

import gzip
import io
import json
import os
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.fixtures.place import KeptPlace, Offset, account, error

pytestmark = [pytest.mark.chaos, pytest.mark.spark]

BAD = b"nothing"


@dataclass
class Inbox(KeptPlace):
    """A pipeline that reads a folder."""

    def __post_init__(self) -> None:
        self.inbox = self.root / "in box"
        self.inbox.mkdir()
        self.rows: list[bytes] = []
        super().__post_init__()

    def source(self, **keys: Any) -> dict[str, Any]:
        return {"file": {"path": str(self.inbox), "format": "json", "max_records_per_batch": 7} | keys}

    def spec(self) -> dict[str, Any]:
        return {
            "source": self.source(), "decode": {"json": {"schema": "id BIGINT"}},
            "sink": {"delta": {"path": "out"}}, "quality": {"max_quarantined": "100%"},
        }  # fmt: skip

    def put(self, name: str, rows: list[bytes], age: float = 100) -> Path:
        """Put a file into the folder, as it will be read next."""
        file = self.inbox / name
        file.parent.mkdir(exist_ok=True)
        opened = gzip.open if name.endswith(".gz") else open
        with opened(file, "wb") as out:
            out.write(b"\n".join(rows) + b"\n")
        os.utime(file, (time.time() - age,) * 2)
        self.rows += rows
        return file

    def feed(self, name: str, count: int) -> Path:
        """Put a file with records, each fifth of which is bad and each seventh of which is blank."""
        at = len(self.rows)
        return self.put(name, [row(n) for n in range(at, at + count)])

    def expected(self, *kinds: str) -> Counter[Offset]:
        return Counter(("in_box", 0, n) for n, own in enumerate(self.rows) if kind(own) in kinds)

    def assert_exact(self) -> None:
        assert self.offsets("out") == self.expected("good")
        assert self.offsets("out_quarantine") == self.expected("bad")
        assert Counter(r["id"] for r in self.table("out", "id")) == Counter(
            json.loads(own)["id"] for own in self.rows if kind(own) == "good"
        )
        self.audit()


def row(number: int) -> bytes:
    return b"" if number % 7 == 3 else BAD if number % 5 == 0 else json.dumps({"id": number}).encode()


def kind(own: bytes) -> str:
    return "blank" if not own else "bad" if own == BAD else "good"


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Inbox:
    place = Inbox(tmp_path, "inbox")
    place.spark = spark
    return place


@pytest.mark.long
@pytest.mark.parametrize(
    ("strategy", "points"),
    [
        ("replay", ("run-planned", "rows-staged", "sink-committed")),
        pytest.param("wal", ("segments-staged", "sealed", "batch-recorded"), marks=pytest.mark.long),
        pytest.param("replay", ("before-sink-commit", "batch-recorded"), marks=pytest.mark.long),
        pytest.param("wal", ("before-seal", "sink-committed"), marks=pytest.mark.long),
        pytest.param("hot", ("rows-staged", "batch-recorded"), marks=pytest.mark.long),
        pytest.param("ignore_range", ("quarantine-staged", "quarantine-committed"), marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("engine", ["auto", pytest.param("spark", marks=pytest.mark.long)])
def test_each_row_lands_once_when_drivers_are_killed(
    place: Inbox, strategy: str, points: tuple[str, ...], engine: str
) -> None:
    place.configure(recovery=strategy, engine=engine)
    for number, point in enumerate(points):
        place.feed(f"{number}.json", 6)
        place.feed(f"{number}.json.gz", 5)
        place.killed(f"killed {number}", point)
    done = account(place.run("last"))
    assert done["lost"] == 0
    place.assert_exact()
    assert account(place.run("nothing new"))["planned"] == 0


@pytest.mark.long
def test_a_file_that_is_archived_can_still_be_read_again(place: Inbox) -> None:
    place.configure(source=place.source(archive=str(place.root / "archive"), glob="**/*.json", max_records_per_batch=5))
    place.put("a/1.json", [b'{"id": 0}', b'{"id": 1}', b"nothing"], age=7200)
    place.feed("a/2.json", 4)
    account(place.run("first"))
    assert sorted(f.name for f in place.root.glob("archive/a/*")) == ["1.json", "2.json"]
    assert list(place.inbox.glob("*/*")) == []
    place.assert_exact()
    now = datetime.now(UTC).timestamp()
    span = [datetime.fromtimestamp(now - ago, UTC).isoformat() for ago in (10_000, 3600)]
    redone = account(place.run("again", "--start", span[0], "--end", span[1]))
    assert (redone["written"], redone["quarantined"]) == (2, 1)
    place.assert_exact()


def test_csv_rows_with_line_breaks_and_a_header(place: Inbox) -> None:
    place.configure(
        source=place.source(format="csv", header=True),
        decode={"csv": {"schema": "id BIGINT, name STRING", "key": "file"}},
    )
    place.put("1.csv", [b"\xef\xbb\xbfid,name", b'1,"a\nb"\r', b'2,"say ""hi"""', b"3,c"])
    place.put("2.csv", [b"id,name\r", b"x,bad", b"4,d"])
    account(place.run("first"))
    assert sorted((r["id"], r["name"], r["file"]) for r in place.table("out", "id", "name", "file")) == [
        (1, "a\nb", "1.csv"), (2, 'say "hi"', "1.csv"), (3, "c", "1.csv"), (4, "d", "2.csv"),
    ]  # fmt: skip
    assert place.offsets("out_quarantine") == Counter([("in_box", 0, 3)])
    place.put("3.csv", [b"name,id", b"e,5"])
    told = error(place.run("other columns"), 10)
    assert "3.csv has the columns 'name,id', where 2.csv has 'id,name'" in told


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["replay", "wal"])
def test_a_planned_file_that_went_away_is_named_and_its_rows_can_be_given_up(place: Inbox, strategy: str) -> None:
    place.configure(recovery=strategy)
    place.put("1.json", [b'{"id": 0}'] * 10)
    file = place.put("2.json", [b'{"id": 1}'] * 10)
    place.killed("killed", "segments-staged" if strategy == "wal" else "batch-started")
    then = file.stat()
    os.utime(file, (then.st_atime, then.st_mtime + 1))  # the same content, but who could know
    place.configure(recovery=strategy, source=place.source(changed="ignore"))
    told = error(place.run("gone"), 21)
    assert "2.json went away or changed" in told or "the source removed records" in told, told
    done = account(place.run("given up", "--recovery", "ignore_range"))
    lost = {offset for _, _, offset in place.expected("good")} - {offset for _, _, offset in place.offsets("out")}
    assert done["lost"] == len(lost) > 0
    assert lost <= set(range(10, 20))
    place.audit()
    os.utime(file, ns=(then.st_atime_ns, then.st_mtime_ns))
    redriven = place.sluice("redrive", str(place.file), "--json")
    assert account(redriven)["written"] == len(lost)
    place.assert_exact()


def test_a_file_that_changed_after_it_was_read_is_refused_read_or_told_of(place: Inbox) -> None:
    place.put("1.json", [b'{"id": 0}'])
    account(place.run("first"))
    place.put("1.json", [b'{"id": 7}', b'{"id": 8}'])
    assert "1.json changed after being read" in error(place.run("refused"), 10)
    place.configure(source=place.source(changed="ignore"))
    ignored = place.run("ignored")
    assert "1.json changed after being read, and what it has now is not read" in ignored.stderr
    assert account(ignored)["planned"] == 0
    place.configure(source=place.source(changed="read"))
    assert account(place.run("read"))["written"] == 2
    place.assert_exact()


def test_what_is_not_complete_is_left_to_the_next_run(place: Inbox) -> None:
    place.feed("1.json", 3)
    (place.inbox / "2.json.tmp").write_bytes(b'{"id": 0}')
    (place.inbox / ".3.json").write_bytes(b'{"id": 0}')
    whole = gzip.compress(b'{"id": 4}\n' * 1000)
    (place.inbox / "4.json.gz").write_bytes(whole[:-20])
    done = place.run("first")
    assert "4.json.gz is compressed and not complete, and is left to the next run" in done.stderr
    assert account(done)["planned"] == 3
    place.assert_exact()
    place.configure(source=place.source(marker=".ok"))
    place.feed("5.json", 3)
    (place.inbox / "5.json.ok").touch()
    assert account(place.run("marked"))["planned"] == 3
    place.assert_exact()


def test_a_folder_that_is_not_there_is_an_unreachable_source(place: Inbox) -> None:
    place.inbox.rmdir()
    assert "there is no folder" in error(place.run("none"), 20)


def test_another_book_under_the_same_offsets_is_refused(place: Inbox) -> None:
    import shutil

    place.feed("1.json", 3)
    account(place.run("first"))
    shutil.rmtree(place.home / "sources")
    assert "deleted and recreated" in error(place.run("forgotten"), 22)


AVRO = fastavro.parse_schema(
    {
        "type": "record", "name": "R", "fields": [
            {"name": "id", "type": "long"},
            {"name": "rate", "type": ["null", "double"]},
            {"name": "paid", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "raw", "type": "bytes"},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
        ],
    }
)  # fmt: skip
TYPED = "id BIGINT NOT NULL, rate DOUBLE, paid DECIMAL(9,2), at TIMESTAMP, day DATE, tags ARRAY<STRING>, new INT"


def typed(number: int) -> dict[str, Any]:
    """Return a row of typed columns; each fifth has a number that no column takes."""
    return {
        "id": number,
        "rate": float("nan") if number % 5 == 0 else None if number % 5 == 1 else number / 3,
        "paid": Decimal(number) / 100,
        "at": datetime(2020, 1, 2, 3, 4, 5, number, UTC),
        "day": date(1901, 1, 1) + timedelta(days=number),
        "raw": bytes([number, 255]),
        "tags": ['"', "\n"][: number % 3],
    }


def kept_as(format_: str, rows: list[dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    if format_ == "avro":
        fastavro.writer(out, AVRO, rows, "deflate", sync_interval=1)  # a block for each row
    else:
        paid = pa.array([row["paid"] for row in rows], pa.decimal128(9, 2))
        table = pa.Table.from_pylist(rows)
        pq.write_table(table.set_column(table.schema.get_field_index("paid"), "paid", paid), out, row_group_size=4)
    return out.getvalue()


@pytest.mark.parametrize(
    ("format_", "strategy", "points"),
    [
        ("parquet", "replay", ("sink-committed",)),
        pytest.param("avro", "wal", ("sealed",), marks=pytest.mark.long),
        pytest.param("parquet", "replay", ("run-planned", "rows-staged"), marks=pytest.mark.long),
        pytest.param("parquet", "wal", ("segments-staged", "sealed", "batch-recorded"), marks=pytest.mark.long),
        pytest.param("avro", "replay", ("run-planned", "rows-staged", "sink-committed"), marks=pytest.mark.long),
        pytest.param("parquet", "hot", ("before-sink-commit", "batch-recorded"), marks=pytest.mark.long),
        pytest.param("avro", "ignore_range", ("quarantine-staged", "quarantine-committed"), marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("engine", ["auto", pytest.param("spark", marks=pytest.mark.long)])
def test_typed_rows_land_once_as_they_are_when_drivers_are_killed(
    place: Inbox, format_: str, strategy: str, points: tuple[str, ...], engine: str
) -> None:
    archive = place.root / "archive"
    place.configure(
        source=place.source(format=format_, archive=str(archive)),
        decode={
            "json": {
                "schema": TYPED + (", raw BINARY" if engine == "spark" else ""),
                "key": "_file",
                "headers": {"_row": "row"},
            }
        },
        recovery=strategy,
        engine=engine,
    )
    rows: list[dict[str, Any]] = []
    for number, point in enumerate(points):
        for name, count in (("a", 9), ("b", 4)):
            part = [typed(len(rows) + n) for n in range(count)]
            file = place.inbox / f"{number}{name}"
            file.write_bytes(kept_as(format_, part))
            os.utime(file, (time.time() - 100,) * 2)
            rows += [row | {"_file": file.name, "_row": str(n + 1)} for n, row in enumerate(part)]
        place.killed(f"killed {number}", point)
    (place.inbox / "half").write_bytes(kept_as(format_, [typed(0), typed(1)])[:-5])
    done = place.run("last")
    assert account(done)["lost"] == 0
    assert "half" in done.stderr
    assert ("records take the Spark path" in done.stderr) == (engine == "spark")
    good = [n for n in range(len(rows)) if n % 5]
    assert place.offsets("out") == Counter(("in_box", 0, n) for n in good)
    assert place.offsets("out_quarantine") == Counter(("in_box", 0, n) for n in range(0, len(rows), 5))
    names = [name for name in (*rows[0], "new") if name != "raw" or engine == "spark"]
    found = sorted(place.table("out", *names), key=lambda row: row["id"])
    assert found == [{name: (rows[n] | {"new": None})[name] for name in names} for n in good]
    assert [file.name for file in place.inbox.iterdir()] == ["half"]
    place.audit()


@pytest.mark.long
@pytest.mark.parametrize("format_", ["parquet", "avro"])
def test_rows_of_a_damaged_file_are_named_and_can_be_given_up(place: Inbox, format_: str) -> None:
    keys = {"source": place.source(format=format_), "decode": {"json": {"schema": TYPED}}}
    place.configure(**keys)
    for name in ("1", "2"):
        whole = kept_as(format_, [typed(n) for n in range(1, 5)] * 3)
        file = place.inbox / name
        file.write_bytes(whole)
        os.utime(file, (time.time() - 100,) * 2)
    then = file.stat()
    # the head of the first page, or the end of the third block from the end
    at = whole.rindex(whole[-16:], 0, -33) - 8 if format_ == "avro" else 4
    file.write_bytes(whole[:at] + bytes(8) + whole[at + 8 :])
    os.utime(file, ns=(then.st_atime_ns, then.st_mtime_ns))
    assert "2 cannot be read" in error(place.run("damaged"), 1)
    done = account(place.run("given up", "--recovery", "ignore_range"))
    assert done["lost"] == (1 if format_ == "avro" else 4), "a block, or a row group"
    file.write_bytes(whole)
    os.utime(file, ns=(then.st_atime_ns, then.st_mtime_ns))
    assert account(place.sluice("redrive", str(place.file), "--json"))["written"] == done["lost"]
    assert place.offsets("out") == Counter(("in_box", 0, n) for n in range(24))
    place.audit()
