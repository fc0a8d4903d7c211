"""The write-ahead log is found, read, checked and cleaned, byte for byte, segment by segment."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from tests.fixtures.wal import EPOCH, STRANGE, Made, frame, land, record, rows_of, span, tables

from sluice.errors import SinkError
from sluice.wal import DamagedLogError
from sluice.wal.catalog import SEAL
from sluice_spark.runs.sealed_batches import sealed_batches
from sluice_spark.sources.log import LogRecords

pytestmark = pytest.mark.spark


def offsets_of(batches: Iterator[Any]) -> list[tuple[int, int]]:
    return [(row["partition"], row["offset"]) for row in rows_of(batches)]


def test_log_finds_segments_by_ranges_and_opens_nothing_else(made: Made) -> None:
    segments = made.seal_lines(5)
    wanted = [s for s in segments if (s.batch, s.range.partition) in ((1, 0), (2, 0), (4, 1))]
    for other in (s for s in segments if s not in wanted):
        made.file(other).write_bytes(b"spoilt")
        if other.batch in (0, 3):
            made.file(other).with_name(SEAL).write_bytes(b"spoilt")
    ranges = [span(12, 25), span(47, 48, partition=1)]
    assert made.log.segments(ranges) == [wanted[0], wanted[1], wanted[2]]
    assert offsets_of(made.log.read(ranges)) == [*((0, o) for o in range(12, 25)), (1, 47)]
    assert made.log.check(wanted, pages=True) == []
    assert made.log.segments([span(50, 60), span(0, 9, partition=7), span(0, 9, topic="other")]) == []
    with pytest.raises(SinkError, match="e1-000003-"):
        made.log.segments([span(30, 31)])


def test_log_gives_a_gap_to_the_segment_that_accounts_for_it(made: Made) -> None:
    first, second, third = made.seal(0, [[record(2)], [record(5), record(7)], [record(11)]], [span(0, 20)])
    assert [s.range for s in (first, second, third)] == [span(0, 5), span(5, 11), span(11, 20)]
    for start, end, found in (
        (0, 1, [first]), (3, 5, [first]), (3, 6, [first, second]), (6, 7, [second]), (8, 11, [second]),
        (8, 12, [second, third]), (12, 20, [third]), (0, 20, [first, second, third]), (20, 30, []),
    ):  # fmt: skip
        assert made.log.segments([span(start, end)]) == found, (start, end)


def test_log_finds_a_landing_by_its_epoch_and_batch(made: Made) -> None:
    one = made.seal(7, [[record(0)]])
    two = replace(made, epoch=12).seal(7, [[record(1)]])
    assert made.log.segments(epoch=1) == list(one)
    assert made.log.segments(batch=7) == [*one, *two]
    assert made.log.segments(epoch=12, batch=7) == list(two)
    assert (made.log.version(1), made.log.version(12), made.log.version(2)) == (7, 7, -1)


def test_log_that_is_not_there_is_empty_and_a_closed_one_refuses(made: Made) -> None:
    log = made.log
    assert (log.segments(), list(log.read_from({})), log.version(1)) == ([], [], -1)
    made.seal(0, [[record(0)]])
    assert len(log.segments()) == 1
    made.seal(1, [[record(1)]])
    assert len(log.segments()) == 1, "an open log is a snapshot"
    log.refresh()
    assert len(log.segments()) == 2
    log.close()
    for ask in (log.segments, log.refresh, lambda: list(log.read([span(0, 1)]))):
        with pytest.raises(ValueError, match="closed"):
            ask()


def test_log_reads_from_a_position_completely_and_in_order(made: Made) -> None:
    made.seal(0, [[record(o) for o in range(3)], [record(o) for o in range(3, 6)], [record(0, 1)]])
    made.seal(1, [[record(8), record(9)]], [span(6, 12)])
    replace(made, epoch=2).seal(0, [[record(12)], [record(o, 1) for o in (1, 2)]])
    everything = [*((0, o) for o in (*range(6), 8, 9, 12)), *((1, o) for o in range(3))]
    assert offsets_of(made.log.read_from({})) == everything
    assert offsets_of(made.log.read_from({"t": {0: 4, 1: 2}})) == [(0, 4), (0, 5), (0, 8), (0, 9), (0, 12), (1, 2)]
    assert offsets_of(made.log.read_from({"t": {0: 7, 1: 3}})) == [(0, 8), (0, 9), (0, 12)]
    assert offsets_of(made.log.read_from({"t": {0: 13, 1: 3}})) == []


def test_log_reads_only_the_row_groups_that_it_needs(made: Made) -> None:
    (segment,) = made.seal(0, [[record(o) for o in range(40)]], rows=10)
    spoil_pages(made.file(segment), keep_groups=(1, 2))
    assert offsets_of(made.log.read([span(10, 30)])) == [(0, o) for o in range(10, 30)]
    assert offsets_of(made.log.read([span(15, 16)])) == [(0, 15)]
    with pytest.raises(ValueError, match="segment"):
        list(made.log.read([span(29, 31)]))
    assert [d.segment for d in made.log.check([segment], pages=True)] == [segment]


def test_log_has_the_pace_of_its_epoch_whatever_was_cleaned(made: Made) -> None:
    replace(made, epoch=7).seal(0, [[record(0)]])
    made.seal_lines(2)
    made.log.clean(EPOCH + timedelta(seconds=11), applied={1: 1})
    assert [(n["version"], n["seconds"]) for n in made.table.last_notes(20)] == [(1, 1.0), (0, 1.0)]
    assert made.table.last_notes(2) == made.table.last_notes(20)[:1]


def spoil_pages(file: Path, keep_groups: Sequence[int] = ()) -> None:
    """Flip a byte in the middle of each page of columns whose length a reader cannot tell from elsewhere."""
    content, metadata = bytearray(file.read_bytes()), pq.ParquetFile(file).metadata
    for group in (g for g in range(metadata.num_row_groups) if g not in keep_groups):
        for column in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(column)
            content[chunk.data_page_offset + chunk.total_compressed_size // 2] ^= 0xFF
    write(file, bytes(content))


def write(file: Path, content: bytes) -> None:
    """Change a file below Hadoop's own checksum, which guards it on a local disk alone."""
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    file.write_bytes(content)


