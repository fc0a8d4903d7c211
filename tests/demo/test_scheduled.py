"""Runs that a real Airflow starts: backfills beside live runs, repairs, and ``schedule: on_lag``; nothing is faked."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.fixtures.postgres import binaries, new_database
from tests.fixtures.stack import Host, Stack, clean_environment

from sluice.errors import SluiceError

pytestmark = [getattr(pytest.mark, name) for name in ("airflow", "kafka", "spark", "long")]
pytestmark.append(pytest.mark.timeout(1800))

SETTINGS = {
    # How soon another triggerer takes over what a killed one ran; half a minute by default.
    "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "20",
    "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "2",
}


@pytest.fixture(scope="module")
def host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A broker and an Airflow that are up, without any DAG."""
    database = new_database(request.getfixturevalue("postgres")) if binaries() else None
    with clean_environment():
        host = Host(tmp_path_factory.mktemp("host"), settings=SETTINGS, database=database)
        try:
            host.airflow.start()
            yield host
        finally:
            host.end()


DAILY = """\
pipeline: orders
source: {{kafka: {{topics: [orders]}}}}
decode: {{json: {{schema: "id BIGINT"}}}}
rules: [{{name: known, sql: {{passes: "id >= {least}"}}}}]
transform: {{sql: "SELECT *, {version} AS version FROM source"}}
sink: {{delta: {{path: orders}}}}
quality: {{max_quarantined: 1}}
schedule: {{cron: "0 0 * * *", timezone: UTC}}
"""

REPAIR = """\
from sluice.pipeline import load
from sluice_airflow.maintenance import maintenance_dag

dag = maintenance_dag(load({file!r}), {file!r})
"""
FIRST = datetime(2013, 3, 1, tzinfo=UTC)
DAYS = 6
EACH = 10


class Daily(Stack):
    """A pipeline with a run each day, and records of some days of 2013."""

    def __init__(self, host: Host) -> None:
        super().__init__(host, "orders", DAILY.format(version=1, least=0))
        self.topics.create("orders", 2, {"retention.ms": "-1"})
        self.fed = 0

    def feed(self, moment: datetime, count: int = EACH) -> None:
        """Produce so many records, a minute apart."""
        times = [int((moment + timedelta(minutes=n)).timestamp() * 1000) for n in range(count)]
        records = [(n % 2, None, b'{"id": %d}' % (self.fed + n), time) for n, time in enumerate(times)]
        self.topics.produce("orders", records)
        self.fed += count

    def feed_refused(self) -> None:
        """Produce a record of the first day that breaks the row rule."""
        self.topics.produce("orders", [(0, None, b'{"id": -1}', int(FIRST.timestamp() * 1000))])

    def await_backfill(self) -> None:
        """Return when the scheduler has ended all of its runs, and says so, which it does twice a minute."""
        self.await_that(lambda: not self.active(), "the backfill ended", 600)

    def call_off(self) -> None:
        """End a backfill that made no run, before the scheduler notices. Where there are runs it would pause them."""
        assert all(self.is_over(run) for run in self.of_backfill()), "it made runs, or repeated some"
        for backfill in self.active():
            with contextlib.suppress(SluiceError):  # the scheduler noticed just now
                self.airflow.call("PUT", f"/backfills/{backfill['id']}/cancel")
        assert self.active() == []

    def active(self) -> list[dict[str, Any]]:
        """The backfills beside which there may be no other."""
        known = self.airflow.call("GET", f"/backfills?dag_id={self.pipeline}")["backfills"]
        return [backfill for backfill in known if not backfill["completed_at"]]

    @staticmethod
    def is_over(run: dict[str, Any]) -> bool:
        return run["state"] in ("success", "failed")

    def of_backfill(self) -> list[dict[str, Any]]:
        """The runs that backfills made."""
        return [run for run in self.runs() if run["run_type"] == "backfill"]

    def trigger(self, **conf: Any) -> str:
        """Start a run by hand, as the form does; return its id."""
        made = self.airflow.call("POST", f"/dags/{self.pipeline}/dagRuns", {"logical_date": None, "conf": conf})
        return str(made["dag_run_id"])

    def ended(self, run: str) -> bool:
        return self.is_over(self.airflow.call("GET", f"/dags/{self.pipeline}/dagRuns/{run}"))

    def table(self) -> Counter[tuple[int, int, int]]:
        """The multiset of (partition, offset, version)."""
        rows = DeltaTable(str(self.home / "orders")).to_pyarrow_table().to_pylist()
        return Counter((r["_partition"], r["_offset"], r["version"]) for r in rows)

    def versions(self) -> dict[int, int]:
        return dict(Counter(version for _, _, version in self.table().elements()))

    def drained(self) -> bool:
        """Whether live runs have read all that was fed."""
        ends = self.topics.ends("orders")
        return self.ledger.offsets.reached(self.pipeline).get("orders", {}) == {
            p: end for p, end in ends.items() if end
        }


