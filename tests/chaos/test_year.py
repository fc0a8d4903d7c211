"""A year of flights is reprocessed month by month beside the live pipeline, from Kafka and from the log alone."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml
from pyspark.sql import SparkSession
from tests.chaos.commands import deep
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


def late_by(sandbox: KeptSandbox, minutes: int) -> None:
    """Take the project's own monthly pipeline, with its idea of what is late."""
    spec = yaml.safe_load(find("flights_monthly").read_text())
    taken = {key: spec[key] for key in ("decode", "recovery", "wal", "interval")}
    transform = {"sql": f"SELECT *, dep_delay > {minutes} AS late FROM source"}
    sandbox.configure(kafka={"max_records_per_batch": 200_000}, transform=transform, **taken)


def table(sandbox: KeptSandbox, below: dict[int, int]) -> pa.Table:
    """Return the rows below these offsets, in the order of offsets, without the run that wrote them."""
    rows = sandbox.rows()
    assert rows is not None
    found = [rows.filter((pc.field("_partition") == p) & (pc.field("_offset") < end)) for p, end in below.items()]
    return pa.concat_tables(found).drop_columns(["_run"]).sort_by(ORDER)


@contextmanager
def live_pipeline(sandbox: KeptSandbox) -> Iterator[None]:
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
        yield
    finally:
        ended.set()
        thread.join()
    assert wrong == []
    assert len(runs) > 2
    assert sum(run["written"] for run in runs) == 50 * len(runs)


def reprocess(sandbox: KeptSandbox, name: str) -> None:
    """Run the twelve months, one after the other."""
    for start, end in MONTHS:
        sandbox.run(f"{name} {start}", interval=(start, end))
        account = sandbox.ledger.account(sandbox.name, f"{name} {start}")
        assert account["replaced"] == account["written"], account


def test_year_is_reprocessed_month_by_month_beside_a_live_pipeline(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as apart:
        apart.setenv("SLUICE_HOME", str(tmp_path / "feeder"))
        assert flights.feed(broker.bootstrap, topic="flights-of-a-year").produced == FLIGHTS
    sandbox = KeptSandbox(tmp_path / "home", broker, Topics(broker.bootstrap), "flights-of-a-year", spark=spark)
    late_by(sandbox, 15)
    sandbox.run("the year")
    ends = sandbox.topics.ends(sandbox.topic)
    before = table(sandbox, ends)
    assert len(before) == FLIGHTS
    with live_pipeline(sandbox):
        reprocess(sandbox, "again")
        assert table(sandbox, ends).equals(before)
        late_by(sandbox, 30)
        sandbox.run("march", interval=MONTHS[2])
        late_by(sandbox, 15)
    after = table(sandbox, ends)
    first, last = (pa.scalar(f"{day}T00:00:00Z").cast(after["_timestamp"].type) for day in MONTHS[2])
    march = pc.and_(pc.greater_equal(after["_timestamp"], first), pc.less(after["_timestamp"], last))
    assert after.filter(pc.invert(march)).equals(before.filter(pc.invert(march)))
    changed = after.filter(march)
    assert changed.drop_columns(["late"]).equals(before.filter(march).drop_columns(["late"]))
    assert changed["late"].equals(pc.greater(changed["dep_delay"], 30))
    assert not changed["late"].equals(before.filter(march)["late"])
    deep(sandbox)

    # Kafka drops all of it: the log is the only source
    sandbox.topics.delete_records(sandbox.topic, sandbox.topics.ends(sandbox.topic))
    with live_pipeline(sandbox):
        reprocess(sandbox, "from the log")
    assert table(sandbox, ends).equals(before)
    row = sandbox.ledger.run(sandbox.name, "from the log 2013-03-01")
    assert row is not None
    assert any("read from the write-ahead log" in note for note in row.notes)
    deep(sandbox)