def garble_value(file: Path) -> None:
    """Change one letter of one value, so that everything but its checksum still fits."""
    content = file.read_bytes()
    assert content.count(b"needle") == 1, "the value lies in its page as it is"
    write(file, content.replace(b"needle", b"noodle"))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda f: f.unlink(), "missing"),
    "truncated by a byte": (lambda f: write(f, f.read_bytes()[:-1]), "truncated"),
    "truncated to nothing": (lambda f: write(f, b""), "truncated"),
    "grown": (lambda f: write(f, f.read_bytes() + b"PAR1"), "truncated"),
    "magic": (lambda f: write(f, f.read_bytes()[:-4] + b"PAR2"), "garbled"),
    "footer": (lambda f: write(f, _flipped(f, -20)), "garbled"),
    "length of the footer": (lambda f: write(f, _flipped(f, -8)), "garbled"),
    "page": (garble_value, "garbled"),
}


def _flipped(file: Path, where: int) -> bytes:
    content = bytearray(file.read_bytes())
    content[where] ^= 0x01
    return bytes(content)


def test_log_finds_and_names_each_kind_of_damage(spark: SparkSession, made: Made) -> None:
    """All segments are landed by one job; only the pages of the last one are damaged, and its footer is sound."""
    values = (b"a", b"needle", b"z")
    lines = [[record(10 * b + n, value=v) for n, v in enumerate(values)] for b in range(len(DAMAGES) + 1)]
    ranges = [span(0, 10 * len(lines))]
    segments = land(made, 0, frame(spark, [r for line in lines for r in line]), ranges, segment_records=3).segments
    log, (whole, *hurt) = made.log, segments
    for segment, (damage, (spoil, what)) in zip(hurt, DAMAGES.items(), strict=True):
        inside = damage == "page"
        spoil(made.file(segment))
        found = log.check([whole, segment])
        assert [(d.segment, d.what.startswith(what)) for d in found] == ([] if inside else [(segment, True)]), damage
        (found_inside,) = log.check([whole, segment], pages=True)
        assert found_inside.segment == segment
        assert found_inside.what.startswith(what)
        source = LogRecords(spark, log, (whole, segment))
        if inside:
            with pytest.raises(Exception, match="CRC checksum verification failed"):
                source.read([segment.range]).collect()
        with pytest.raises(DamagedLogError, match=re.escape(str(segment.range))) as refused:
            (source.explain if inside else source.read)([segment.range])
        assert refused.value.ranges == (segment.range,)
        assert segment.path in str(refused.value)
    assert len(source.read([whole.range]).collect()) == 3, "the first segment is as good as ever"