def dates(first: int, last: int) -> list[str]:
    return ["--from-date", f"2013-03-{first:02d}", "--to-date", f"2013-03-{last:02d}"]


def test_scheduler_backfill_reprocesses_days_beside_the_live_pipeline(host: Host) -> None:
    daily = Daily(host)
    for day in range(DAYS):
        daily.feed(FIRST + timedelta(days=day))
    daily.feed_refused()
    (host.root / "dags" / "repair.py").write_text(REPAIR.format(file=str(daily.file)))
    daily.begin()
    # catchup is off: one scheduled run, for yesterday. It means what is available now, that is: all of it
    daily.await_that(daily.drained, "the scheduled run drained the topic")
    daily.await_that(lambda: daily.runs()[0]["state"] == "success", "the scheduled run ended")
    before = daily.table()
    assert (sum(before.values()), set(before.values())) == (DAYS * EACH, {1})

    said = daily.airflow.backfill("orders", *dates(3, 4), "--dry-run")
    assert all(day in said for day in ("2013-03-03", "2013-03-04"))
    assert daily.of_backfill() == []

    # the fix comes to history by way of the backfill, and to what is new by way of live runs
    daily.file.write_text(DAILY.format(version=2, least=0))
    conf = '{"reason": "version 2", "recovery": "ignore_range"}'
    options = ("--max-active-runs", "2", "--run-backwards", "--dag-run-conf", conf)
    daily.airflow.backfill("orders", *dates(3, 4), *options)
    daily.feed(datetime.now(UTC))
    live = daily.trigger()
    daily.await_backfill()
    daily.await_that(lambda: daily.ended(live), "the live run ended")
    runs = daily.of_backfill()
    assert [run["state"] for run in runs] == ["success"] * 2
    assert daily.versions() == {1: 4 * EACH, 2: 3 * EACH}
    assert Counter((p, o) for p, o, _ in daily.table().elements()).total() == (DAYS + 1) * EACH
    ledger = daily.ledger
    for run in runs:
        account = ledger.runs.account("orders", f"{run['dag_run_id']}__interval")
        assert (account["written"], account["replaced"], account["verdict"]) == (EACH, EACH, "passed")
        assert (account["reason"], account["recovery"]) == ("version 2", "ignore_range")
    assert ledger.runs.account("orders", live)["written"] == EACH

    # none: days that have a run are left alone. failed: there is none. completed: reprocessed, under the same run
    for behaviour in ("none", "failed"):
        daily.airflow.backfill("orders", *dates(3, 4), "--reprocess-behavior", behaviour)
        daily.call_off()
    assert all(ledger.runs.find("orders", f"{r['dag_run_id']}__interval").attempts == 1 for r in runs)  # type: ignore[union-attr]
    daily.file.write_text(DAILY.format(version=3, least=0))
    daily.airflow.backfill("orders", *dates(3, 3), "--reprocess-behavior", "completed")

    # a cleared task is done again, beside it, and so is a run that the form starts
    third = next(run for run in daily.of_backfill() if "2013-03-04" in run["logical_date"])
    body = {"dry_run": False, "dag_run_id": third["dag_run_id"], "task_ids": ["ingest"], "only_failed": False}
    daily.airflow.call("POST", "/dags/orders/clearTaskInstances", body)
    fifth = {"start": "2013-03-05T00:00:00Z", "end": "2013-03-06T00:00:00Z"}
    by_hand = daily.trigger(mode="interval", **fifth, reason="by hand", recovery="hot")
    daily.await_that(lambda: daily.ended(by_hand) and daily.ended(third["dag_run_id"]), "both ended", 600)
    daily.await_that(
        lambda: all(daily.is_over(run) for run in daily.of_backfill()), "the third day was reprocessed", 600
    )
    assert ledger.runs.account("orders", f"{by_hand}__interval")["recovery"] == "hot"
    assert daily.versions() == {1: 3 * EACH, 2: EACH, 3: 3 * EACH}
    assert set(daily.table().values()) == {1}

    # the rule is relaxed: by REST the refused record is redriven, all of it is audited, and Airflow remembers who asked
    daily.file.write_text(DAILY.format(version=3, least=-1))
    repair = daily.airflow.trigger("orders.maintenance", {"redrive": "quarantined"})
    *_, (state, tasks, _) = daily.airflow.states("orders.maintenance", repair)
    assert (state, tasks) == ("success", {"redrive": "success", "audit": "success", "clean": "success"})
    path = f"/dags/orders.maintenance/dagRuns/{repair}/taskInstances/redrive/xcomEntries/return_value?deserialize=true"
    account = daily.airflow.call("GET", path)["value"]
    assert (account["written"], account["quarantined"], account["verdict"]) == (1, 0, "passed")
    assert daily.versions() == {1: 3 * EACH, 2: EACH, 3: 3 * EACH + 1}
    assert DeltaTable(str(daily.home / "orders_quarantine")).count() == 0
    logged = daily.airflow.call("GET", "/eventLogs?dag_id=orders.maintenance&event=trigger_dag_run")["event_logs"]
    assert [(entry["owner"], "quarantined" in entry["extra"]) for entry in logged] == [(daily.airflow.login[0], True)]


