"""Strategy wal: whatever dies or is damaged, what is in the log reaches the sink once; and so across strategies."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.fixtures.runs import Driver, Offset, Sandbox, consume, good

from sluice.ranges import OffsetRange

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]


def use(sandbox: Sandbox, recovery: str, size: int = 6, **keys: Any) -> None:
    sandbox.configure(recovery=recovery, kafka={"max_records_per_batch": size}, **keys)


def places(sandbox: Sandbox) -> list[str]:
    return ["table", "table_quarantine", f"logs/{sandbox.name}"]


def versions(sandbox: Sandbox) -> list[int]:
    return [table.version() if (table := sandbox.table(path)) else -1 for path in places(sandbox)]


def landed(sandbox: Sandbox) -> list[dict[str, Any]]:
    """What the log holds, by delta-rs."""
    rows = sandbox.rows(f"logs/{sandbox.name}")
    return [] if rows is None else sorted(rows.to_pylist(), key=lambda r: (r["partition"], r["offset"]))


def on_topic(sandbox: Sandbox) -> list[dict[str, Any]]:
    """What Kafka holds, in the log's columns."""
    return sorted(
        (
            {
                "key": r.key,
                "value": r.value,
                "headers": [{"key": k, "value": v} for k, v in r.headers] or None,
                "topic": r.topic,
                "partition": r.partition,
                "offset": r.offset,
                "timestamp": datetime.fromtimestamp(r.timestamp / 1000, UTC),
                "timestampType": r.timestamp_type,
            }
            for r in consume(sandbox.broker, sandbox.topic)
        ),
        key=lambda r: (r["partition"], r["offset"]),
    )


def lost(sandbox: Sandbox) -> Counter[Offset]:
    return offsets(row.range for row in sandbox.ledger.lost(sandbox.name))


def offsets(ranges: Iterable[OffsetRange]) -> Counter[Offset]:
    return Counter((r.topic, r.partition, offset) for r in ranges for offset in range(r.start, r.end))


def assert_whole(sandbox: Sandbox) -> None:
    """Each record that was ever produced is in one place, once; the books agree; nothing lies about."""
    assert sandbox.sink() + sandbox.quarantine() + lost(sandbox) == Counter(sandbox.produced)
    sandbox.assert_balanced()
    assert [sandbox.orphans(path) for path in places(sandbox)] == [set()] * 3


def assert_nothing_to_do(sandbox: Sandbox, run: str) -> None:
    before = versions(sandbox)
    assert "0 offsets to read" in sandbox.run(run).stderr
    assert versions(sandbox) == before


# --- killed --------------------------------------------------------------------------------------------------------

YESTERDAY = int(time.time() - 86_400) * 1000

GROUPS = {
    "landing": ["segments-staged", "before-seal:2", "sealed", "seal-recorded", "query-ended"],
    "applying": ["batch-started", "rows-staged", "before-sink-commit", "sink-committed", "quarantine-committed",
                 "batch-recorded"],
    "cleaning": ["segments-forgotten", "segments-removed"],
}  # fmt: skip


@pytest.mark.parametrize("group", ["landing", pytest.param("applying", marks=pytest.mark.long)])
def test_killed_again_and_again_each_record_is_landed_once_and_applied_once(
    shared_sandbox: Sandbox, group: str
) -> None:
    sandbox = shared_sandbox
    use(sandbox, "wal", 12)
    for number, point in enumerate(GROUPS[group]):
        sandbox.produce(
            [
                (0, None, b'{"id": ', YESTERDAY, [("h", b"1"), ("h", b"2"), ("", b"")]),
                (1, b"\x00\xff", good(number), None, [("ü", b"\xff")]),
            ]
        )
        sandbox.feed(8, bad_every=5)
        sandbox.run(f"{group}-{number // 2}", kill_at=point)  # taken up by the same run, then by another
        seen = sandbox.sink() + sandbox.quarantine()
        assert set(seen.values()) <= {1}, f"rows are visible twice after {point}"
        assert seen <= sandbox.on_broker()
    sandbox.run(f"{group}-last")
    sandbox.assert_exact()
    assert_whole(sandbox)
    assert landed(sandbox) == on_topic(sandbox), "the log holds what Kafka held, byte for byte"
    assert_nothing_to_do(sandbox, f"{group}-again")
    states = {r.run: r.state for r in sandbox.ledger.runs(sandbox.name, limit=100)}
    assert {s for r, s in states.items() if r.endswith(("last", "again"))} == {"done"}
    assert "open" not in states.values()


