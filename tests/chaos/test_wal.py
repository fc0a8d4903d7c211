"""Strategy wal: whatever dies or is damaged, what is in the log reaches the sink once; and so across strategies."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.chaos.cases import LONG
from tests.chaos.commands import delta, drain, said
from tests.chaos.drivers import PASSING, asleep, gated, lost, opened, woken
from tests.fixtures.runs import Offset, Sandbox, consume, good

from sluice.ranges import OffsetRange

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

YESTERDAY = int(time.time() - 86_400) * 1000


def use(sandbox: Sandbox, recovery: str, size: int = 6, **keys: Any) -> None:
    sandbox.configure(recovery=recovery, kafka={"max_records_per_batch": size}, **keys)


def places(sandbox: Sandbox) -> list[str]:
    return ["table", "table_quarantine", f"logs/{sandbox.name}"]


def versions(sandbox: Sandbox) -> list[int]:
    return [table.version() if (table := sandbox.table(path)) else -1 for path in places(sandbox)]


def landed(sandbox: Sandbox) -> list[dict[str, Any]]:
    """Return the records of the log, by delta-rs."""
    rows = sandbox.rows(f"logs/{sandbox.name}")
    return [] if rows is None else sorted(rows.to_pylist(), key=lambda r: (r["partition"], r["offset"]))


def on_topic(sandbox: Sandbox) -> list[dict[str, Any]]:
    """Return the records of the topic, in the columns of the log."""
    found = sorted(consume(sandbox.broker, sandbox.topic), key=lambda r: (r.partition, r.offset))
    return [
        {
            **{name: getattr(r, name) for name in ("key", "value", "topic", "partition", "offset")},
            "headers": [{"key": k, "value": v} for k, v in r.headers] or None,
            "timestamp": datetime.fromtimestamp(r.timestamp / 1000, UTC),
            "timestampType": r.timestamp_type,
        }
        for r in found
    ]


def offsets(ranges: Iterable[OffsetRange]) -> Counter[Offset]:
    return Counter((r.topic, r.partition, offset) for r in ranges for offset in range(r.start, r.end))


def let_go(sandbox: Sandbox) -> None:
    """Let Kafka delete all records."""
    sandbox.topics.delete_records(sandbox.topic, sandbox.topics.ends(sandbox.topic))


def assert_whole(sandbox: Sandbox) -> None:
    """Each record that was ever produced is in one place, once; the books agree; nothing lies about."""
    assert sandbox.sink() + sandbox.quarantine() + lost(sandbox) == Counter(sandbox.produced)
    sandbox.assert_balanced()
    assert [sandbox.orphans(path) for path in places(sandbox)] == [set()] * 3


def assert_nothing_to_do(sandbox: Sandbox, run: str) -> None:
    before = versions(sandbox)
    assert "0 offsets to read" in sandbox.run(run).stderr
    assert versions(sandbox) == before


@LONG
def test_wal_cleaning_that_is_killed_costs_no_record_and_is_finished_by_the_command(sandbox: Sandbox) -> None:
    use(sandbox, "wal", wal={"keep": "1h"})
    for point in ("segments-forgotten", "segments-removed"):
        sandbox.produce([(p, None, good(p), YESTERDAY) for p in (0, 1)])
        sandbox.run("r", kill_at=point)
    drain(sandbox, 2, "r")
    sandbox.assert_exact()
    assert len(landed(sandbox)) == 2, "only what is young is left"
    said(sandbox, "clean")
    assert_whole(sandbox)


def test_wal_applies_what_a_killed_run_sealed_though_kafka_is_down_or_has_dropped_it(sandbox: Sandbox) -> None:
    use(sandbox, "wal")
    drain(sandbox, 6, "a", kill_at="sealed")
    sandbox.broker.kill()
    assert sandbox.broker.bootstrap in sandbox.run("b", expect=20).message
    assert sandbox.sink() == Counter(sandbox.produced)
    assert sandbox.account("b") == dict(planned=6, written=6, filtered=0, quarantined=0, absent=0, lost=0)
    sandbox.broker.start()
    sandbox.topics.delete_records(sandbox.topic, {0: 3, 1: 3})  # which Spark still takes for an open batch
    sandbox.feed(2)
    assert "2 offsets to read" in sandbox.run("c").stderr
    assert_whole(sandbox)
    assert [(r["partition"], r["offset"]) for r in landed(sandbox)] == [(p, n) for p in (0, 1) for n in range(4)]


# --- what does not fit -----------------------------------------------------------------------------------------------


def write(file: Path, content: bytes) -> None:
    """Change a file below Hadoop's own checksum, which is there on local disks alone."""
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    file.write_bytes(content)


