"""The account of runs, in SQLite and in PostgreSQL."""

from __future__ import annotations

import importlib
import socket
import threading
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations

from sluice.audit import audit
from sluice.errors import ConfigError
from sluice.ledger import REDRIVEN, Epoch, Lease, Ledger, schema
from sluice.ledger.store import LedgerError, open_engine
from sluice.ranges import Counts, LostRange, OffsetRange, RangeAccount, Times
from sluice.recovery import Route

PASSWORD = "hunter2"


def split(start: int, end: int, partition: int = 0, **parts: int) -> RangeAccount:
    counts = Counts(**(parts or {"written": end - start}))
    return RangeAccount(OffsetRange("t", partition, start, end), counts)


def plan(ledger: Ledger, lease: Lease, *ranges: OffsetRange, ids: dict[str, str] | None = None) -> None:
    ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=ranges, topic_ids=ids or {"t": "id-1"})


def commit(ledger: Ledger, lease: Lease, batch: int, *accounts: RangeAccount, run: str | None = None) -> None:
    ledger.batch_started(lease, epoch=1, batch=batch, ranges=[a.range for a in accounts])
    ledger.batch_committed(lease, epoch=1, batch=batch, accounts=accounts, run=run)


def derived(url: str) -> dict[str, list[dict[str, Any]]]:
    engine = open_engine(url)
    with engine.connect() as connection:
        return {
            table.name: [dict(r) for r in connection.execute(sa.select(table).order_by(*table.primary_key)).mappings()]
            for table in schema.DERIVED
        }