def test_cleaning_that_is_killed_costs_no_record_and_is_finished_by_the_command(sandbox: Sandbox) -> None:
    use(sandbox, "wal", wal={"keep": "1h"})
    for point in GROUPS["cleaning"]:
        sandbox.produce([(p, None, good(p), YESTERDAY) for p in (0, 1)])
        sandbox.run("r", kill_at=point)
    sandbox.feed(2)
    sandbox.run("r")
    sandbox.assert_exact()
    assert len(landed(sandbox)) == 2, "only what is young is left"
    cleaned = sandbox.cli("clean", str(sandbox.file), "--json")
    assert cleaned.returncode == 0, cleaned.stderr
    assert_whole(sandbox)


# --- Kafka is down, or has let go ------------------------------------------------------------------------------------


def test_what_is_in_the_log_is_applied_though_kafka_is_down_and_though_it_has_dropped_everything(
    sandbox: Sandbox,
) -> None:
    use(sandbox, "wal")
    sandbox.feed(6)
    sandbox.run("a", kill_at="sealed")
    sandbox.broker.kill()
    told = sandbox.run("b", expect=20).message
    assert "1 sealed batches of the write-ahead log were applied" in told
    assert sandbox.broker.bootstrap in told
    row = sandbox.ledger.run(sandbox.name, "b")
    assert (row.state, row.error["exit_code"]) == ("failed", 20)
    assert sandbox.sink() == Counter(sandbox.produced)
    assert sandbox.account("b") == dict(planned=6, written=6, filtered=0, quarantined=0, absent=0, lost=0)

    # what Spark still takes for an open batch is gone by now: nobody needs it
    sandbox.broker.start()
    sandbox.topics.delete_records(sandbox.topic, {0: 3, 1: 3})
    sandbox.feed(2)
    assert "2 offsets to read" in sandbox.run("c").stderr
    assert_whole(sandbox)
    logged = sandbox.feed(6)
    sandbox.run("d", kill_at="sealed")
    unread = sandbox.feed(4)
    sandbox.topics.delete_records(sandbox.topic, sandbox.topics.ends(sandbox.topic))
    told = sandbox.run("e", expect=21).message
    assert "1 sealed batches of the write-ahead log were applied" in told
    gone = [OffsetRange(sandbox.topic, p, 7, 9) for p in (0, 1)]
    assert offsets(gone) == Counter(unread)
    assert all(str(r) in told for r in gone)
    assert sandbox.sink() == Counter(sandbox.produced) - Counter(unread)
    assert sandbox.account("e")["written"] == len(logged)

    use(sandbox, "ignore_range")
    sandbox.feed(2)
    sandbox.run("f")
    assert lost(sandbox) == Counter(unread)
    assert sandbox.account("f")["lost"] == len(unread)
    use(sandbox, "wal")
    sandbox.feed(2)
    sandbox.run("g")
    assert lost(sandbox) == Counter(unread)
    assert_whole(sandbox)
    assert [r.epoch for r in sandbox.ledger.runs(sandbox.name)] == [3, 2, 1, 1, 1, 1, 1]


# --- what does not fit -----------------------------------------------------------------------------------------------

OTHER_COLUMNS: dict[str, Any] = {"decode": {"json": {"schema": "id STRING, name STRING"}}}
CANNOT_BE_IMPORTED: dict[str, Any] = {"transform": {"python": "broken:transform"}}
BREAKS_ITS_PROMISE: dict[str, Any] = {"transform": {"sql": "SELECT * FROM source WHERE id % 2 = 0"}}


