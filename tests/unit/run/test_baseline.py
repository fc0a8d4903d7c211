"""A run beside the accepted runs before it."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.fixtures.books import Place, split
from tests.fixtures.ledgers import attempt
from tests.unit.run.conftest import take_back

from sluice.facts.profile import ColumnProfile, Profile
from sluice.ledger import Ledger, schema
from sluice.ledger.events import Judged
from sluice.pipeline.history import History
from sluice.run.baseline import Check, Finding, broken_by, compare, judge, stale
from sluice.run.decision import accept, give_up

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def profile(rows: int, nulls: int = 0, mean: float = 10.0, low: float = 0, high: float = 20) -> Profile:
    values = rows - nulls
    amount = ColumnProfile(rows, nulls, "number", low, high, mean * values, values)
    stamp = NOW.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return Profile(rows, {"amount": amount, "_timestamp": ColumnProfile(rows, 0, "time", stamp, stamp)})


def broken(now: Profile, past: list[Profile], **keys: Any) -> list[str]:
    history = History(**{"volume": True, "at_least": 5, "columns": {"amount": ["nulls", "mean", "min", "max"]}, **keys})
    return [check.name for check in compare(history, now, past)[0] if not check.ok]


def test_constant_history_fails_a_run_that_is_far_off_and_none_by_a_hair() -> None:
    past = [profile(1000)] * 20
    for near in (profile(1000), profile(1080, nulls=2, mean=10.2, low=-0.3, high=20.4)):
        assert broken(near, past) == []
    assert broken(profile(1500, nulls=200, mean=14, low=-9, high=99), past) == [
        "volume", "nulls(amount)", "mean(amount)", "min(amount)", "max(amount)",
    ]  # fmt: skip
    assert broken(profile(500), past) == ["volume"]


def test_history_bears_half_of_the_runs_but_one_to_be_odd() -> None:
    past = [profile(1000)] * 11 + [profile(90_000, nulls=45_000, mean=500)] * 9
    assert broken(profile(1000), past) == []
    assert "volume" in broken(profile(90_000), past)


def test_history_deviations_are_robust() -> None:
    past = [profile(n) for n in (900, 1000, 1100, 1000, 900, 1100, 1000)]
    for deviations in (3, 6):
        (check,) = compare(History(volume=True, at_least=5, deviations=deviations), profile(1000), past)[0]
        assert (check.center, check.runs) == (1000, 7)
        assert check.high - check.center == pytest.approx(deviations * 1.4826 * 100)


@pytest.mark.parametrize("rows", [3, 40, 1000, 100_000])
def test_history_share_of_nulls_is_seldom_broken_by_chance(rows: int) -> None:
    """Runs of one population, of which now and then a small one comes."""
    chance = random.Random(rows)

    def drawn(n: int) -> Profile:
        return profile(n, nulls=min(n, sum(chance.random() < 0.02 for _ in range(n))))

    past = [drawn(1000) for _ in range(20)]
    several = 20 if rows > 10_000 else 200
    alarms = sum("nulls(amount)" in broken(drawn(rows), past, volume=False) for _ in range(several))
    assert alarms <= several * 0.03
    assert "nulls(amount)" in broken(profile(rows, nulls=rows), past, volume=False)


def test_history_of_too_few_runs_fails_nothing() -> None:
    history = History(volume=True, columns={"amount": ["nulls"]})
    checks, unknown = compare(history, profile(5, nulls=5), [profile(1000)] * 9)
    assert (checks, list(unknown)) == ([], ["history"])


def test_history_of_a_later_column_waits_for_its_own_runs() -> None:
    past = [profile(100)] * 3 + [Profile(100, {})] * 10
    checks, unknown = compare(History(columns={"amount": ["nulls"], "gone": ["mean"]}), profile(100, nulls=99), past)
    assert (checks, list(unknown)) == ([], ["history.nulls(amount)", "history.mean(gone)"])


def test_run_without_rows_is_judged_by_its_volume_alone() -> None:
    assert broken(Profile(), [profile(1000)] * 5) == ["volume"]


def test_check_shows_figures_and_no_least_value_of_the_data() -> None:
    nulls, low = Check("nulls", "a", 0.125, 0.001, -0.002, 0.004, 20), Check("min", "a", -77.0, 0, 0, 0, 20)
    assert all(part in nulls.why for part in ("12.5 %", "0.1 %", "0 % to 0.4 %"))
    assert ("77" in low.why, low.line()["this run"]) == (False, "-77")
    found = Finding(20, 5, (nulls, low), late="old")
    assert [item.what for item in broken_by(found)] == ["history.nulls(a)", "history.min(a)", "history.freshness"]


def test_freshness_is_by_the_newest_row() -> None:
    hours = timedelta(hours=2)
    assert stale(None, NOW, hours) is None
    assert stale(NOW - hours, NOW, hours) is None
    assert "2026-03-01T09:30:00+00:00, 2 h 30 min" in (stale(NOW - hours - timedelta(minutes=30), NOW, hours) or "")


# --- accepted runs -------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, ledger_url: str) -> Place:
    place = Place(tmp_path)
    place.ledger = Ledger.open(ledger_url)
    return place


def ran(place: Place, run: str, rows: int, verdict: str | None = "passed", **judgement: Any) -> None:
    start = 10 * len(place.ledger.runs.newest("p", limit=1000))
    place.commit(run, split(start, start + 10), facts=[profile(rows)])
    if verdict is not None:
        place.ledger.decide("p", run, Judged(verdict=verdict, judgement=judgement))


def idle(place: Place, run: str) -> None:
    with attempt(place.ledger, run):
        pass


def volumes(place: Place, limit: int = 20) -> list[int]:
    """Return the rows of the runs with which the next one is compared, newest first."""
    return [p.rows for p in place.ledger.profiles.accepted("p", before=1 << 40, limit=limit)]


def thousands(place: Place, count: int = 8) -> None:
    for number in range(count):
        ran(place, f"r{number}", 1000)


def judged(place: Place, history: History, *runs: str, held: bool = True) -> Finding:
    found = judge(place.ledger, "p", history, runs, held=held)
    assert found is not None
    return found


def volume(place: Place, *runs: str, held: bool = True) -> tuple[list[bool], list[str]]:
    """Whether the volume of some runs is as expected, and which figures are not judged."""
    found = judged(place, History(volume=True, at_least=5), *runs, held=held)
    return [check.ok for check in found.checks], list(found.unknown)


def test_baseline_has_accepted_live_runs_that_stand_newest_first(place: Place) -> None:
    for rows, (run, verdict, judgement) in enumerate([
        ("a", "passed", {}), ("b", "warned", {}), ("c", "failed", {}), ("d", None, {}), ("e", "error", {}),
        ("f", "passed", {}), ("waits", "failed", {"waits": [1, 5]}), ("retracted", "passed", {}),
        ("died", "passed", {"runs": ["died", "then"]}), ("then", "passed", {"runs": ["died", "then"]}),
    ], 1):  # fmt: skip
        ran(place, run, rows, verdict, **judgement)
    accept(place.ledger, "p", "waits", reason="fine")
    take_back(place, "retracted", 70, 72, batch=7)
    place.commit("redriven", split(0, 5), epoch=0, facts=[profile(11)])
    place.ledger.decide("p", "redriven", Judged(verdict="passed", judgement={}))
    assert judge(place.ledger, "p", History(volume=True), ["redriven"]) is None
    assert volumes(place) == [9 + 10, 6, 2, 1], "runs that were judged together count as one"
    accept(place.ledger, "p", "c", reason="Black Friday")
    assert volumes(place) == [19, 6, 3, 2, 1]
    assert volumes(place, limit=2) == [19, 6]
    before = place.ledger.runs.known("p", "b").sequence
    assert [p.rows for p in place.ledger.profiles.accepted("p", before=before, limit=9)] == [1], "none that came later"
    profiled = ["redriven", "then", "died", "retracted", "waits", *"fedcba"]
    assert place.ledger.profiles.runs("p", limit=20) == profiled
    assert place.ledger.profiles.runs("p", limit=20, standing=True) == [run for run in profiled if run != "retracted"]


def test_volume_of_a_run_after_a_held_one_is_no_fault(place: Place) -> None:
    thousands(place)
    ran(place, "more", 2000, "failed")
    assert volume(place, "more") == ([False], [])
    ran(place, "after", 2000)
    assert volume(place, "after") == ([], ["history.volume"])
    assert volume(place, "after", held=False) == ([False], []), "nothing had waited"
    ran(place, "old", 1000, "failed", excesses=[{"limit": "history.freshness", "verdict": "failed", "why": "old"}])
    ran(place, "flood", 9000)
    assert volume(place, "flood") == ([False], []), "a table that is not fresh holds nothing"
    ran(place, "few", 10)
    assert volume(place, "few") == ([False], [])
    ran(place, "bad", 1000, "failed", waits=[1, 9])
    ran(place, "published", 3000)
    assert volume(place, "published", held=False) == ([], ["history.volume"])
    ran(place, "normal", 2000)
    assert volume(place, "normal") == ([False], [])


def test_volume_of_runs_that_are_judged_together_may_be_that_of_as_many(place: Place) -> None:
    thousands(place)
    for run in ("died", "then"):
        ran(place, run, 1000)
    assert volume(place, "died", "then") == ([True], [])
    ran(place, "much", 4000)
    assert volume(place, "died", "much") == ([False], [])


def test_new_normal_is_not_compared_with_runs_before_it(place: Place) -> None:
    thousands(place)
    ran(place, "big", 2000, "failed")
    accept(place.ledger, "p", "big", reason="from now on", new_normal=True)
    assert volume(place, "big") == ([False], []), "judged again, it is what it was"
    assert volumes(place) == [2000]


@pytest.mark.parametrize("how", ["retracted", "given up"])
def test_new_normal_that_was_taken_back_is_none(place: Place, how: str) -> None:
    """The runs before it count again, and not only the few behind it."""
    ran(place, "a", 1)
    ran(place, "b", 2)
    ran(place, "odd", 3, "failed", **({"waits": [1, 9]} if how == "given up" else {}))
    accept(place.ledger, "p", "odd", reason="from now on", new_normal=True)
    assert place.ledger.profiles.normal_since("p") == ("odd", "from now on")
    if how == "given up":
        assert give_up(place.ledger, "p", "odd", reason="wrong after all") == (1, 9)
    else:
        take_back(place, "odd", 20, 22, batch=2)
    assert place.ledger.profiles.normal_since("p") is None
    assert volumes(place) == [2, 1]


def test_new_normal_begins_with_a_run_of_any_verdict(place: Place) -> None:
    thousands(place, 6)
    ran(place, "drop", 400, "failed")
    ran(place, "warn", 410, "warned")
    history = History(volume=True, at_least=5)
    assert [item.what for item in broken_by(judged(place, history, "warn"))] == ["history.volume"]
    for _ in range(2):
        assert accept(place.ledger, "p", "drop", reason="a customer left", new_normal=True) == "failed"
    assert volumes(place) == [410, 400]
    assert place.ledger.profiles.normal_since("p") == ("drop", "a customer left")
    assert [e["type"] for e in place.ledger.events("p")].count("NormalSet") == 1
    again = judged(place, history, "warn")
    assert (again.checks, again.note is not None) == ((), True)
    assert accept(place.ledger, "p", "warn", reason="and another", new_normal=True) == "warned"
    assert volumes(place) == [410]
    assert place.ledger.runs.account("p", "warn")["notes"] == ["what is normal begins with this run: and another"]


def test_freshness_needs_no_baseline_and_judges_a_run_without_records_too(place: Place) -> None:
    history = History(freshness="1h")
    idle(place, "first")
    found = judged(place, history, "first")
    assert (found.late, "history.freshness" in (found.note or "")) == (None, True)
    ran(place, "a", 1)
    idle(place, "idle")
    late = judged(place, history, "idle")
    assert "2026-03-01T12:00:00+00:00" in (late.late or "")
    assert [item.what for item in broken_by(late)] == ["history.freshness"]


def wrote(place: Place, run: str, number: int, at: datetime, *, epoch: int = 1) -> None:
    stamp = at.isoformat(timespec="microseconds")
    there = Profile(1, {"_timestamp": ColumnProfile(1, 0, "time", stamp, stamp)})
    place.commit(run, split(10 * number, 10 * number + 10), epoch=epoch, facts=[there])


def test_freshness_is_by_the_newest_row_of_all_runs(place: Place) -> None:
    now = datetime.now(UTC)
    wrote(place, "a", 0, now - timedelta(days=3))
    wrote(place, "b", 1, now - timedelta(minutes=10))
    for number in range(25):
        wrote(place, f"again-{number}", number, now - timedelta(days=30), epoch=0)
    idle(place, "a")
    assert judged(place, History(freshness="2h"), "a").late is None


def test_freshness_is_not_that_of_a_record_of_the_future(place: Place) -> None:
    """The clock of one producer was wrong; a time that is ahead by less than the limit counts."""
    late = []
    for n, at in enumerate([NOW, datetime(2099, 1, 1, tzinfo=UTC), datetime.now(UTC) + timedelta(minutes=10)]):
        wrote(place, f"r{n}", n, at)
        late.append(judged(place, History(freshness="1h"), f"r{n}").late is not None)
    assert late == [True, True, False]


def test_history_judges_a_part_of_a_run_by_its_excesses_alone() -> None:
    """Before its commit, a batch is compared with whole runs."""
    history = History(columns={"a": ["min", "max", "distinct", "nulls"]}, at_least=1)

    def column(low: float, high: float, distinct: int) -> Profile:
        return Profile(1000, {"a": ColumnProfile(1000, 0, "number", low, high, sketch=tuple(range(distinct)))})

    past = [column(0, 1000, 200)] * 3

    def broken(rows: Profile, of: str) -> list[str]:
        return [check.name for check in compare(history, rows, past, of=[of])[0] if not check.ok]

    assert broken(column(400, 600, 100), "columns") == ["min(a)", "max(a)", "distinct(a)"]
    assert broken(column(400, 600, 100), "parts") == []
    assert broken(column(-9000, 9000, 400), "parts") == ["min(a)", "max(a)", "distinct(a)"]


def test_baseline_is_found_among_ten_thousand_runs_at_once(place: Place) -> None:
    """The database must not look through the past of the pipeline for each run."""
    ran(place, "first", 1000)
    message, many = profile(1000).as_dict(), 10_000
    engine = place.ledger._engine
    columns = ("kind", "recovery", "epoch", "state", "attempts", "opened_at", "closed_at", "notes", "topic_ids")
    base = {name: getattr(place.ledger.runs.known("p", "first"), name) for name in columns}
    with engine.begin() as connection:
        start = 1 + connection.execute(sa.select(sa.func.max(schema.event.c.id))).scalar_one()
        runs, events = [], []
        for number in range(many):
            known = {"pipeline": "p", "run": f"r{number:05}"}
            runs.append({**known, "verdict": "passed", "judgement": {}, "sequence": start + number, **base})
            payload = {"epoch": 1, "batch": start + number, **message}
            events.append({**known, "at": "2026", "type": "RowsProfiled", "payload": payload})
        connection.execute(schema.run.insert(), runs)
        connection.execute(schema.event.insert(), events)
    looked: list[int] = []
    if engine.dialect.name == "sqlite":  # each call stands for a thousand steps of SQLite's machine
        engine.dispose()
        sa.event.listen(engine, "connect", lambda made, _: made.set_progress_handler(lambda: looked.append(1), 1000))
    found = judged(place, History(volume=True, freshness="1h"), f"r{many - 1:05}")
    assert len(looked) < 5_000, "through all profiles once for each run would be a hundred thousand"
    assert (found.runs, len(found.checks)) == (20, 1)