LIMIT = 100
INTERVAL = 6.0

ON_LAG = f"""\
pipeline: parcels
source: {{kafka: {{topics: [parcels]}}}}
decode: {{text: {{}}}}
sink: {{delta: {{path: parcels}}}}
schedule: on_lag
lag: {{max_records: {LIMIT}}}
"""


class OnLag(Stack):
    """One pipeline on lag."""

    def __init__(self, host: Host) -> None:
        super().__init__(host, "parcels", ON_LAG, options=f", poll_interval={INTERVAL}")
        self.topics.create("parcels", 2)

    def feed(self, count: int) -> None:
        self.topics.produce("parcels", [(n % 2, None, b"a parcel") for n in range(count)])

    def events(self) -> int:
        assets = self.airflow.call("GET", "/assets?uri_pattern=x-sluice://parcels/lag")["assets"]
        return int(self.airflow.call("GET", f"/assets/events?asset_id={assets[0]['id']}")["total_entries"])

    def looks(self, count: int) -> None:
        """Let so many looks pass."""
        time.sleep(count * INTERVAL / 2 + 1)

    @contextlib.contextmanager
    def until_it_says(self, words: str) -> Iterator[None]:
        """After the block, wait until the watcher has said something since the block began."""
        known = self.log.read_text(errors="replace").count(words)
        yield
        self.await_that(lambda: self.log.read_text(errors="replace").count(words) > known, words)

    def await_run(self, number: int) -> dict[str, Any]:
        """Wait for the run of this number to begin and to end; return it."""
        self.await_that(lambda: len(self.runs()) >= number, f"run {number} began", 240)
        self.await_that(lambda: self.runs()[number - 1]["state"] in ("success", "failed"), f"run {number} ended")
        return self.runs()[number - 1]

    def replace_triggerer(self) -> None:
        """Kill the triggerer as a machine that goes away does; what the watcher says is in the new one's log."""
        self.log = self.host.replace_triggerer()


def test_scheduler_starts_one_run_of_a_backlog_across_restarts_of_triggerer_and_broker(host: Host) -> None:
    on_lag = OnLag(host)
    on_lag.feed(LIMIT - 20)
    on_lag.begin()
    on_lag.await_that(lambda: "parcels: NEW" in on_lag.log.read_text(errors="replace"), "the watcher looks")
    on_lag.looks(2)
    assert on_lag.runs() == [], "below the limit"

    on_lag.feed(40)
    on_lag.await_that(lambda: on_lag.runs(), "a run began", 240)
    run = on_lag.runs()[0]
    assert (run["run_type"], run["logical_date"]) == ("asset_triggered", None)
    on_lag.replace_triggerer()  # in the middle of the run that its event started
    run = on_lag.await_run(1)
    assert run["state"] == "success"
    assert run["triggering_user_name"] is None

    on_lag.await_that(lambda: "parcels: OK" in on_lag.log.read_text(errors="replace"), "another triggerer took over")
    with on_lag.until_it_says("parcels: BACKLOG"):
        on_lag.feed(LIMIT - 20)
    on_lag.looks(2)
    assert len(on_lag.runs()) == 1, "neither repeated after the restart, nor started by too little"

    with on_lag.until_it_says("parcels: UNKNOWN"):
        on_lag.broker.kill()
    on_lag.looks(2)
    assert len(on_lag.runs()) == 1, "unknown starts nothing"
    with on_lag.until_it_says("parcels: BACKLOG"):
        on_lag.broker.start()
    on_lag.feed(40)
    assert on_lag.await_run(2)["state"] == "success"

    on_lag.looks(3)
    assert len(on_lag.runs()) == 2
    assert on_lag.events() >= 2  # one that Airflow makes no run of in time is sent again
    assert [on_lag.ledger.runs.account("parcels", run["dag_run_id"])["written"] for run in on_lag.runs()] == [120, 120]
