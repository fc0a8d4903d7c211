"""What can happen to the broker, the topic, the checkpoint and the table while nobody looks."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from tests.fixtures.runs import Sandbox, good, refuse_a_topic_made_anew

from sluice.home import Home
from sluice.run.checkpoint import Checkpoint

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]


def checkpoint(sandbox: Sandbox) -> Checkpoint:
    return Checkpoint(Home(str(sandbox.home)).checkpoint(sandbox.name, 1))


def state(sandbox: Sandbox) -> tuple[object, ...]:
    """Everything that a refused run must leave as it was."""
    table, point = sandbox.table(), checkpoint(sandbox)
    return table.version() if table else None, point.positions(), point.planned(), point.committed()


def test_a_broker_that_is_down_costs_nothing_but_time(sandbox: Sandbox) -> None:
    sandbox.feed(6)
    sandbox.broker.kill()
    refused = sandbox.run("r", expect=20)
    assert sandbox.broker.bootstrap in refused.message
    assert sandbox.ledger.run(sandbox.name, "r").error["exit_code"] == 20
    sandbox.broker.start()
    sandbox.run("r")
    sandbox.assert_exact()
    assert sandbox.account("r") == dict(planned=6, written=6, filtered=0, quarantined=0, absent=0, lost=0)


def test_offsets_that_are_gone_and_a_topic_made_anew_are_refused_by_name(sandbox: Sandbox) -> None:
    sandbox.feed(6)
    sandbox.run("first")
    before = state(sandbox)
    sandbox.feed(10)
    sandbox.topics.delete_records(sandbox.topic, {1: 7})
    gone = sandbox.run("second", expect=21)
    assert "4 planned offsets are gone" in gone.message
    assert f"{sandbox.topic}-1 [3, 7)" in gone.message
    assert f"{sandbox.topic}-0" not in gone.message
    assert "ignore_range" in gone.message
    assert state(sandbox) == before

    sandbox.topics.recreate(sandbox.topic, 2)
    sandbox.topics.produce(sandbox.topic, [(p, None, good(n)) for n in range(20) for p in (0, 1)])
    anew = sandbox.run("third", expect=22)
    assert "deleted and recreated" in anew.message
    assert state(sandbox) == before
    runs = {r.run: (r.state, (r.error or {}).get("exit_code")) for r in sandbox.ledger.runs(sandbox.name)}
    assert runs == {"first": ("done", None), "second": ("failed", 21), "third": ("failed", 22)}


@pytest.mark.parametrize("left", [6, 0])
def test_a_first_run_says_which_offsets_were_gone_before_it(sandbox: Sandbox, left: int) -> None:
    """As of a topic whose records are older than its retention: removed minutes after they were produced."""
    sandbox.feed(12)
    kept = left // 2
    sandbox.topics.delete_records(sandbox.topic, {0: 6 - kept, 1: 6 - kept})
    outcome = sandbox.run("first")
    told = f"{12 - left} offsets were gone from the source before this pipeline first read the topic"
    gone = [f"{sandbox.topic}-{p} [0, {6 - kept})" for p in (0, 1)]
    assert told in outcome.stderr
    notes = sandbox.ledger.account(sandbox.name, "first")["notes"]
    assert len(notes) == 1
    assert told in notes[0]
    assert all(each in notes[0] for each in gone)
    assert told in sandbox.cli("status", sandbox.name).stderr.replace("\n", " ")
    assert sandbox.account("first") == dict(
        planned=left, written=left, filtered=0, quarantined=0, absent=0, lost=0
    )  # fmt: skip
    sandbox.feed(2)
    sandbox.run("second")
    assert "notes" not in sandbox.ledger.account(sandbox.name, "second")


def test_a_position_behind_an_open_transaction_is_waited_for(sandbox: Sandbox) -> None:
    """The isolation level was changed when more had been read than is stable."""
    sandbox.feed(4)
    with sandbox.topics.producer(transactional_id="open") as producer:
        producer.init_transactions()
        producer.begin_transaction()
        placed = [
            producer.send(sandbox.topic, value=good(n), partition=0).get(30) for n in range(4, 6)
        ]  # fmt: skip
        sandbox.run("uncommitted")
        before = state(sandbox)
        sandbox.configure(kafka={"isolation_level": "read_committed"})
        sandbox.feed(2)
        told = sandbox.run("committed", expect=20).message
        assert "a transaction is open" in told
        assert f"{sandbox.topic}-0 can be read up to 2" in told
        assert state(sandbox) == before
        lag = sandbox.cli("lag", str(sandbox.file), "--json")
        assert "RECREATED" not in lag.stdout
        producer.commit_transaction()
    sandbox.run("committed")
    sandbox.produced += [(sandbox.topic, m.partition, m.offset) for m in placed]
    assert sandbox.sink() == Counter(sandbox.produced)


def test_the_way_out_of_a_table_that_does_not_fit_leads_out(sandbox: Sandbox) -> None:
    sandbox.feed(4)
    sandbox.run("first")
    other = {"decode": {"json": {"schema": "id BIGINT, name STRING, more STRING"}}}
    sandbox.configure(**other)
    sandbox.feed(2)
    told = sandbox.run("misfit", expect=10).message
    assert "give the pipeline another name and its sink another path, both at once" in told
    sandbox.configure(**other, sink={"delta": {"path": "elsewhere"}})
    assert f"sluice reset {sandbox.name}" in sandbox.run("half of it", expect=41).message
    sandbox.name += "-anew"
    sandbox.configure(**other, sink={"delta": {"path": "elsewhere"}})
    sandbox.run("all of it")
    assert sandbox.offsets("elsewhere") == Counter(sandbox.produced)


def test_records_deleted_while_they_are_being_read_are_told_from_gaps(sandbox: Sandbox) -> None:
    sandbox.configure(transform={"python": "gate:passing"})
    sandbox.feed(6)
    driver = sandbox.start("r", gate_at="batch-started")
    driver.await_gate()
    sandbox.topics.delete_records(sandbox.topic, {0: 2})
    driver.open_gate()
    end = driver.wait()
    assert end.code == 21, end.stderr[-4000:]
    assert f"{sandbox.topic}-0 [0, 2)" in end.message
    assert not sandbox.sink()


@pytest.mark.parametrize(
    ("strategy", "transform", "gate_at"),
    [
        ("replay", {"arrow": "gate:table"}, "before-sink-commit:2"),
        ("replay", {"python": "gate:passing"}, "before-sink-commit:2"),
        ("wal", {"arrow": "gate:table"}, "segments-staged:2"),
    ],
)
def test_a_topic_made_anew_while_a_run_reads_it_is_refused_before_a_record_of_it_is_committed(
    sandbox: Sandbox, strategy: str, transform: dict[str, str], gate_at: str
) -> None:
    sandbox.configure(recovery=strategy, transform=transform)
    sandbox.feed(24)
    driver = sandbox.start("r", gate_at=gate_at)
    refuse_a_topic_made_anew(sandbox, driver)
    rows = sandbox.rows()
    assert rows is not None
    assert max(rows.column("id").to_pylist()) < 24
    assert 0 < sandbox.sink().total() < 24
    assert sandbox.sink() <= Counter(sandbox.produced)
    assert "its id changed" in sandbox.run("again", expect=22).message


def test_an_interval_of_a_topic_that_is_made_anew_meanwhile_is_not_replaced(sandbox: Sandbox) -> None:
    sandbox.configure(transform={"arrow": "gate:table"})
    end = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    noon = round((end - timedelta(hours=12)).timestamp() * 1000)
    sandbox.produce([(n % 2, None, good(n), noon + n) for n in range(6)])
    sandbox.run("live")
    before = state(sandbox)
    day = (f"{end - timedelta(days=1):%Y-%m-%d}", f"{end:%Y-%m-%d}")
    driver = sandbox.start("interval", gate_at="rows-staged", interval=day)
    refuse_a_topic_made_anew(sandbox, driver)
    assert state(sandbox) == before


def test_a_partition_added_between_a_killed_run_and_its_next_attempt_is_read_from_its_beginning(
    sandbox: Sandbox,
) -> None:
    sandbox.feed(12)
    sandbox.run("r", kill_at="rows-staged:2")
    sandbox.topics.add_partitions(sandbox.topic, 3)
    sandbox.produce([(2, None, good(n)) for n in range(100, 104)])
    sandbox.run("r")
    sandbox.assert_exact()
    assert sandbox.account("r")["written"] == 16
    assert {p for _, p, _ in sandbox.sink()} == {0, 1, 2}


def test_a_topic_that_is_not_there_is_a_mistake_of_the_pipeline_file(sandbox: Sandbox) -> None:
    sandbox.configure(kafka={"topics": ["not-there"]})
    assert "no topic 'not-there'" in sandbox.run("r", expect=10).message


def test_an_empty_topic_is_an_empty_run(sandbox: Sandbox) -> None:
    for run in ("first", "second"):
        sandbox.run(run)
        row = sandbox.ledger.run(sandbox.name, run)
        assert (row.state, row.verdict) == ("done", "empty")
        assert sandbox.account(run)["planned"] == 0
    sandbox.feed(2)
    sandbox.run("third")
    sandbox.assert_exact()


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_transactions_leave_gaps_that_are_counted_absent(sandbox: Sandbox, isolation: str) -> None:
    sandbox.configure(kafka={"isolation_level": isolation, "max_records_per_batch": 100})
    sandbox.feed(2)
    sandbox.topics.produce_transaction(sandbox.topic, [(0, None, good(n)) for n in (1, 2, 3)], commit=False)
    sandbox.topics.produce_transaction(sandbox.topic, [(1, None, good(n)) for n in (4, 5)], commit=True)
    sandbox.topics.produce_transaction(sandbox.topic, [(1, None, good(6))], commit=False)
    readable = 4 if isolation == "read_committed" else 8
    sandbox.run("r")
    # 0: record, three of an aborted transaction, marker; 1: record, two, marker, one aborted, marker
    sandbox.assert_exact(isolation)
    account = sandbox.account("r")
    assert account == dict(planned=11, written=readable, filtered=0, quarantined=0, absent=11 - readable, lost=0)


def test_a_topic_is_added_but_not_left_out_again(sandbox: Sandbox) -> None:
    """Spark logs positions of all topics together: without one it would take the file for a loss, or read it twice."""
    other = f"{sandbox.topic}-more"
    sandbox.topics.create(other, 1)
    sandbox.feed(4)
    sandbox.run("one")
    both = {"topics": [sandbox.topic, other]}
    sandbox.configure(kafka=both)
    sandbox.produce([(0, None, good(n)) for n in (10, 11)], other)
    sandbox.run("two")
    for recovery in ("replay", "ignore_range"):
        sandbox.configure(recovery=recovery)
        refused = sandbox.run("three", expect=10)
        assert f"has read the topic '{other}', which its file no longer names" in refused.message
    sandbox.configure(kafka=both)
    sandbox.produce([(0, None, good(12))], other)
    sandbox.feed(2)
    sandbox.run("three")
    assert sandbox.sink() == Counter(sandbox.produced)
    cut = f"{sandbox.topic}-cut"
    sandbox.topics.create(cut, 1)
    sandbox.produce([(0, None, good(n)) for n in (20, 21)], cut)
    sandbox.topics.delete_records(cut, {0: 1})
    sandbox.configure(recovery="ignore_range", kafka={"topics": [*both["topics"], cut]})
    assert "is new to pipeline" in sandbox.run("four", expect=10).message
    sandbox.configure(kafka=both)
    sandbox.run("four")
    assert sandbox.total("lost") == 0


def test_a_broker_that_dies_and_comes_back_in_the_middle_of_a_batch_is_waited_for(sandbox: Sandbox) -> None:
    sandbox.configure(transform={"python": "gate:passing"})
    sandbox.feed(12, bad_every=4)
    driver = sandbox.start("r", gate_at="batch-started:2")
    driver.await_gate()
    sandbox.broker.kill()
    sandbox.broker.start()
    driver.open_gate()
    end = driver.wait()
    assert end.code == 0, end.stderr[-4000:]
    sandbox.assert_exact()


def test_a_checkpoint_or_a_table_taken_away_is_refused_and_put_back_goes_on(sandbox: Sandbox) -> None:
    sandbox.feed(6)
    sandbox.run("first")
    sandbox.feed(4)
    lost = sandbox.home / "checkpoints"
    lost.rename(sandbox.home / "aside")
    assert "it was removed or rolled back" in sandbox.run("second", expect=41).message
    assert sum(sandbox.sink().values()) == 6
    (sandbox.home / "aside").rename(lost)

    table = sandbox.home / "table"
    table.rename(sandbox.home / "aside")
    assert "holds only up to -1" in sandbox.run("second", expect=41).message
    assert not table.exists()
    (sandbox.home / "aside").rename(table)

    sandbox.run("second")
    sandbox.assert_exact()
    assert Counter(sandbox.rows().column("_run").to_pylist()) == Counter(first=6, second=4)
