"""What a pipeline's redrive can do, from its file alone; pure."""

from __future__ import annotations

from sluice.errors import ConfigError
from sluice.pipeline import Pipeline

__all__ = ["possible", "way_out"]

_AGAIN = "send the records to the source again, corrected"


def possible(pipeline: Pipeline, *, quarantined: bool) -> None:
    """Raise a :class:`~sluice.errors.ConfigError` if lost ranges (or quarantined records) cannot be redriven."""
    if pipeline.stateful is not None:
        raise ConfigError(
            f"pipeline {pipeline.name!r} {_stateful(pipeline)}, which Sluice cannot do yet",
            state="nothing was read or written; the quarantine is as it was",
            next_step=_AGAIN,
        )
    if quarantined and not pipeline.sink.kind.replaceable:
        how = " with mode: upsert" if pipeline.sink.config.keyed else ""
        raise ConfigError(
            f"quarantined records of {pipeline.name!r} cannot be redriven or dropped: sink.{pipeline.sink.key}{how} "
            "does not take single rows back",
            state="nothing was read or written; sink and quarantine are unchanged",
            next_step=f"{_AGAIN}; or use a sink that can replace rows, such as sink.delta. Lost ranges can be redriven",
        )


def way_out(pipeline: Pipeline, named: str) -> str:
    """Return what to do with quarantined records: the command, where there is one.

    Parameters
    ----------
    named
        What a command takes for this pipeline: its name, or its file.
    """
    try:
        possible(pipeline, quarantined=True)
    except ConfigError:
        return f"they stay there, as sluice redrive cannot write them with this pipeline: {_AGAIN}"
    return f"when decode, rules or transform take them: sluice redrive {named} --quarantined"


def _stateful(pipeline: Pipeline) -> str:
    if pipeline.window is not None:
        return (
            "has a window: a record that is redriven would be absorbed by windows that live runs keep open or have "
            "written already"
        )
    return "has dedupe: a record that is redriven would have to be compared with keys that live runs remember"