@pytest.mark.parametrize(
    "misfit",
    [
        pytest.param(OTHER_COLUMNS, id="sink"),
        pytest.param(CANNOT_BE_IMPORTED, id="import", marks=pytest.mark.long),
        pytest.param(BREAKS_ITS_PROMISE, id="promise", marks=pytest.mark.long),
    ],
)
def test_what_cannot_be_applied_is_landed_all_the_same_and_applied_when_it_fits(
    sandbox: Sandbox, misfit: dict[str, Any]
) -> None:
    use(sandbox, "wal")
    sandbox.feed(4)
    sandbox.run("fits")
    waiting = sandbox.feed(6)
    sandbox.run("dies", kill_at="sealed")
    use(sandbox, "wal", **misfit)
    new = sandbox.feed(10)
    told = sandbox.run("misfit", expect=10).message
    assert f"2 batches ({len(new)} records) were landed by this run and are sealed" in told
    assert "3 sealed batches are still to be applied; none of them is in the sink" in told
    assert "The next run applies the sealed batches" in told
    row = sandbox.ledger.run(sandbox.name, "misfit")
    assert row is not None
    assert (row.state, row.error["exit_code"]) == ("failed", 10)
    assert "2 batches" in row.error["state"]
    assert [e["type"] for e in sandbox.ledger.events(sandbox.name, "misfit")].count("SegmentSealed") == 2
    assert landed(sandbox) == on_topic(sandbox)
    assert sandbox.sink() == Counter(sandbox.produced) - Counter(waiting) - Counter(new)

    # again, with nothing new; then Kafka lets go of everything, and it fits again
    told = sandbox.run("misfit again", expect=10).message
    assert "0 batches (0 records) were landed by this run" in told
    sandbox.topics.delete_records(sandbox.topic, sandbox.topics.ends(sandbox.topic))
    use(sandbox, "wal")
    sandbox.run("fits again")
    assert_whole(sandbox)
    assert_nothing_to_do(sandbox, "nothing")


@pytest.mark.long
def test_records_are_landed_while_the_sink_cannot_be_read_and_applied_in_their_order(sandbox: Sandbox) -> None:
    use(sandbox, "wal")
    sandbox.feed(4)
    sandbox.run("fits")
    waiting = sandbox.feed(6)
    sandbox.run("dies", kill_at="sealed")
    newest = max((sandbox.home / "table" / "_delta_log").glob("*.json"))
    whole = newest.read_bytes()
    write(newest, b"{")
    new = sandbox.feed(10)
    told = sandbox.run("sink is down", expect=30).message
    assert f"2 batches ({len(new)} records) were landed by this run and are sealed" in told
    assert landed(sandbox) == on_topic(sandbox)
    assert sandbox.run("sink is still down", expect=30).message
    sandbox.topics.delete_records(sandbox.topic, sandbox.topics.ends(sandbox.topic))
    write(newest, whole)
    assert sandbox.sink() == Counter(sandbox.produced) - Counter(waiting) - Counter(new)
    sandbox.run("sink is back")
    assert_whole(sandbox)
    assert_nothing_to_do(sandbox, "nothing")


@pytest.mark.long
def test_a_change_to_wal_lands_though_nothing_fits_any_more(sandbox: Sandbox) -> None:
    use(sandbox, "replay")
    sandbox.feed(4)
    sandbox.run("straight")
    use(sandbox, "wal", **OTHER_COLUMNS)
    new = sandbox.feed(4)
    told = sandbox.run("misfit", expect=10).message
    assert f"1 batches ({len(new)} records) were landed by this run" in told
    sandbox.topics.delete_records(sandbox.topic, sandbox.topics.ends(sandbox.topic))
    use(sandbox, "replay", **OTHER_COLUMNS)  # back: what the log holds is applied first, which does not fit yet
    before = versions(sandbox)
    sandbox.run("back", expect=10)
    assert versions(sandbox) == before
    use(sandbox, "replay")
    sandbox.run("fits again")
    assert_whole(sandbox)


