"""Files that may hold rows of a slice, by their statistics."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from sluice.ranges import OffsetRange
from sluice_spark.sinks.parquet.slice import Slice


def test_slice_chooses_files_as_a_look_at_each_would(tmp_path: Path) -> None:
    """Against the same question asked file by file, with statistics that are missing here and there."""
    chance = random.Random(7)
    zero = datetime(2026, 1, 1, tzinfo=UTC)
    for _ in range(200):
        files = []
        for n in range(30):
            low, wide = chance.randrange(100), chance.randrange(20)
            first, long = chance.randrange(10_000), chance.randrange(2_000)
            file: dict[str, Any] = {"path": f"f{n}", "min._topic": chance.choice("abc"), "min._partition": n % 3}
            file |= {"max._topic": chance.choice(["c", file["min._topic"]]), "max._partition": n % 3}
            file |= {"min._offset": low, "max._offset": low + wide}
            file |= {"min._timestamp": zero + timedelta(milliseconds=first)}
            file |= {"max._timestamp": zero + timedelta(milliseconds=first + long)}
            for key in list(file)[1:]:
                if chance.random() < 0.05:
                    file[key] = None
            files.append(file)
        kinds = {"_topic": pa.string(), "_partition": pa.int32(), "_offset": pa.int64()}
        kinds["_timestamp"] = pa.timestamp("us", "UTC")
        fields = [pa.field(f"{end}.{c}", k) for c, k in kinds.items() for end in ("min", "max")]
        left_out = chance.choice([*kinds, None])
        table = pa.Table.from_pylist(files, schema=pa.schema([pa.field("path", pa.string()), *fields]))
        if left_out:
            table = table.drop_columns([f"min.{left_out}", f"max.{left_out}"])
            files = [{k: v for k, v in f.items() if not k.endswith(left_out)} for f in files]
        ranges = [OffsetRange(chance.choice("abc"), chance.randrange(3), at := chance.randrange(100), at + 10)
                  for _ in range(2)]  # fmt: skip
        start = int(zero.timestamp() * 1000) + chance.randrange(10_000)
        gone = Slice(ranges, start, start + chance.randrange(1, 1000))
        chosen = [f["path"] for f, may in zip(files, gone._may_hold(table), strict=True) if may]
        assert chosen == [f["path"] for f in files if _may_hold(f, gone)]


def _may_hold(file: dict[str, Any], gone: Slice) -> bool:
    def outside(column: str, first: Any, last: Any) -> bool:
        low, high = file.get(f"min.{column}"), file.get(f"max.{column}")
        return (low is not None and low > last) or (high is not None and high < first)

    def at(stamp: datetime) -> int:
        return round(stamp.timestamp() * 1000)

    low, high = file.get("min._timestamp"), file.get("max._timestamp")
    if (low is not None and at(low) >= gone.end) or (high is not None and at(high) + 1 < gone.start):
        return False
    return any(
        not (
            outside("_topic", r.topic, r.topic)
            or outside("_partition", r.partition, r.partition)
            or outside("_offset", r.start, r.end - 1)
        )
        for r in gone.ranges
    )