def test_log_finds_each_changed_byte_that_makes_a_difference(spark: SparkSession, made: Made) -> None:
    records = [record(o, value=b"value %d" % o, headers=STRANGE[5]["headers"]) for o in range(3)]
    (segment,) = land(made, 0, frame(spark, records), [span(0, 3)]).segments
    file, log = made.file(segment), made.log
    content, rows = file.read_bytes(), rows_of(log.read([segment.range]))
    silent = []
    for where in range(len(content)):
        file.write_bytes(content[:where] + bytes([content[where] ^ 0x41]) + content[where + 1 :])
        if not log.check([segment], pages=True) and rows_of(log.read([segment.range])) != rows:
            silent.append(where)
    assert silent == []


def table_of(made: Made) -> DeltaTable:
    return DeltaTable(str(made.root))


def vacuum(made: Made, *, full: bool = False) -> None:
    table_of(made).vacuum(0, enforce_retention_duration=False, dry_run=False, full=full)


def compact(made: Made) -> None:
    table_of(made).optimize.compact()


@pytest.mark.parametrize("z_order", [False, True], ids=["OPTIMIZE", "Z-ORDER"])
def test_log_that_was_optimized_is_read_by_segments_and_restored_by_a_cleaning(made: Made, z_order: bool) -> None:
    segments = made.seal_lines(4)
    made.log.clean(EPOCH + timedelta(seconds=10), applied={1: 3})
    segments = segments[2:]
    table_of(made).optimize.z_order(["offset"]) if z_order else compact(made)
    assert list(made.root.glob("*.parquet")), "the test is about files that are no segments"
    segments += made.seal(4, [[record(o) for o in range(40, 45)], [record(o, 1) for o in range(40, 45)]])
    in_order = sorted(segments, key=lambda s: s.range)

    assert made.log.version(1) == 4
    assert made.log.segments() == in_order
    assert made.log.segments([span(22, 23)], epoch=1, batch=2) == [in_order[1]]
    assert made.log.spans("t", 0) == [s.range for s in in_order if s.range.partition == 0]
    assert made.log.first_at("t", 1, int(EPOCH.timestamp() * 1000) + 33_000) == 33
    assert made.log.check(made.log.segments(), pages=True) == []
    everything = [(p, o) for p in (0, 1) for o in range(10, 45)]
    assert offsets_of(made.log.read_from({})) == everything

    assert made.log.clean(EPOCH, applied={1: 4}, dry_run=True).segments == ()
    assert len(made.log.clean(EPOCH + timedelta(seconds=20), applied={1: 4}).segments) == 2
    there = {f.removeprefix(f"{made.root}/") for f in table_of(made).file_uris()}
    assert there == made.files() == {s.path for s in segments if s.batch > 1}
    assert table_of(made).to_pyarrow_table().num_rows == 50
    vacuum(made)
    assert not list(made.root.glob("*.parquet"))
    assert offsets_of(made.log.read_from({})) == [(p, o) for p in (0, 1) for o in range(20, 45)]
    assert len(made.log.clean(EPOCH + timedelta(days=1), applied={1: 4}).segments) == 6
    assert made.folders() == set()


