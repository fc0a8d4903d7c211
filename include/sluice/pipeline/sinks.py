"""What a pipeline may ask of its sinks: of the one of ``sink``, and of those of ``also``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.pipeline.sections import Rows, Sink

if TYPE_CHECKING:
    from sluice.pipeline.model import Pipeline

__all__ = ["refuse_sinks"]


def refuse_sinks(pipeline: Pipeline) -> None:
    """Refuse sinks that cannot take the pipeline's rows.

    Raises
    ------
    ValueError
        With the key in question, and the way out.
    """
    for key, sink in pipeline.sinks.items():
        _refuse(pipeline, key, sink)
    _refuse_a_circle(pipeline)
    if not pipeline.also:
        return
    _refuse_state(pipeline)
    if pipeline.decode.deletes:
        raise ValueError(
            f"also beside decode.{pipeline.decode.key}.tombstone: delete is not supported yet: leave also out, or "
            "choose tombstone: row or quarantine"
        )
    places: dict[tuple[str, str], str] = {}
    for key, sink in pipeline.sinks.items():
        place = sink.key, sink.config.location_of(pipeline.name)
        if place in places:
            raise ValueError(
                f"{key} and {places[place]} would stage their rows in the same place, {place[1]}: a pipeline can have "
                "one such sink only"
            )
        places[place] = key


def _refuse(pipeline: Pipeline, key: str, sink: Sink) -> None:
    if not sink.kind.transactional and not sink.kind.at_least_once:
        raise ValueError(
            f"{key} cannot commit a batch atomically with its batch number, so a crash would lose or duplicate rows: "
            "choose a sink that can, such as sink.delta"
        )
    if sink.config.keyed and pipeline.rows not in (Rows.ONE, Rows.FILTER):
        raise ValueError(
            f"{key}.mode: upsert finds the newer of two rows by their offsets, and rows: {pipeline.rows} does not give "
            "each row its own: choose rows: one or filter, or mode: append"
        )
    if sink.config.keyed and pipeline.origins is not None:
        raise ValueError(
            f"source.kafka.clusters beside {key}.mode: upsert: which row of a key is the newest is told by offsets, "
            "and each cluster counts its own: choose mode: append, or name one connection"
        )
    if sink.foreach is not None:
        from sluice.pipeline.targets import check_function

        check_function(sink.foreach.python, classes=True)


def _refuse_state(pipeline: Pipeline) -> None:
    """Refuse what further sinks cannot get of a pipeline with state."""
    if pipeline.window is not None and pipeline.window.output != "append":
        raise ValueError(
            f"also beside window.output: {pipeline.window.output} is not supported yet: a further sink would get rows "
            "that take the place of others. Choose output: append, or let a pipeline of its own read the sink"
        )
    for key, sink in pipeline.sinks.items():
        if pipeline.keeps and sink.config.keyed:
            raise ValueError(f"{key}.mode: upsert beside {pipeline.keeps} is not supported yet: choose mode: append")


def _refuse_a_circle(pipeline: Pipeline) -> None:
    source = pipeline.source.kafka
    if source is None:
        return
    clusters, written = source.clusters or [source.connection], set[str]()
    for key, sink in pipeline.sinks.items():
        topic = sink.kafka
        if topic is None or topic.connection not in clusters:
            continue
        written |= {topic.topic, topic.marks}
        if both := {topic.topic, topic.marks} & set(source.streams):
            raise ValueError(f"{key}.topic: the pipeline would read what it writes to {both.pop()}: choose another")
    if written:
        source.never(written)
