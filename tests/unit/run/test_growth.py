"""State that comes and goes with the traffic is no alarm; state from which nothing was removed for too long is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from tests.fixtures.specs import GOOD, write

from sluice.ledger import Ledger, StateRow, schema
from sluice.pipeline import load
from sluice.run.growth import alarm, warning

WINDOW = "window: {time: at, size: 1h, aggregates: {n: 'count(*)'}, watermark: 2h}\n"
DEDUPE = "dedupe: {keys: [id], time: at, within: 90m}\n"  # kept for 3 h, as the windows are


def save(live: int, removed: int = 0) -> list[dict[str, Any]]:
    return [{"operator": "save", "live": live, "updated": 1, "removed": removed, "memory": 1}]


def states(sizes: list[int], *, removed: tuple[int, ...] = (), apart: timedelta) -> list[StateRow]:
    ats = ((BEGIN + n * apart).isoformat() for n in range(len(sizes)))
    rows = zip(ats, sizes, strict=True)
    return [StateRow("r", at, 1, n, 0, 1, None, None, save(s, n in removed)) for n, (at, s) in enumerate(rows)][::-1]


BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
TEN = list(range(100, 111))


@pytest.mark.parametrize("of", [WINDOW, DEDUPE], ids=["window", "dedupe"])
@pytest.mark.parametrize(
    ("sizes", "more", "named"),
    [
        (TEN, {}, "from 100 to 110 bytes in 10 runs and 10 h"),
        ([300, *TEN], {}, "from 100 to 110 bytes in 10 runs and 10 h"),
        ([*TEN[:4], 103, *TEN[4:]], {}, "from 100 to 110 bytes in 10 runs and 11 h"),  # one changed nothing
        (TEN[1:], {}, None),  # too few
        (TEN, {"apart": MINUTE}, None),  # nothing was due to be removed yet
        (TEN, {"removed": (5,)}, None),  # it is cleaned, and more came
        ([*TEN, 109], {}, None),
        ([*TEN[:5], *[104] * 4, *TEN[5:]], {}, None),  # it rested for longer than anything is kept
        ([], {}, None),
    ],
)
def test_state_growth_without_cleaning_is_an_alarm(tmp_path: Path, of: str, sizes: Any, more: Any, named: Any) -> None:
    found = alarm(load(write(tmp_path, GOOD + of)), states(sizes, **{"apart": HOUR, **more}))
    assert found is None if named is None else named in (found or "")


def test_state_growth_limits_are_those_of_the_file(tmp_path: Path) -> None:
    def found(keys: str, rows: list[StateRow]) -> str | None:
        return alarm(load(write(tmp_path, GOOD + keys)), rows)

    few, many = states([1, 2, 3], apart=6 * HOUR), states(TEN, apart=HOUR)
    assert found(WINDOW + "state: {growing_runs: 2}", few)
    assert found(WINDOW + "state: {growing_runs: 0}", many) is None
    most = WINDOW + "state: {growing_runs: 0, max_bytes: 109}"
    assert "has 110 bytes of keys and values, more than state.max_bytes (109)" in (found(most, many) or "")
    assert found(most, many[1:]) is None
    assert found("", many) is None, "it keeps nothing any more"
    ever = "window: {time: at, size: 1h, aggregates: {n: 'count(*)'}, output: complete}"
    assert found(ever, many) is None, "it is kept for ever"


def test_state_growth_of_minutely_runs_is_read_back_as_far_as_state_is_kept(tmp_path: Path) -> None:
    """Ten days of them here, in pages; and no more than decide it."""
    spec = load(write(tmp_path, GOOD + "window: {time: at, size: 10d, aggregates: {n: 'count(*)'}, watermark: 2h}\n"))
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    minutes = 10 * 24 * 60 + 2 * 60
    same = {"epoch": 1, "watermark": 0, "bytes": 1, "keys": None, "windows": None}
    measured = [
        {"at": (BEGIN + n * MINUTE).isoformat(), "pipeline": spec.name, "run": f"r{n}", "type": "StateMeasured",
         "payload": {**same, "batch": n, "operators": save(100 + n)}}
        for n in range(minutes + 2000)
    ]  # fmt: skip
    with ledger._engine.begin() as connection:
        connection.execute(sa.insert(schema.event), measured)
    assert f"in {minutes:,} runs and" in (warning(ledger, spec) or "")
    read = list(ledger.facts.states(spec.name))[2999::-1]
    assert [row.run for row in read] == [f"r{n}" for n in range(minutes - 1000, minutes + 2000)]
