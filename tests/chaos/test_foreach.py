"""A writer of the user's gets each row at least once, under ids by which it can tell what it has."""

from __future__ import annotations

import pytest
from tests.fixtures.outward import WriterSandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]


@pytest.mark.parametrize(
    "points",
    [
        ("rows-handed-over",),
        pytest.param(
            ("before-sink-commit", "rows-handed-over", "sink-committed", "quarantine-committed", "batch-recorded"),
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_batch_is_handed_over_again_under_the_same_ids(into_writer: WriterSandbox, points: tuple[str, ...]) -> None:
    sandbox = into_writer
    sandbox.configure(quality={"max_quarantined": "100%"})
    for number, point in enumerate(points):
        sandbox.feed(5, bad_every=3)
        sandbox.run(f"killed {number}", kill_at=point)
    sandbox.run("last")
    seen: dict[tuple[str, str], list[tuple[str, list[int]]]] = {}
    for row in sandbox.lines():
        attempts = seen.setdefault((row["batch"], row["in"]), [])
        if not attempts or attempts[-1][0] != row["run"]:
            attempts.append((row["run"], []))
        attempts[-1][1].append(row["_offset"])
    assert max(map(len, seen.values())) == 2, "one batch was handed over twice"
    assert all(offsets == attempts[0][1] == sorted(offsets) for attempts in seen.values() for _, offsets in attempts)
    assert set(sandbox.handed_over()) | set(sandbox.quarantine()) == set(sandbox.on_broker())
    sandbox.assert_balanced()


@pytest.mark.long
def test_a_writer_that_knows_what_it_has_holds_each_row_once(into_writer: WriterSandbox) -> None:
    sandbox = into_writer
    sandbox.configure(sink={"foreach": {"python": "collector:Once"}})
    for point in ("rows-handed-over", "sink-committed"):
        sandbox.feed(5)
        sandbox.run("killed", kill_at=point)
    sandbox.run("last")
    sandbox.assert_exact()
