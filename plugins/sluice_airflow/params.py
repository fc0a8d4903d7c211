"""The fields of the trigger form."""

from __future__ import annotations

from airflow.sdk import Param

from sluice.pipeline import Pipeline
from sluice.recovery import Recovery
from sluice_airflow.window import Mode

__all__ = ["of"]

_ISO = r"^\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?)?$"

_MODES = {
    Mode.AUTO: "a backfill means its interval, every other run what is available now",
    Mode.AVAILABLE_NOW: "what Kafka holds now and no run has read yet",
    Mode.INTERVAL: "read start to end again, and replace exactly these rows",
}


def of(pipeline: Pipeline) -> dict[str, Param]:
    """Return the typed params of a pipeline's DAG, with its file's values as defaults.

    Airflow checks them against their JSON schema when a run is triggered, so that a task sees only values that fit.
    """
    choices = pipeline.recovery_choices or Recovery
    offered = [r for r in Recovery if r in choices and pipeline.refusal(r) is None]
    modes = [Mode.AUTO, Mode.AVAILABLE_NOW] if pipeline.no_intervals else list(Mode)
    interval = {} if pipeline.no_intervals else {"start": _moment("Start"), "end": _moment("End, exclusive")}
    return {
        "mode": Param(
            Mode.AUTO.value,
            type="string",
            enum=[m.value for m in modes],
            values_display={m.value: f"{m.value}: {_MODES[m]}" for m in modes},
            title="What to read",
            description_md="Live runs go on where the last one stopped. An interval is read again beside them, from "
            "Kafka or the write-ahead log; what live runs have not reached is left to them. Logical date and data "
            "interval of a run by hand are not used.",
        ),
        **interval,
        "reason": Param(
            None, type=["null", "string"], title="Reason", description_md="Why this run; kept in the ledger."
        ),
        "recovery": Param(
            pipeline.recovery.value,
            type="string",
            enum=[r.value for r in offered],
            values_display={r.value: f"{r.value}: {r.promise}" for r in offered},
            title="Recovery",
            description_md="How this run recovers. The pipeline's file says "
            f"`{pipeline.recovery.value}`; a run may choose otherwise.",
        ),
        "max_records_per_batch": Param(
            pipeline.source.config.max_records_per_batch,
            type="integer",
            minimum=1,
            title="Records in a batch, at most",
            description_md="Smaller batches use less memory and lose less work to a crash; larger ones are faster.",
        ),
        "validate": Param(
            True,
            type="boolean",
            title="Judge this run",
            description_md="Off: the run is not judged, and the task *validate* is skipped.",
        ),
    }


def _moment(title: str) -> Param:
    return Param(
        None,
        type=["null", "string"],
        format="date-time",
        pattern=_ISO,  # Airflow checks patterns, and formats only with a package that it does not bring
        title=title,
        section="Interval",
        description_md="With mode *interval*: of Kafka's record time, with a zone, such as `2013-03-01T00:00:00Z`.",
    )