def test_events_tell_the_story_and_the_tables_follow(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    with ledger.acquire("p", "r1") as lease:
        plan(ledger, lease, OffsetRange("t", 0, 0, 10))
        assert ledger.run("p", "r1").state == "open"
        commit(ledger, lease, 0, split(0, 6, written=3, filtered=1, quarantined=1, absent=1), split(0, 2, 1))
        commit(ledger, lease, 1, split(6, 10))
        ledger.judged(lease, "p", "r1", verdict="passed", judgement={"rows": 7, "names": ["ä", None]})
        ledger.run_closed(lease, state="done", seconds=1.5, verdict="passed")

    assert [e["type"] for e in ledger.events("p")] == [
        "RunPlanned", "BatchStarted", "BatchCommitted", "BatchStarted", "BatchCommitted", "Judged", "RunClosed",
    ]  # fmt: skip
    row = ledger.run("p", "r1")
    assert row is not None
    assert (row.state, row.attempts, row.seconds, row.verdict, row.epoch) == ("done", 1, 1.5, "passed", 1)
    assert row.judgement == {"rows": 7, "names": ["ä", None]}
    assert row.topic_ids == ledger.topic_ids("p") == {"t": "id-1"}
    assert ledger.account("p", "r1") == {
        "run": "r1", "recovery": "replay", "planned": 12, "written": 9, "filtered": 1, "quarantined": 1, "absent": 1,
        "lost": 0, "verdict": "passed", "seconds": 1.5,
    }  # fmt: skip
    last = ledger.last_batch("p", 1)
    assert last is not None
    assert (last.batch, last.run, last.state) == (1, "r1", "committed")
    assert ledger.accounts("p", batch=last) == [split(6, 10)]
    assert audit(ledger, "p").balanced


def test_a_run_that_begins_again_is_another_attempt_of_the_same_run(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    with ledger.acquire("p", "r1") as lease:
        plan(ledger, lease)
        ledger.run_closed(lease, state="failed", error={"what": "broken"})
    first = ledger.run("p", "r1")
    with ledger.acquire("p", "r1") as lease:
        plan(ledger, lease, ids={"t": "id-2"})
    again = ledger.run("p", "r1")
    assert (first.state, first.error, first.attempts) == ("failed", {"what": "broken"}, 1)
    assert (again.state, again.error, again.closed_at, again.attempts) == ("open", None, None, 2)
    assert (again.opened_at, again.sequence) == (first.opened_at, first.sequence)
    assert ledger.topic_ids("p") == {"t": "id-2"}


def test_what_was_known_of_topics_is_that_of_the_last_plan_whatever_run_it_was(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    for run, ids in (("a", {}), ("b", {}), ("a", {"t": "id-1"})):
        with ledger.acquire("p", run) as lease:
            ledger.run_planned(lease, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids=ids)
    assert ledger.topic_ids("p") == {"t": "id-1"}


def test_a_verdict_covers_no_rows_that_a_later_attempt_wrote(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    with ledger.acquire("p", "r1") as lease:
        plan(ledger, lease)
        commit(ledger, lease, 0, split(0, 4))
        ledger.judged(lease, "p", "r1", verdict="passed", judgement={"rows": 4})
        ledger.run_closed(lease, state="done", verdict="passed")
    with ledger.acquire("p", "r1") as lease:
        plan(ledger, lease)
        commit(ledger, lease, 1, split(4, 9))
        ledger.run_closed(lease, state="failed", error={"what": "died before it was judged"})
    row = ledger.run("p", "r1")
    assert (row.verdict, row.judgement) == (None, None)
    assert ledger.unjudged("p") == ["r1"]


def test_recording_a_batch_twice_counts_it_once(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    with ledger.acquire("p", "r1") as lease:
        plan(ledger, lease)
        commit(ledger, lease, 0, split(0, 4), split(0, 4, 1))
        once = derived(ledger_url)["sluice_account"]
        ledger.batch_committed(lease, epoch=1, batch=0, accounts=[split(0, 4), split(0, 4, 1)])
        assert derived(ledger_url)["sluice_account"] == once
        assert ledger.account("p", "r1")["planned"] == 8
        ledger.batch_committed(lease, epoch=1, batch=1, accounts=[])
        assert ledger.last_batch("p", 1).batch == 1


def test_a_reconciled_batch_belongs_to_the_run_that_wrote_it(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    with ledger.acquire("p", "a") as lease:
        plan(ledger, lease)
        ledger.batch_started(lease, epoch=1, batch=0, ranges=[])
    with ledger.acquire("p", "b") as lease:
        ledger.batch_committed(lease, epoch=1, batch=0, accounts=[split(0, 4)], run="a")
        ledger.run_closed(lease, state="abandoned", run="a")
        plan(ledger, lease)
    assert ledger.account("p", "a")["written"] == 4
    assert ledger.account("p", "b")["written"] == 0
    assert ledger.unjudged("p") == ["a"]
    ledger.judged(None, "p", "a", verdict="passed", judgement={})
    assert ledger.unjudged("p") == []


def test_rows_of_a_run_that_failed_behind_them_wait_for_a_verdict_too(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    for run, batch in (("rows", 0), ("none", None)):
        with ledger.acquire("p", run) as lease:
            plan(ledger, lease)
            if batch is not None:
                ledger.batch_committed(lease, epoch=1, batch=batch, accounts=[split(0, 4)])
            ledger.run_closed(lease, state="failed", error={"exit_code": 20})
    assert ledger.unjudged("p") == ["rows"]


def test_the_tables_can_be_made_anew_from_the_events(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    with ledger.acquire("p", "a") as lease:
        plan(ledger, lease)
        commit(ledger, lease, 0, split(0, 3, written=2, absent=1))
        commit(ledger, lease, 0, split(0, 3, written=2, absent=1))
        ledger.batch_started(lease, epoch=1, batch=1, ranges=[])
    with ledger.acquire("p", "b") as lease:
        ledger.batch_committed(lease, epoch=1, batch=1, accounts=[split(3, 9)], run="a")
        ledger.run_closed(lease, state="abandoned", run="a")
        plan(ledger, lease)
        plan(ledger, lease)
        ledger.run_closed(lease, state="failed", seconds=2.0, error={"type": "SinkError"})
    with ledger.acquire("q", "c") as lease:
        plan(ledger, lease, ids={})
        ledger.epoch_opened(lease, epoch=2, route=Route.LOG, positions={"t": {0: 4, 11: 2}})
        ledger.degraded(lease, "less than promised")
        segment = {"path": "batches/e2-000000-x/part", "records": 5, "length": 100}
        ledger.segment_sealed(lease, epoch=2, batch=0, segments=[segment])
        lost = LostRange(OffsetRange("t", 0, 4, 9), "poison", {"offset": 4, "value": "x"})
        ledger.batch_committed(lease, epoch=2, batch=0, accounts=[split(4, 9, lost=5)], lost=[lost])
        ledger.batch_committed(lease, epoch=REDRIVEN, batch=0, accounts=[split(5, 7)], redriven="lost")
        left = {"epoch": 2, "batch": 0, "segments": 0, "records": 0, "bytes": 0}
        ledger.segments_cleaned(lease, {"batches": [left]})
        ledger.interval_resolved(
            lease, "2013-01-01T00:00:00Z/2013-02-01T00:00:00Z", ranges=[OffsetRange("t", 0, 4, 9)], whole=True,
            topic_ids={"t": "id"},
        )  # fmt: skip
        ledger.batch_committed(
            lease, epoch=-1, batch=0, accounts=[split(4, 9)], replaced={OffsetRange("t", 0, 4, 9): (3, 1)}
        )
        known = Times(OffsetRange("t", 0, 9, 12), 1356998400000, 1356998400007)
        seen = replace(split(9, 14), times=(known, Times(OffsetRange("t", 0, 12, 14), 5, 6)))
        ledger.batch_committed(lease, epoch=2, batch=1, accounts=[seen])
        ledger.times_found(lease, [known, Times.none(OffsetRange("t", 1, 0, 3))])
        assert ledger.times("q") == [*seen.times, Times.none(OffsetRange("t", 1, 0, 3))]
        ledger.judged(lease, "q", "c", verdict="empty", judgement={})
        ledger.run_closed(lease, state="done")
    before = derived(ledger_url)
    assert all(before.values())
    count = ledger.rebuild()
    assert derived(ledger_url) == before
    assert count == len(ledger.events("p")) + len(ledger.events("q"))

    engine = open_engine(ledger_url)
    with engine.begin() as connection:
        for table in schema.DERIVED:
            connection.execute(table.delete())
    assert not any(derived(ledger_url).values())
    ledger.rebuild()
    assert derived(ledger_url) == before


def test_lost_ranges_stay_open_until_they_are_redriven_piece_by_piece(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)

    def lost(state: str | None = "open") -> list[tuple[int, int, str]]:
        return [(r.range.start, r.range.end, r.state) for r in ledger.lost("p", state=state)]

    with ledger.acquire("p", "r") as lease:
        plan(ledger, lease)
        items = [LostRange(OffsetRange("t", 0, 0, 10), "gone"), LostRange(OffsetRange("t", 1, 3, 4), "poison")]
        accounts = [split(0, 12, written=2, lost=10), split(0, 4, 1, written=3, lost=1)]
        ledger.batch_committed(lease, epoch=1, batch=0, accounts=accounts, lost=items)
        assert lost() == [(0, 10, "open"), (3, 4, "open")]
        ledger.batch_committed(lease, epoch=REDRIVEN, batch=0, accounts=[split(4, 6)], redriven="lost")
        assert lost() == [(0, 4, "open"), (6, 10, "open"), (3, 4, "open")]
        assert lost("redriven") == [(4, 6, "redriven")]
        # the same facts again, as after a crash: nothing is opened or closed anew
        ledger.batch_committed(lease, epoch=1, batch=0, accounts=accounts, lost=items)
        ledger.batch_committed(lease, epoch=REDRIVEN, batch=0, accounts=[split(4, 6)], redriven="lost")
        assert lost() == [(0, 4, "open"), (6, 10, "open"), (3, 4, "open")]
    assert [r.range.start for r in ledger.lost("p", run="r")] == [0, 6, 3]
    assert ledger.lost("p", run="other") == []
    assert {r.redriven_by for r in ledger.lost("p", state="redriven")} == {"r"}
    assert ledger.redriven("p") == [(split(4, 6), "lost")]
    assert sum(a.counts.lost for a in ledger.accounts("p")) == 11, "what was redriven is no part of the live account"


def test_the_newest_epoch_counts_and_may_change_its_route(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    with ledger.acquire("p", "r") as lease:
        ledger.epoch_opened(lease, epoch=1, route=Route.LOG, positions=None)
        assert ledger.epoch("p") == Epoch(1, Route.LOG, None)
        ledger.epoch_opened(lease, epoch=2, route=Route.DIRECT, positions={"t": {0: 5, 10: 7}})
        ledger.epoch_opened(lease, epoch=1, route=Route.DIRECT, positions=None)
    assert ledger.epoch("p") == Epoch(2, Route.DIRECT, {"t": {0: 5, 10: 7}})


def test_a_ledger_of_the_first_version_is_migrated_with_its_history(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    with ledger.acquire("p", "r") as lease:
        plan(ledger, lease)
        commit(ledger, lease, 0, split(0, 6))
        ledger.run_closed(lease, state="done", seconds=1.0)
    before = derived(ledger_url)
    engine = sa.create_engine(ledger_url)
    first = importlib.import_module("sluice.ledger.migrations.versions.v0001_first")
    with engine.begin() as connection:
        for table in schema.DERIVED:
            connection.execute(sa.text(f"DROP TABLE {table.name}"))
        connection.execute(sa.text("CREATE TABLE kept AS SELECT * FROM sluice_event"))
        for name in ("sluice_event", "sluice_lease"):
            connection.execute(sa.text(f"DROP TABLE {name}"))
        with Operations.context(MigrationContext.configure(connection)):
            first.upgrade()
        connection.execute(sa.text("INSERT INTO sluice_event SELECT * FROM kept"))
        connection.execute(sa.text("DROP TABLE kept"))
        connection.execute(sa.text(f"UPDATE {schema.VERSION_TABLE} SET version_num = '0001'"))
    engine.dispose()
    Ledger.open(ledger_url)
    assert derived(ledger_url) == before


def test_questions_about_nothing_have_answers(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    assert (ledger.run("p", "r"), ledger.runs("p"), ledger.events("p"), ledger.accounts("p")) == (None, [], [], [])
    assert (ledger.epoch("p"), ledger.last_batch("p", 1), ledger.topic_ids("p")) == (
        Epoch(1, Route.DIRECT, None), None, {},
    )  # fmt: skip
    with pytest.raises(KeyError):
        ledger.account("p", "r")


def test_the_newest_come_first_and_events_in_their_order(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    for run in ("a", "b", "c"):
        with ledger.acquire("p", run) as lease:
            plan(ledger, lease)
    with ledger.acquire("p", "a") as lease:
        ledger.run_closed(lease, state="done")
    assert [r.run for r in ledger.runs("p")] == ["c", "b", "a"]
    assert [r.run for r in ledger.runs("p", limit=2)] == ["c", "b"]
    assert [r.run for r in ledger.runs("p", state="done")] == ["a"]
    assert [e["run"] for e in ledger.events("p", limit=2)] == ["c", "a"]


def test_an_audit_names_gaps_and_overlaps(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    with ledger.acquire("p", "r") as lease:
        plan(ledger, lease)
        commit(ledger, lease, 0, split(0, 5), split(0, 5, 1), split(2, 5, 2))
        commit(ledger, lease, 1, split(6, 9), split(4, 9, 1), split(5, 9, 2))
    report = audit(ledger, "p")
    assert not report.balanced
    assert report.problems == [
        "a gap between t-0 [0, 5) and t-0 [6, 9)", "an overlap between t-1 [0, 5) and t-1 [4, 9)",
    ]  # fmt: skip
    good = report.partitions[2]
    assert (good["start"], good["end"], good["written"]) == (2, 9, 7)


def test_an_audit_names_an_account_that_was_tampered_with(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    with ledger.acquire("p", "r") as lease:
        plan(ledger, lease)
        commit(ledger, lease, 0, split(0, 5))
    with open_engine(ledger_url).begin() as connection:
        connection.execute(schema.account.update().values(written=4))
    report = audit(ledger, "p")
    assert not report.balanced
    assert "t-0 [0, 5) does not balance" in report.problems[0]


def test_the_migrations_lead_to_the_tables_that_the_code_names(ledger_url: str) -> None:
    with open_engine(ledger_url).connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": schema.VERSION_TABLE})
        assert compare_metadata(context, schema.metadata) == []
        assert context.get_current_revision() == schema.HEAD


def test_several_processes_may_make_the_same_ledger_at_once(ledger_url: str) -> None:
    barrier, failures = threading.Barrier(4), []

    def make() -> None:
        barrier.wait()
        try:
            Ledger.open(ledger_url).runs()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_ledger_of_a_newer_version_is_left_alone(ledger_url: str) -> None:
    with open_engine(ledger_url).begin() as connection:
        connection.execute(sa.text(f"UPDATE {schema.VERSION_TABLE} SET version_num = '9999'"))
    with pytest.raises(ConfigError, match="9999"):
        Ledger.open(ledger_url)


def test_a_database_that_does_not_answer_is_named_without_its_password() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        with pytest.raises(LedgerError, match="cannot be opened") as caught:
            Ledger.open(f"postgresql+psycopg2://sluice:{PASSWORD}@127.0.0.1:{port}/ledger")
    assert "127.0.0.1" in caught.value.what
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


def test_what_is_no_database_url_is_refused_without_being_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        Ledger.open(f"{PASSWORD} is no url")
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("scheme", ["postgres", "postgresql+nosuchdriver", "mysql+nosuch"])
def test_a_driver_that_is_not_there_is_a_mistake_of_the_url(scheme: str) -> None:
    with pytest.raises(ConfigError, match="there is no driver") as caught:
        Ledger.open(f"{scheme}://sluice:{PASSWORD}@127.0.0.1/ledger")
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


def test_a_ledger_that_breaks_while_it_is_used_is_a_typed_error(tmp_path: Path) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    lease = ledger.acquire("p", "r")
    with open_engine(f"sqlite:///{tmp_path}/ledger.db").begin() as connection:
        connection.execute(sa.text("DROP TABLE sluice_event"))
    with pytest.raises(LedgerError, match="does not answer"):
        plan(ledger, lease)
    assert ledger.run("p", "r") is None
