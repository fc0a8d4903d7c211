"""What a pipeline may ask beside the state that it keeps from run to run: ``window``, ``dedupe`` or ``processor``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.pipeline.sections import Rows

if TYPE_CHECKING:
    from sluice.pipeline.model import Pipeline

__all__ = ["refuse_stateful"]


def refuse_stateful(pipeline: Pipeline) -> None:
    """Refuse what a pipeline with state cannot do.

    Raises
    ------
    ValueError
        With the key in question, and the way out.
    """
    if pipeline.window is not None:
        _refuse_window(pipeline)
    if pipeline.dedupe is not None:
        _refuse_dedupe(pipeline)
    if pipeline.processor is not None:
        _refuse_processor(pipeline)


def _refuse_window(pipeline: Pipeline) -> None:
    window = pipeline.window
    assert window is not None
    _refuse_upsert(pipeline, "window", "which merges windows by itself with output: update")
    if not pipeline.sink.kind.delta:
        raise ValueError(f"window: sink.{pipeline.sink.key} cannot take windows yet: choose sink.delta")
    if pipeline.rows not in (Rows.ONE, Rows.FILTER):
        raise ValueError(
            f"window: rows: {pipeline.rows} does not say which record a row came from, and each record is counted as "
            "absorbed or late: the transform before a window must have rows: one or filter"
        )
    if window.flush is not None:
        _refuse_waiting(pipeline, "window.flush closes windows")
    if window.output != "append" and pipeline.sink.config.partition_columns:
        raise ValueError(
            f"sink.{pipeline.sink.key}.partition_by: window.output: {window.output} cannot replace rows of a "
            "partitioned table yet: leave partition_by out, or choose output: append"
        )
    if lacking := [name for name in pipeline.sink.config.partition_columns if name not in window.columns]:
        raise ValueError(
            f"sink.{pipeline.sink.key}.partition_by: {lacking[0]!r} is not a column of the windows, which are: "
            f"{', '.join(window.columns)}"
        )


def _refuse_dedupe(pipeline: Pipeline) -> None:
    if pipeline.window is not None:
        raise ValueError(
            "dedupe beside window: Sluice cannot do both in one pipeline yet: drop duplicates in a pipeline of its "
            "own, whose sink is the source of the one with the window"
        )
    _refuse_upsert(pipeline, "dedupe", "which keeps the first row of a key, not the newest")
    if not pipeline.sink.kind.delta:
        raise ValueError(f"dedupe: sink.{pipeline.sink.key} cannot take deduplicated rows yet: choose sink.delta")
    if pipeline.rows not in (Rows.ONE, Rows.FILTER):
        raise ValueError(
            f"dedupe: rows: {pipeline.rows} does not say which record a row came from, and each record is counted as "
            "written, late or a duplicate: the transform must have rows: one or filter"
        )


def _refuse_processor(pipeline: Pipeline) -> None:
    processor = pipeline.processor
    assert processor is not None
    if (other := pipeline.window or pipeline.dedupe) is not None:
        key = "window" if other is pipeline.window else "dedupe"
        raise ValueError(
            f"processor beside {key}: Sluice cannot do both in one pipeline yet: put one into a pipeline of its "
            "own, whose sink is the source of the other"
        )
    _refuse_upsert(pipeline, "processor", "whose rows are appended")
    if not pipeline.sink.kind.delta:
        raise ValueError(f"processor: sink.{pipeline.sink.key} cannot take its rows yet: choose sink.delta")
    if pipeline.rows not in (Rows.ONE, Rows.FILTER):
        raise ValueError(
            f"processor: rows: {pipeline.rows} does not say which record a row came from, and each record is counted "
            "as absorbed or late: the transform before it must have rows: one or filter"
        )
    if lacking := [name for name in pipeline.sink.config.partition_columns if name not in processor.columns]:
        raise ValueError(
            f"sink.{pipeline.sink.key}.partition_by: {lacking[0]!r} is not a column of processor.schema, whose columns "
            f"are: {', '.join(processor.columns)}"
        )
    if processor.flush is not None:
        _refuse_waiting(pipeline, "processor.flush fires timers")
    if pipeline.state.max_bytes is not None:
        raise ValueError(
            "state.max_bytes: Spark does not say how large the state of a processor is: leave it out; sluice state "
            f"{pipeline.name} --history has the size of its files"
        )


def _refuse_waiting(pipeline: Pipeline, what: str) -> None:
    if pipeline.schedule == "on_lag" or pipeline.lag.on_idle != "proceed":
        key = "schedule: on_lag" if pipeline.schedule == "on_lag" else f"lag.on_idle: {pipeline.lag.on_idle}"
        raise ValueError(
            f"{what} in a run that finds no records, and with {key} there is none: give a cron schedule whose runs go "
            "ahead, or leave flush out"
        )


def _refuse_upsert(pipeline: Pipeline, key: str, why: str) -> None:
    if pipeline.sink.config.keyed and pipeline.sink.kind.delta:
        raise ValueError(f"sink.{pipeline.sink.key}.mode: upsert beside {key}, {why}: choose mode: append")
