"""A year of flights, month by month: made anew beside the live pipeline, from Kafka and from the log alone."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml
from pyspark.sql import SparkSession
from tests.fixtures.runs import KeptSandbox

from sluice.local import flights
from sluice.local.kafka import Broker, Topics
from sluice.pipeline import find

pytestmark = [
    pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka, pytest.mark.long, pytest.mark.timeout(3600),
]  # fmt: skip

FLIGHTS = 336_776
MONTHS = [(f"2013-{m:02d}-01", f"2013-{m + 1:02d}-01" if m < 12 else "2014-01-01") for m in range(1, 13)]
ORDER = [("_topic", "ascending"), ("_partition", "ascending"), ("_offset", "ascending")]


@pytest.fixture
def sandbox(spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KeptSandbox:
    topics = Topics(broker.bootstrap)
    with monkeypatch.context() as apart:
        apart.setenv("SLUICE_HOME", str(tmp_path / "feeder"))
        assert flights.feed(broker.bootstrap, topic="flights-of-a-year").produced == FLIGHTS
    sandbox = KeptSandbox(tmp_path / "home", broker, topics, "flights-of-a-year", spark=spark)
    late_by(sandbox, 15)
    return sandbox


def late_by(sandbox: KeptSandbox, minutes: int) -> None:
    """Take the project's own monthly pipeline, with its idea of what is late."""
    spec = yaml.safe_load(find("flights_monthly").read_text())
    taken = {key: spec[key] for key in ("decode", "recovery", "wal", "interval")}
    transform = {"sql": f"SELECT *, dep_delay > {minutes} AS late FROM source"}
    sandbox.configure(kafka={"max_records_per_batch": 200_000}, transform=transform, **taken)


def table(sandbox: KeptSandbox, below: dict[int, int]) -> pa.Table:
    """Return the rows below these offsets, in the order of offsets, but for who wrote them."""
    rows = sandbox.rows()
    assert rows is not None
    found = [
        rows.filter((pc.field("_partition") == p) & (pc.field("_offset") < end)) for p, end in below.items()
    ]  # fmt: skip
    return pa.concat_tables(found).drop_columns(["_run"]).sort_by(ORDER)


@contextmanager
def a_live_pipeline(sandbox: KeptSandbox) -> Iterator[list[str]]:
    """Feed new records and drain them by runs of their own, one after the other, until the block ends."""
    ended, wrong, runs = threading.Event(), [], []

    def live() -> None:
        while not ended.is_set():
            value = json.dumps({"carrier": "ZZ", "flight": len(runs), "time_hour": "2026-11-01T00:00:00Z"}).encode()
            sandbox.topics.produce(sandbox.topic, [(n % 2, None, value, int(time.time() * 1000)) for n in range(50)])
            done = sandbox.cli("run", str(sandbox.file), "--json", "--no-validate")
            if done.returncode:
                wrong.append(done.stderr)
                return
            runs.append(json.loads(done.stdout.splitlines()[-1]))

    thread = threading.Thread(target=live)
    thread.start()
    try:
        yield runs
    finally:
        ended.set()
        thread.join()
    assert wrong == []


def year_anew(sandbox: KeptSandbox, name: str) -> list[dict[str, Any]]:
    """Run the twelve months, one after the other; return their accounts."""
    accounts = []
    for start, end in MONTHS:
        run = f"{name} {start}"
        sandbox.run(run, interval=(start, end))
        accounts.append(sandbox.ledger.account(sandbox.name, run))
        assert accounts[-1]["replaced"] == accounts[-1]["written"], accounts[-1]
    return accounts


def assert_audited(sandbox: KeptSandbox) -> None:
    deep = sandbox.cli("audit", "--deep", str(sandbox.file), "--json")
    assert deep.returncode == 0, deep.stdout + deep.stderr


def test_a_year_of_months_beside_the_live_pipeline(sandbox: KeptSandbox) -> None:
    sandbox.run("the year")
    ends = sandbox.topics.ends(sandbox.topic)
    before = table(sandbox, ends)
    assert len(before) == FLIGHTS

    with a_live_pipeline(sandbox) as live:
        months = year_anew(sandbox, "again")
        assert table(sandbox, ends).equals(before)

        late_by(sandbox, 30)
        sandbox.run("march", interval=MONTHS[2])
        late_by(sandbox, 15)
    print(f"{len(live)} live runs beside it; read {sum(m['planned'] for m in months):,} of {FLIGHTS:,} offsets")
    assert len(live) > 2
    assert sum(run["written"] for run in live) == 50 * len(live)
    after = table(sandbox, ends)
    march = pc.and_(
        pc.greater_equal(after["_timestamp"], pa.scalar("2013-03-01T00:00:00Z").cast(after["_timestamp"].type)),
        pc.less(after["_timestamp"], pa.scalar("2013-04-01T00:00:00Z").cast(after["_timestamp"].type)),
    )
    assert after.filter(pc.invert(march)).equals(before.filter(pc.invert(march)))
    changed = after.filter(march)
    assert changed.drop_columns(["late"]).equals(before.filter(march).drop_columns(["late"]))
    assert changed["late"].equals(pc.greater(changed["dep_delay"], 30))
    assert not changed["late"].equals(before.filter(march)["late"])
    assert_audited(sandbox)

    # Kafka drops all of it: the log is the only source
    sandbox.topics.delete_records(sandbox.topic, sandbox.topics.ends(sandbox.topic))
    with a_live_pipeline(sandbox) as live:
        year_anew(sandbox, "from the log")
    assert len(live) > 2
    assert table(sandbox, ends).equals(before)
    row = sandbox.ledger.run(sandbox.name, "from the log 2013-03-01")
    assert row is not None
    assert any("read from the write-ahead log" in note for note in row.notes)
    assert_audited(sandbox)