def test_a_log_that_another_program_optimized_stops_no_run(sandbox: Sandbox) -> None:
    use(sandbox, "wal", wal={"keep": "1h"})
    sandbox.produce([(n % 2, None, good(n), YESTERDAY) for n in range(6)])
    sandbox.run("first", kill_at="sealed")
    log = sandbox.table(f"logs/{sandbox.name}")
    assert log is not None
    log.optimize.compact()
    sandbox.feed(4)
    sandbox.run("second")
    assert_whole(sandbox)
    assert len(landed(sandbox)) == 4, "what is old and applied was cleaned"
    deep = sandbox.cli("audit", str(sandbox.file), "--deep")
    assert deep.returncode == 0, deep.stdout + deep.stderr


# --- damaged -------------------------------------------------------------------------------------------------------


def unapplied(sandbox: Sandbox, run: str) -> dict[OffsetRange, Path]:
    """Land one batch, and no more; return the files of its segments."""
    sandbox.run(run, kill_at="sealed")
    root = sandbox.home / "logs" / sandbox.name
    note = sandbox.table(f"logs/{sandbox.name}").history(1)[0]["sluice"]
    return {OffsetRange(s["topic"], s["partition"], s["start"], s["end"]): root / s["path"] for s in note["segments"]}


def write(file: Path, content: bytes) -> None:
    """Change a file below Hadoop's own checksum, which is there on local disks alone."""
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    file.write_bytes(content)


def garble(file: Path, *, page: bool) -> None:
    """Flip the last byte of a page, or one of the footer."""
    value = pq.ParquetFile(file).metadata.row_group(0).column(1)
    begin = value.dictionary_page_offset or value.data_page_offset
    content = bytearray(file.read_bytes())
    content[begin + value.total_compressed_size - 1 if page else -12] ^= 0xFF
    write(file, bytes(content))