@pytest.mark.parametrize("change", ["OPTIMIZE", "DELETE", "UPDATE"])
def test_log_without_some_of_its_segments_is_refused_with_a_way_out(made: Made, change: str) -> None:
    made.seal_lines(3)
    if change == "OPTIMIZE":
        compact(made)
    elif change == "DELETE":
        table_of(made).delete("offset = 5")
    else:
        table_of(made).update(updates={"value": "NULL"}, predicate="offset = 5")
    made.seal(3, [[record(30)]])
    if change == "OPTIMIZE":
        vacuum(made)
    asked: list[Callable[[], Any]] = [
        made.log.segments, lambda: made.log.spans("t", 0), lambda: list(made.log.read_from({})),
        lambda: made.log.clean(EPOCH + timedelta(days=1), applied={1: 9}),
    ]  # fmt: skip
    for ask in asked:
        with pytest.raises(SinkError, match=change) as caught:
            ask()
        assert "WHERE true" in caught.value.next_step
    assert [b.batch for b in sealed_batches(tables(made, -1))] == [0, 1, 2, 3], "applying goes by the seals"
    table_of(made).delete()  # that is the way out: what comes later is kept again, what is not applied stays
    assert made.log.segments() == []
    made.log.clean(EPOCH + timedelta(days=1), applied={1: 2})
    assert "000003" in made.folders(), "it is not applied yet"
    new = made.seal(4, [[record(100)]])
    assert made.log.segments() == list(new)
    assert made.log.check(new, pages=True) == []


def test_log_treats_deleted_and_restored_segments_as_cleaned(made: Made) -> None:
    first = made.seal(0, [[record(o) for o in range(10)]])
    version = table_of(made).version()
    second = made.seal(1, [[record(o) for o in range(10, 20)]])
    third = made.seal(2, [[record(o) for o in range(20, 30)]])
    table_of(made).delete("offset >= 10 AND offset < 20")
    assert made.log.segments() == [*first, *third]
    table_of(made).restore(version)
    assert made.log.segments() == list(first)
    assert made.log.version(1) == 2, "what was sealed is not sealed again"
    assert [b.segments for b in sealed_batches(tables(made, -1))] == [first, second, third], "and is applied"
    assert made.log.check([*second, *third], pages=True) == []
    fourth = made.seal(3, [[record(o) for o in range(30, 40)]])
    assert made.log.segments() == [*first, *fourth]
    made.log.clean(EPOCH + timedelta(seconds=1), applied={1: 0})
    assert made.folders() == {"000000", "000001", "000002", "000003"}, "what is not applied stays"


def test_log_segments_that_were_deleted_do_not_return_with_an_optimize(made: Made) -> None:
    segments = sorted(made.seal_lines(4), key=lambda s: s.range)
    table_of(made).delete(f"partition = {segments[0].range.partition} AND offset < {segments[0].range.end}")
    compact(made)
    assert made.log.segments() == segments[1:]


@pytest.mark.parametrize("change", ["restored", "vacuum", "full vacuum"])
def test_log_keeps_all_segments_in_a_vacuum_and_after_an_optimize_that_is_restored(made: Made, change: str) -> None:
    segments = sorted(made.seal_lines(3), key=lambda s: s.range)
    if change == "restored":
        version = table_of(made).version()
        compact(made)
        table_of(made).restore(version)
    else:
        vacuum(made, full=change == "full vacuum")
    assert (made.log.segments(), made.log.version(1)) == (segments, 2)
    assert made.log.check(segments, pages=True) == []
    assert len(made.log.clean(EPOCH + timedelta(seconds=10), applied={1: 2}).segments) == 2


