"""Which pipelines Spark alone can process, as far as their files say."""

from __future__ import annotations

from sluice.pipeline.model import Pipeline
from sluice.pipeline.sections import Rows
from sluice.recovery import Recovery
from sluice.storage import in_arrows_reach, is_url

__all__ = ["spark_alone"]


def spark_alone(pipeline: Pipeline, recovery: Recovery) -> str | None:
    """Return why records of a pipeline cannot take the Arrow path, on which the JVM never sees them.

    Parameters
    ----------
    recovery
        The strategy of a live run; ``replay`` for any other run.

    Returns
    -------
    str or None
        The reason; None if nothing in the file speaks against it. Expressions, types and Spark's settings still may.
    """
    sink, source = pipeline.sink, pipeline.source
    if pipeline.engine == "spark":
        return "the pipeline file says engine: spark"
    if pipeline.origins is not None:
        return "source.kafka.clusters: copies of records are told by Spark alone"
    if pipeline.decode.chosen is not None:
        return f"decode.{pipeline.decode.key} chooses a format for each record, which Spark alone does"
    if pipeline.decode.deletes:
        return "tombstones delete rows, and Spark alone tells them"
    if sink.config.keyed and sink.kind.delta:  # its batches are large, and their keys are in memory
        return f"sink.{sink.key} merges rows by a key"
    if pipeline.window is not None:
        return "it has a window, and Spark alone keeps what is open between runs"
    if pipeline.dedupe is not None:
        return "it has dedupe, and Spark alone remembers keys between runs"
    if pipeline.processor is not None:
        return "it has a processor, and Spark alone keeps its state between runs"
    if not source.kind.by_range and recovery is not Recovery.WAL:  # the log can be read, whatever it holds
        return f"source.{source.key} can be read by Spark alone"
    if not sink.kind.stages_parquet:
        return f"the sink is {sink.key}"
    if is_url(sink.config.location) and not (sink.kind.delta and in_arrows_reach(sink.config.location)):
        return f"sink.{sink.key} is at a URL; only a Delta table at s3a:// can be written to without Spark"
    if pipeline.rows is Rows.AGGREGATE:
        return "it has rows: aggregate"
    if pipeline.tables:
        return "tables: Spark alone joins them"
    if pipeline.transform.python is not None:
        return "transform.python works on a Spark DataFrame"
    return None
