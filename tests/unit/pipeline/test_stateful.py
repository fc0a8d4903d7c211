"""``window``, ``dedupe`` and ``processor``: columns, defaults, and which changes keep the state of earlier runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fixtures.pipelines import loaded, modelled

from sluice.pipeline import load
from sluice.recovery import Recovery
from sluice.shipped import CHECKOUT


@pytest.mark.parametrize("base", ["window", "dedupe", "processor"])
def test_stateful_pipeline_recovers_without_skipping_records(base: str) -> None:
    pipeline = modelled(base=base)
    assert pipeline.keeps == base
    assert [r for r in Recovery if pipeline.refusal(r) is None] == [Recovery.REPLAY, Recovery.WAL, Recovery.HOT]


def test_window_has_defaults_and_columns() -> None:
    window = modelled("window.by: [id]", "window").window
    assert window is not None
    assert window.columns == ["window_start", "window_end", "id", "n"]
    assert (window.step, window.output) == (window.size, "append")


def test_session_is_defined_by_its_gap() -> None:
    window = modelled(base="session").window
    assert window is not None
    assert (window.definition["gap"], "size" in window.definition) == (1800.0, False)
    assert window.columns == ["window_start", "window_end", "id", "n"]
    # an event time may be a part of a millisecond later
    assert window.last_end(5) == 1_800_006


def test_complete_window_has_no_watermark_and_no_intervals() -> None:
    pipeline = modelled(base="complete")
    assert pipeline.window is not None
    assert pipeline.window.kept is None
    assert "output: complete" in (pipeline.no_intervals or "")


def test_dedupe_takes_the_records_time_by_default() -> None:
    pipeline = modelled("dedupe.time: null", "dedupe")
    assert pipeline.dedupe is not None
    assert pipeline.dedupe.time == "_timestamp"
    assert not pipeline.aggregates


def test_processor_writes_rows_of_no_single_record(tmp_path: Path) -> None:
    pipeline = loaded(tmp_path, base="processor")
    assert pipeline.stateful is pipeline.processor is not None
    assert pipeline.kept_by == "a processor"
    assert pipeline.aggregates
    assert pipeline.processor.columns == ["id", "n"]
    example = load(CHECKOUT / "include/pipelines/examples/flights_rotations.yaml")
    assert example.processor is not None
    assert example.processor.by == ("tailnum",)


@pytest.mark.parametrize(
    ("base", "change", "definition", "absorption"),
    [
        ("window", "window.watermark: 3h, window.ahead: 2d", True, None),
        ("window", 'window.aggregates: {n: " count( * ) "}', False, None),
        ("window", "window.slide: 1h", True, None),
        ("window", "window.size: 2h", False, None),
        ("window", "window.slide: 30m", False, None),
        ("window", "window.by: [id]", False, None),
        ("window", "window.time: _timestamp", False, None),
        ("window", "window.output: update", False, None),
        ("dedupe", "", True, True),
        ("dedupe", "dedupe.within: 2h", True, False),
        ("dedupe", "dedupe.ahead: 2d", True, False),
        ("dedupe", "dedupe.hold: {idle_after: 1d}", True, True),
        ("dedupe", "dedupe.keys: [id, at]", False, False),
        ("dedupe", "dedupe.time: _timestamp", False, False),
        ("processor", "", True, True),
        ("processor", "processor.watermark: 2h", True, False),
        ("processor", "processor.ahead: 2d", True, False),
        ("processor", "processor.hold: {idle_after: 1d}", True, True),
        ("processor", "processor.flush: {after: 1d}", True, True),
        ("processor", "processor.schema: id STRING", True, False),
        ("processor", "processor.by: [id, at]", False, False),
        ("processor", "processor.time: _timestamp", False, False),
    ],
)
def test_definition_is_what_kept_state_depends_on(
    base: str, change: str, definition: bool, absorption: bool | None
) -> None:
    before, after = modelled(base=base), modelled(change, base)
    assert before.stateful is not None
    assert after.stateful is not None
    assert (before.stateful.definition == after.stateful.definition) is definition
    assert absorption is None or (before.absorption == after.absorption) is absorption


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ("window.size: 2h, window.aggregates: {m: max(v)}, window.watermark: 3h", True),
        ("window.time: _timestamp", False),
        ("rules: [{name: r, sql: {passes: \"k > 'a'\"}}]", False),
        ("transform: {sql: \"SELECT * FROM source WHERE k > 'a'\"}", False),
    ],
)
def test_known_event_times_hold_until_the_rows_are_made_otherwise(change: str, same: bool) -> None:
    assert (modelled(change, "window").timing == modelled(base="window").timing) is same
    assert modelled('transform: {python: "sluice.text:length"}', "window").timing is None


@pytest.mark.parametrize(
    ("decoder", "making", "absorption", "aggregation"),
    [
        ("json", "9e5e97d7dadca960", "6d0f4a9c0c125008", "b89ed8b7eb895383"),
        ("csv", "97f96ade1d2817ca", "efd25435c0cde464", "bf8bc36914b31d39"),
    ],
)
def test_digests_in_checkpoints_stay_as_earlier_versions_wrote_them(
    decoder: str, making: str, absorption: str, aggregation: str
) -> None:
    """A version that gave others would take the state for that of another definition: they change only on purpose."""
    spec = modelled(f'decode: {{{decoder}: {{schema: "id BIGINT, at TIMESTAMP"}}}}, window.watermark: 1h', "window")
    assert (spec.making, spec.absorption, spec.aggregation) == (making, absorption, aggregation)
    assert spec.timing == f"{making} at"