def test_log_cleaning_takes_old_applied_segments_and_leaves_no_orphans(made: Made) -> None:
    made.seal_lines(4)  # each batch is ten seconds of record time
    stray = made.root / "batches/e1-000009-ffffffff"
    stray.mkdir()
    (stray / "part-0.parquet").write_bytes(b"a driver may be about to seal it")

    def clean(seconds: float, **options: Any) -> tuple[int, set[str]]:
        done = made.log.clean(EPOCH + timedelta(seconds=seconds), **{"applied": {1: 2}, **options})
        return len(done.segments), made.folders()

    everything = {f"{n:06d}" for n in (0, 1, 2, 3, 9)}
    version = table_of(made).version()
    assert clean(9) == (0, everything), "the newest record of batch 0 is not older than that"
    assert clean(9.001, dry_run=True) == (2, everything)
    assert table_of(made).version() == version
    assert clean(9.001) == (2, everything - {"000000"})
    assert clean(9.001) == (0, everything - {"000000"})
    assert table_of(made).version() == version + 1, "nothing to clean is no commit"
    assert clean(1000, applied={1: 1}) == (2, {"000002", "000003", "000009"})
    assert clean(1000, applied={2: 99}) == (0, {"000002", "000003", "000009"})
    assert clean(1000) == (2, {"000003", "000009"}), "what was not applied stays, however old"
    assert offsets_of(made.log.read_from({})) == [(p, o) for p in (0, 1) for o in range(30, 40)]
    assert table_of(made).to_pyarrow_table().num_rows == 20


def test_log_cleaning_keeps_segments_of_an_open_lost_range(made: Made) -> None:
    made.seal_lines(3)
    done = made.log.clean(EPOCH + timedelta(days=1), applied={1: 2}, needed=[span(19, 20), span(25, 26, partition=1)])
    assert [s.range for s in made.log.segments()] == [span(10, 20), span(20, 30, partition=1)]
    assert made.files() == {s.path for s in made.log.segments()}
    assert done.as_dict()["batches"] == [
        {"epoch": 1, "batch": batch, "segments": left, "records": 10 * left, "bytes": size}
        for batch, left, size in zip(
            (0, 1, 2), (0, 1, 1), (0, *(s.length for s in made.log.segments())), strict=True
        )
    ]  # fmt: skip
    assert made.log.check(made.log.segments(), pages=True) == []
    assert len(made.log.clean(EPOCH + timedelta(days=1), applied={1: 2}).segments) == 2
    assert made.folders() == set()


def test_log_cleaning_needs_no_seal_but_of_what_it_removes(made: Made) -> None:
    segments = made.seal_lines(3)
    for batch in (1, 2):
        made.file(segments[2 * batch]).with_name(SEAL).write_text("spoilt")
    assert len(made.log.clean(EPOCH + timedelta(seconds=10), applied={1: 2}).segments) == 2


@pytest.mark.parametrize("point", ["segments-forgotten", "segments-removed"])
def test_log_cleaning_that_is_killed_is_finished_by_the_next_one(made: Made, point: str) -> None:
    made.seal_lines(3)
    program = (
        "import sys; from datetime import datetime; from sluice.wal import WriteAheadLog\n"
        "WriteAheadLog(sys.argv[1], 'p').clean(datetime.fromisoformat(sys.argv[2]), applied={1: 9})"
    )
    threshold = EPOCH + timedelta(seconds=15)
    killed = subprocess.run(
        [sys.executable, "-c", program, str(made.root), threshold.isoformat()],
        env={**os.environ, "SLUICE_KILL_AT": point},
        start_new_session=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    kept = [(p, o) for p in (0, 1) for o in range(10, 30)]
    assert offsets_of(made.log.read_from({})) == kept
    done = made.log.clean(threshold, applied={1: 9})
    assert done.segments == ()
    assert made.files() == {s.path for s in made.log.segments()}
    assert made.folders() == {"000001", "000002"}
    assert Counter(offsets_of(made.log.read_from({}))) == Counter(kept)