@contextlib.contextmanager
def unreadable(sandbox: Sandbox) -> Iterator[None]:
    """Damage the sink for the block."""
    newest = max((sandbox.home / "table" / "_delta_log").glob("*.json"))
    whole = newest.read_bytes()
    write(newest, b"{")
    yield
    write(newest, whole)


OTHER_COLUMNS: dict[str, Any] = {"decode": {"json": {"schema": "id STRING, name STRING"}}}


@LONG
@pytest.mark.parametrize(
    ("misfit", "code", "killed"),
    [
        (OTHER_COLUMNS, 10, False),
        (OTHER_COLUMNS, 10, True),
        ({"transform": {"python": "broken:transform"}}, 10, True),
        ({"transform": {"sql": "SELECT * FROM source WHERE id % 2 = 0"}}, 10, True),
        (None, 30, True),
    ],
    ids=["columns", "columns-killed", "import", "promise", "sink-is-down"],
)
def test_wal_lands_what_cannot_be_applied_and_applies_it_when_it_can(
    sandbox: Sandbox, misfit: dict[str, Any] | None, code: int, killed: bool
) -> None:
    use(sandbox, "wal")
    fits = sandbox.feed(4)
    sandbox.run("fits")
    if killed:
        drain(sandbox, 6, "dies", kill_at="sealed")
    with contextlib.nullcontext() if misfit else unreadable(sandbox):
        use(sandbox, "wal", **(misfit or {}))
        new = sandbox.feed(10)
        message = sandbox.run("misfit", expect=code).message
        assert f"2 batches ({len(new)} records)" in message
        row = sandbox.ledger.runs.known(sandbox.name, "misfit")
        assert (row.state, row.error["exit_code"]) == ("failed", code)
        assert [e["type"] for e in sandbox.ledger.events(sandbox.name, "misfit")].count("SegmentSealed") == 2
        assert landed(sandbox) == on_topic(sandbox)
        sandbox.run("misfit again", expect=code)
        let_go(sandbox)
    assert sandbox.sink() == Counter(fits)
    use(sandbox, "wal")
    sandbox.run("fits again")
    assert_whole(sandbox)
    assert_nothing_to_do(sandbox, "nothing")


@LONG
def test_change_to_wal_lands_though_nothing_fits_any_more(sandbox: Sandbox) -> None:
    use(sandbox, "replay")
    drain(sandbox, 4, "straight")
    use(sandbox, "wal", **OTHER_COLUMNS)
    new = sandbox.feed(4)
    assert f"1 batches ({len(new)} records)" in sandbox.run("misfit", expect=10).message
    let_go(sandbox)
    use(sandbox, "replay", **OTHER_COLUMNS)  # back: what the log holds is applied first, which does not fit yet
    before = versions(sandbox)
    sandbox.run("back", expect=10)
    assert versions(sandbox) == before
    use(sandbox, "replay")
    sandbox.run("fits again")
    assert_whole(sandbox)


# --- damaged ---------------------------------------------------------------------------------------------------------


def unapplied(sandbox: Sandbox, run: str) -> dict[OffsetRange, Path]:
    """Land one batch, and no more; return the files of its segments."""
    sandbox.run(run, kill_at="sealed")
    segments = delta(sandbox, f"logs/{sandbox.name}").history(1)[0]["sluice"]["segments"]
    root = sandbox.home / "logs" / sandbox.name
    return {OffsetRange(s["topic"], s["partition"], s["start"], s["end"]): root / s["path"] for s in segments}


def garble(file: Path) -> None:
    """Flip the last byte of a page."""
    value = pq.ParquetFile(file).metadata.row_group(0).column(1)
    begin = value.dictionary_page_offset or value.data_page_offset
    content = bytearray(file.read_bytes())
    content[begin + value.total_compressed_size - 1] ^= 0xFF
    write(file, bytes(content))


