"""The places of a pipeline's sinks: no two are the same, and no source reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.pipeline.targets import check_function

if TYPE_CHECKING:
    from sluice.pipeline.model import Pipeline

__all__ = ["refuse_places"]


def refuse_places(pipeline: Pipeline) -> None:
    """Refuse sinks that would be in each other's way, or in the source's; check the code that a sink names.

    Raises
    ------
    ValueError
        With the key in question, and the way out.
    """
    _refuse_a_circle(pipeline)
    places: dict[tuple[str, str], str] = {}
    for key, sink in pipeline.sinks.items():
        place = sink.key, sink.config.location_of(pipeline.name)
        if place in places:
            raise ValueError(
                f"{key} and {places[place]} would stage their rows in the same place, {place[1]}: a pipeline can have "
                "one such sink only"
            )
        places[place] = key
        if sink.foreach is not None:
            check_function(sink.foreach.python, classes=True)


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
