"""A topic as a sink: whatever dies, those who read committed records see each of them once."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from tests.fixtures.runs import KeptSandbox
from tests.fixtures.stream import StreamSandbox

from sluice_spark.sinks.kafka import producer

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

DIRECT = ("before-sink-commit", "records-sent", "sink-committed", "quarantine-committed", "batch-recorded")


@pytest.mark.parametrize(
    ("recovery", "points"),
    [
        ("replay", ("records-sent", "sink-committed")),
        pytest.param("replay", DIRECT, marks=pytest.mark.long),
        pytest.param("wal", ("before-seal", "sealed", *DIRECT), marks=pytest.mark.long),
        pytest.param("hot", ("rows-staged", *DIRECT), marks=pytest.mark.long),
        pytest.param("ignore_range", DIRECT, marks=pytest.mark.long),
        pytest.param("ignore_batch", DIRECT, marks=pytest.mark.long),
    ],
)
def test_kills_neither_lose_nor_double(into_kafka: StreamSandbox, recovery: str, points: tuple[str, ...]) -> None:
    sandbox = into_kafka
    sandbox.configure(recovery=recovery, quality={"max_quarantined": "100%"})
    for point in points:
        sandbox.feed(8, bad_every=3)
        sandbox.run("killed", kill_at=point)
        assert set((sandbox.sink() + sandbox.quarantine()).values()) <= {1}
    sandbox.run("killed")
    lost = sandbox.total("lost")
    if recovery.startswith("ignore"):
        assert sum((sandbox.sink() + sandbox.quarantine()).values()) + lost == len(sandbox.produced)
        sandbox.assert_balanced()
    else:
        sandbox.assert_exact()
    assert sandbox.held_up() == []


@pytest.mark.long
def test_a_driver_that_wakes_up_late_adds_nothing(into_kafka: StreamSandbox) -> None:
    sandbox = into_kafka
    sandbox.configure(sink=sandbox.into(), transform={"python": "gate:passing"})
    sandbox.feed(5)
    frozen = sandbox.start("frozen", gate_at="records-sent")  # its transaction is open
    frozen.await_gate()
    assert sandbox.held_up()
    frozen.signal(signal.SIGSTOP)
    sandbox.execute("UPDATE sluice_lease SET expires = 0")
    sandbox.run("second")
    sandbox.assert_exact()
    frozen.open_gate()
    frozen.signal(signal.SIGCONT)
    assert frozen.wait().code == 40
    sandbox.assert_exact()
    assert sandbox.held_up() == []


@pytest.mark.parametrize("committed", [True, False])
def test_a_commit_whose_answer_is_lost_is_found_out(
    into_kafka: StreamSandbox, monkeypatch: Any, committed: bool
) -> None:
    sandbox, cut = into_kafka, []
    sandbox.feed(5)

    class Deaf(producer.Producer):  # type: ignore[misc]
        def commit_transaction(self, *arguments: Any) -> None:
            if cut:
                return super().commit_transaction(*arguments)
            cut.append(True)
            if committed:  # the cluster has, and we do not hear of it
                super().commit_transaction(*arguments)
            raise KafkaException(KafkaError(KafkaError._FATAL, "the answer is lost", fatal=True))

    monkeypatch.setattr(producer, "Producer", Deaf)
    said = sandbox.run("r", expect=0 if committed else 30)
    if not committed:
        assert "nothing of this batch is visible" in said.message
        assert sum(sandbox.sink().values()) == 0
        sandbox.run("r")
    assert cut
    sandbox.assert_exact()
    assert sandbox.held_up() == []


@pytest.mark.long
def test_what_was_lost_is_redriven_once(into_kafka: StreamSandbox) -> None:
    sandbox = into_kafka
    sandbox.configure(recovery="ignore_range", transform={"python": "poison:dying"})
    sandbox.feed(5)
    sandbox.run("live", POISON_IDS="3")
    assert sandbox.total("lost") == 1
    sandbox.run("again", redriven="lost", kill_at="records-sent")
    sandbox.run("again", redriven="lost", kill_at="sink-committed")
    sandbox.run("again", redriven="lost")
    assert sandbox.sink() == sandbox.on_broker()
    assert sandbox.ledger.lost(sandbox.name) == []
    sandbox.assert_balanced()


@pytest.mark.long
def test_a_chain_of_topics_ends_in_a_table_with_each_record_once(into_kafka: StreamSandbox, tmp_path: Path) -> None:
    first = into_kafka
    first.configure(quality={"max_quarantined": "100%"})
    second = KeptSandbox(tmp_path / "second", first.broker, first.topics, first.target, spark=first.spark)
    second.configure(kafka={"isolation_level": "read_committed"})
    for name in ("a", "b"):
        first.feed(8, bad_every=3)
        first.run(name, kill_at="records-sent" if name == "b" else None)
        second.run(name)  # beside an open transaction it reads what is before it
        first.run(name)
        second.run(f"{name} again")
    first.assert_exact()
    second.assert_exact("read_committed")
    assert second.total("absent") > 0
    rows = second.rows()
    assert rows is not None
    assert sorted(rows.column("id").to_pylist()) == sorted(line["id"] for line in first.lines())


@pytest.mark.long
def test_a_broker_that_dies_while_a_transaction_is_committed_costs_nothing(into_kafka: StreamSandbox) -> None:
    sandbox = into_kafka
    sandbox.configure(sink=sandbox.into(), transform={"python": "gate:passing"})
    sandbox.feed(5)
    driver = sandbox.start("r", gate_at="records-sent")
    driver.await_gate()
    sandbox.broker.kill()
    driver.open_gate()
    sandbox.broker.start()
    assert driver.wait().code in (0, 20, 30)
    sandbox.run("r")
    sandbox.assert_exact()
    assert sandbox.held_up() == []