def test_a_damaged_segment_stops_the_run_by_name_or_is_lost_exactly_or_read_from_kafka(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    wal = {"wal": {"segment_records": 2}}
    use(sandbox, "wal", 100, **wal)
    sandbox.feed(16)
    files = unapplied(sandbox, "a")
    assert len(files) == 8
    hurt = dict(list(files.items())[::2])
    missing, cut, footer, page = hurt
    whole = {file: file.read_bytes() for file in hurt.values()}
    hurt[missing].unlink()
    write(hurt[cut], whole[hurt[cut]][:-1])
    garble(hurt[footer], page=False)
    garble(hurt[page], page=True)
    before = versions(sandbox)
    told = sandbox.run("b", expect=21).message
    root = sandbox.home / "logs" / sandbox.name
    for span, what in ((missing, "missing"), (cut, "truncated"), (footer, "garbled"), (page, "garbled")):
        assert f"segment {hurt[span].relative_to(root)} of {span} is {what}" in told
    assert versions(sandbox) == before
    assert not sandbox.sink()

    for span in (cut, footer):
        write(hurt[span], whole[hurt[span]])
    use(sandbox, "ignore_range", 100, **wal)
    sandbox.run("c")
    assert lost(sandbox) == offsets([missing, page])
    assert sandbox.account("c") == dict(planned=16, written=12, filtered=0, quarantined=0, absent=0, lost=4)
    assert_whole(sandbox)

    # Kafka still has it: nothing is lost
    use(sandbox, "wal", 100, **wal)
    sandbox.feed(8)
    files = unapplied(sandbox, "d")
    garble(list(files.values())[1], page=True)
    sandbox.feed(2)
    use(sandbox, "replay", 100)
    assert "The source still has these offsets" in sandbox.run("e").stderr
    assert lost(sandbox) == offsets([missing, page])
    assert_whole(sandbox)

    # Kafka has not: nothing is changed, and the file, put back, is enough
    use(sandbox, "wal", 100, **wal)
    sandbox.feed(8)
    file = list(unapplied(sandbox, "f").values())[-1]
    sandbox.topics.delete_records(sandbox.topic, sandbox.topics.ends(sandbox.topic))
    aside = file.rename(tmp_path / "aside")
    before, epoch = versions(sandbox), sandbox.ledger.epoch(sandbox.name)
    use(sandbox, "replay", 100)
    told = sandbox.run("g", expect=21).message
    assert f"segment {file.relative_to(root)}" in told
    assert (versions(sandbox), sandbox.ledger.epoch(sandbox.name)) == (before, epoch)
    aside.rename(file)
    sandbox.run("g")
    assert lost(sandbox) == offsets([missing, page])
    assert_whole(sandbox)


# --- handed over ---------------------------------------------------------------------------------------------------


@pytest.mark.long
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
    epochs = {r.run: r.epoch for r in sandbox.ledger.runs(sandbox.name)}
    assert list(reversed(epochs.values())) == [1, 2, 2, 3, 3, 4, 5, 6]
    assert_nothing_to_do(sandbox, "again")


# --- asleep --------------------------------------------------------------------------------------------------------

GATED: dict[str, Any] = {"transform": {"python": "gate:passing"}}


def zombie_at(sandbox: Sandbox, recovery: str, gate: str) -> Driver:
    """Start a driver that stops at a point, asleep, its lease up."""
    use(sandbox, recovery, **GATED)
    zombie = sandbox.start("zombie", gate_at=gate)
    zombie.await_gate()
    zombie.signal(signal.SIGSTOP)
    sandbox.execute("UPDATE sluice_lease SET expires = 0")
    return zombie


def wake(zombie: Driver) -> str:
    zombie.open_gate()
    zombie.signal(signal.SIGCONT)
    end = zombie.wait()
    assert end.code == 40, end.stderr[-4000:]
    return end.message


@pytest.mark.long
@pytest.mark.parametrize(
    ("recovery", "point", "heir"),
    [
        ("replay", "before-sink-commit:2", "wal"),
        ("wal", "before-sink-commit:2", "replay"),
        ("wal", "before-seal:2", "replay"),
        ("wal", "before-seal:2", "wal"),
    ],
)
def test_a_driver_that_slept_through_a_change_of_strategy_or_of_drivers_writes_nowhere(
    sandbox: Sandbox, recovery: str, point: str, heir: str
) -> None:
    sandbox.feed(12, bad_every=5)
    zombie = zombie_at(sandbox, recovery, point)
    use(sandbox, heir, **GATED)
    sandbox.feed(3)
    sandbox.run("heir")
    sandbox.assert_exact()
    before, events = versions(sandbox), sandbox.ledger.events(sandbox.name, limit=10_000)
    wake(zombie)
    assert versions(sandbox) == before
    assert sandbox.ledger.events(sandbox.name, limit=10_000) == events
    sandbox.assert_exact()


@pytest.mark.long
@pytest.mark.parametrize(
    ("recovery", "point", "heir"),
    [
        ("replay", "before-sink-commit:2", "wal"),
        ("replay", "before-sink-commit:2", "replay"),
        ("wal", "before-seal:2", "wal"),
    ],
    ids=["while-the-strategy-changes", "behind-reconciling", "into-the-log"],
)
def test_a_driver_that_wakes_while_its_heir_begins_has_its_batch_and_the_heir_makes_way(
    sandbox: Sandbox, recovery: str, point: str, heir: str
) -> None:
    """The zombie is past its last look at the lease; the heir has reconciled and taken its positions."""
    sandbox.feed(12, bad_every=5)
    zombie = zombie_at(sandbox, recovery, point)
    use(sandbox, heir, **GATED)
    sandbox.feed(3)
    driver = sandbox.start("heir", gate_at="imported")
    driver.await_gate()
    wake(zombie)
    driver.open_gate()
    assert driver.wait().code == 40
    sandbox.run("heir")
    sandbox.assert_exact()
    if "wal" not in (recovery, heir):
        assert_whole(sandbox)