@LONG
def test_wal_segment_that_is_damaged_stops_the_run_by_name_or_is_lost_exactly_or_read_from_kafka(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """Each kind of damage is in tests/spark/wal/test_log.py."""
    wal = {"wal": {"segment_records": 2}}
    use(sandbox, "wal", 100, **wal)
    sandbox.feed(16)
    files = unapplied(sandbox, "a")
    assert len(files) == 8
    (missing, gone), (page, broken), *_ = list(files.items())[::2]
    gone.unlink()
    garble(broken)
    before = versions(sandbox)
    message = sandbox.run("b", expect=21).message
    root = sandbox.home / "logs" / sandbox.name
    for span, file, damage in ((missing, gone, "missing"), (page, broken, "garbled")):
        assert f"segment {file.relative_to(root)} of {span} is {damage}" in message
    assert versions(sandbox) == before
    assert not sandbox.sink()

    use(sandbox, "ignore_range", 100, **wal)
    sandbox.run("c")
    assert lost(sandbox) == offsets([missing, page])
    assert sandbox.account("c") == dict(planned=16, written=12, filtered=0, quarantined=0, absent=0, lost=4)
    assert_whole(sandbox)

    # Kafka still has it: nothing is lost
    use(sandbox, "wal", 100, **wal)
    sandbox.feed(8)
    files = unapplied(sandbox, "d")
    garble(list(files.values())[1])
    sandbox.feed(2)
    use(sandbox, "replay", 100)
    sandbox.run("e")
    assert lost(sandbox) == offsets([missing, page])
    assert_whole(sandbox)

    # Kafka has not: nothing is changed, and the file, put back, is enough
    use(sandbox, "wal", 100, **wal)
    sandbox.feed(8)
    file = list(unapplied(sandbox, "f").values())[-1]
    let_go(sandbox)
    aside = file.rename(tmp_path / "aside")
    before, epoch = versions(sandbox), sandbox.ledger.offsets.epoch(sandbox.name)
    use(sandbox, "replay", 100)
    assert f"segment {file.relative_to(root)}" in sandbox.run("g", expect=21).message
    assert (versions(sandbox), sandbox.ledger.offsets.epoch(sandbox.name)) == (before, epoch)
    aside.rename(file)
    sandbox.run("g")
    assert lost(sandbox) == offsets([missing, page])
    assert_whole(sandbox)


# --- handed over, and asleep -----------------------------------------------------------------------------------------


@LONG
def test_strategies_change_at_every_crash_without_gap_or_overlap(sandbox: Sandbox) -> None:
    steps: Sequence[tuple[str, str | None]] = [
        ("replay", "rows-staged:2"),
        ("wal", "epoch-closed"),  # with the batch of the step before open
        ("wal", "sink-committed:2"),
        ("replay", "epoch-opened"),  # with a batch that is in sink and log, and in no ledger
        ("replay", "sink-committed"),
        ("wal", "rows-staged"),
        ("replay", None),
        ("wal", None),
    ]
    for number, (recovery, point) in enumerate(steps):
        use(sandbox, recovery)
        sandbox.feed(9, bad_every=4)
        if point == "sink-committed":
            sandbox.topics.add_partitions(sandbox.topic, 3)  # epoch 3 was opened before it was there
            sandbox.produce([(2, None, good(n)) for n in range(3)])
        sandbox.run(f"{number}-{recovery}", kill_at=point)
        seen = sandbox.sink() + sandbox.quarantine()
        assert set(seen.values()) <= {1}, f"rows are visible twice after step {number}"
    sandbox.assert_exact()
    assert_whole(sandbox)
    epochs = {r.run: r.epoch for r in sandbox.ledger.runs.newest(sandbox.name)}
    assert list(reversed(epochs.values())) == [1, 2, 2, 3, 3, 4, 5, 6]
    assert_nothing_to_do(sandbox, "again")


@LONG
@pytest.mark.parametrize(
    ("recovery", "point", "heir", "begins"),
    [
        ("replay", "before-sink-commit:2", "wal", False),
        ("wal", "before-sink-commit:2", "replay", False),
        ("wal", "before-seal:2", "replay", False),
        ("wal", "before-seal:2", "wal", False),
        ("replay", "before-sink-commit:2", "wal", True),
        ("replay", "before-sink-commit:2", "replay", True),
        ("wal", "before-seal:2", "wal", True),
    ],
)
def test_driver_that_slept_through_a_change_of_strategy_or_of_drivers_writes_nothing_twice(
    sandbox: Sandbox, recovery: str, point: str, heir: str, begins: bool
) -> None:
    """Behind its heir it writes nowhere; before it, the batch is its own and the heir makes way.

    It is past its last look at the lease. An heir that begins has reconciled and taken its positions.
    """
    sandbox.feed(12, bad_every=5)
    use(sandbox, recovery, **PASSING)
    zombie = asleep(sandbox, point)
    use(sandbox, heir, **PASSING)
    sandbox.feed(3)
    if not begins:
        sandbox.run("heir")
        sandbox.assert_exact()
        before, events = versions(sandbox), sandbox.ledger.events(sandbox.name, limit=10_000)
        woken(zombie)
        assert versions(sandbox) == before
        assert sandbox.ledger.events(sandbox.name, limit=10_000) == events
    else:
        driver = gated(sandbox, "imported", "heir")
        woken(zombie)
        opened(driver, 40)
        sandbox.run("heir")
    sandbox.assert_exact()
    if "wal" not in (recovery, heir):
        assert_whole(sandbox)
