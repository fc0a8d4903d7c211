"""Records from which the state of a new epoch is rebuilt: by the ledger, and no more than it needs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fixtures.books import Place, lost, span, split
from tests.fixtures.ledgers import attempt

from sluice.facts import Duplicates, Windows
from sluice.ledger.events import PipelineReset, batch_committed
from sluice.pipeline import Pipeline, load
from sluice.recovery import Route
from sluice.run.rebuild_plan import began, former_to, kept
from sluice.run.reset_plan import Reset

HOUR = 3_600_000
WINDOW = {"time": "at", "size": "1h", "by": ["k"], "aggregates": {"n": "count(*)"}, "watermark": "1h"}
DEDUPE = {"keys": ["k"], "time": "at", "within": "2h"}


def configured(place: Place, schema: str = "at TIMESTAMP, k STRING", **keys: Any) -> Pipeline:
    place.configure(decode={"json": {"schema": schema}}, **keys)
    return load(str(place.file))


@pytest.fixture
def spec(place: Place) -> Pipeline:
    return configured(place, window=WINDOW)


def commit(place: Place, spec: Pipeline, epoch: int, batch: int, start: int, end: int, **more: Any) -> None:
    """Record a batch whose records have the hours of their offsets as event times."""
    latest = (end - 1) * HOUR
    seen = {
        "late_by": max(0, start - 2) * HOUR, "late": [], "partitions": {"at": 0, "latest": [["t", 0, latest]]},
        "timing": spec.timing,
    }  # fmt: skip
    windows = {
        "rows": 0, "partly_late": 0, "latest": latest, "closed_to": max(0, end - 2) * HOUR,
        "times": [["t", 0, start, end, start * HOUR, latest]],
    }  # fmt: skip
    windowed = spec.window is not None
    fact = Windows.from_dict(seen | windows) if windowed else Duplicates.from_dict({**seen, "duplicates": []})
    accounts = [split(start, end, **more.pop("parts", {}))]
    with attempt(place.ledger, f"run {epoch}-{batch}", epoch=epoch) as lease:
        place.ledger.record(lease, *batch_committed(epoch, batch, accounts, facts=[fact], **more))


def reset(place: Place, epoch: int, *, rebuild: bool, truncated: bool = False) -> None:
    seen = Reset(epoch, Route.DIRECT, {"t": {0: 0}}, (), truncated, (), {}, "x", rebuild=rebuild)
    with attempt(place.ledger, f"reset {epoch}", kind="reset", epoch=epoch - 1) as lease:
        place.ledger.record(lease, PipelineReset(**seen.as_dict()))


def test_rebuild_reads_only_batches_of_open_windows(place: Place, spec: Pipeline) -> None:
    commit(place, spec, 1, 0, 0, 6)
    commit(place, spec, 1, 1, 6, 10)
    commit(place, spec, 1, 2, 10, 12, parts={"filtered": 2})
    reset(place, 2, rebuild=True)
    found = kept(place.ledger, spec, 2)
    assert found.ranges == (span(6, 10),), "those before are closed, and of those behind no window has any"
    assert (found.records, found.written, found.watermark) == (4, 4, 10 * HOUR)
    assert began(place.ledger, "p", 2) == 1
    assert found.latest == {("t", 0): 11 * HOUR}
    assert former_to(place.ledger, spec, 2, rebuilt=True) == 10 * HOUR
    assert former_to(place.ledger, spec, 2, rebuilt=False) == 12 * HOUR, "all that were begun"


def test_rebuild_reads_no_lost_range(place: Place, spec: Pipeline) -> None:
    commit(place, spec, 1, 0, 0, 4, parts={"written": 2, "lost": 2}, lost=[lost(1, 3)])
    found = kept(place.ledger, spec, 2)
    assert (found.ranges, found.records) == ((span(0, 1), span(3, 4)), 2)


def test_rebuild_goes_back_over_epochs(place: Place, spec: Pipeline) -> None:
    commit(place, spec, 1, 0, 0, 4)
    reset(place, 2, rebuild=False)
    commit(place, spec, 2, 0, 4, 6)
    reset(place, 3, rebuild=True)
    commit(place, spec, 3, 1, 6, 7)
    reset(place, 4, rebuild=False)  # nothing was read in it, so it dropped nothing
    reset(place, 5, rebuild=True)
    assert began(place.ledger, "p", 5) == 2
    # the second epoch wrote no window of the first one's records, and that stays
    assert former_to(place.ledger, spec, 5, rebuilt=True) == max(spec.window.last_end(3 * HOUR), 5 * HOUR)  # type: ignore[union-attr]
    assert kept(place.ledger, spec, 5).ranges == (span(4, 7),)


def test_rebuild_goes_back_to_the_last_truncation(place: Place, spec: Pipeline) -> None:
    commit(place, spec, 1, 0, 0, 4)
    reset(place, 2, rebuild=False, truncated=True)
    reset(place, 3, rebuild=True)
    found = kept(place.ledger, spec, 3)
    assert (found.ranges, found.watermark) == ((), 0)
    assert began(place.ledger, "p", 3) == 2
    assert former_to(place.ledger, spec, 3, rebuilt=True) is None


def test_rebuild_with_another_event_time_reads_everything(place: Place, spec: Pipeline) -> None:
    commit(place, spec, 1, 0, 0, 6)
    commit(place, spec, 1, 1, 6, 10)
    found = kept(place.ledger, configured(place, "at TIMESTAMP, k STRING, v INT", window=WINDOW), 2)
    assert (found.ranges, found.latest) == ((span(0, 10),), {})


def test_rebuild_of_dedupe_reads_batches_whose_keys_are_kept(place: Place) -> None:
    deduped = configured(place, dedupe=DEDUPE)
    commit(place, deduped, 1, 0, 0, 4)
    commit(place, deduped, 1, 1, 4, 9)
    held = configured(place, dedupe={**DEDUPE, "hold": {"idle_after": "9h"}})
    other = configured(place, "at TIMESTAMP, k STRING, seen TIMESTAMP", dedupe={**DEDUPE, "time": "seen"})
    for spec, expected, why in (
        (deduped, (span(4, 9), 6 * HOUR), "the latest event time less two hours"),
        (held, (span(0, 9), 2 * HOUR), "as far as a batch was judged by it"),
        (other, (span(0, 9), 0), "by another event time nothing is known of them"),
    ):
        found = kept(place.ledger, spec, 2)
        assert (*found.ranges, found.watermark) == expected, why
