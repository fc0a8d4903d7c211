"""The fields of the trigger form."""

from __future__ import annotations

from airflow.sdk import Param

from sluice.pipeline import Pipeline
from sluice.recovery import Recovery
from sluice.text import LONGEST_REASON
from sluice_airflow.window import Mode

__all__ = ["of"]

_ISO = r"^\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})?)?$"

_MODES = {
    Mode.AUTO: "a backfill reads its interval; every other run reads what is available now",
    Mode.AVAILABLE_NOW: "read what the source holds now and no run has read yet",
    Mode.INTERVAL: "read the records from start to end again and replace exactly their rows",
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
            description_md="A live run continues where the last one stopped. "
            f"{_again(pipeline)} from Kafka or the write-ahead log, while live runs go on; records beyond their "
            "position are left to them. "
            "The logical date and the data interval of a manual run are not used.",
        ),
        **interval,
        "reason": Param(
            None,
            type=["null", "string"],
            maxLength=LONGEST_REASON,
            title="Reason",
            description_md="Why this run; recorded in the ledger.",
        ),
        "recovery": Param(
            pipeline.recovery.value,
            type="string",
            enum=[r.value for r in offered],
            values_display={r.value: f"{r.value}: {r.promise}" for r in offered},
            title="Recovery",
            description_md="How this run, live or of an interval, recovers. The pipeline's file says "
            f"`{pipeline.recovery.value}`; choose another strategy for this run only.",
        ),
        "max_records_per_batch": Param(
            pipeline.source.config.max_records_per_batch,
            type=["null", "integer"],
            minimum=1,
            maximum=(1 << 63) - 1,
            title="Records per batch, about",
            description_md="Of live runs only. Smaller batches lose less work to a crash; larger ones are faster. "
            "Empty: 500,000; on the Arrow path as many as earlier runs read in half a minute, at most 5,000,000.",
        ),
        "validate": Param(
            True,
            type="boolean",
            title="Validate this run",
            description_md="Off: the run gets no verdict, and the task *validate* is skipped.",
        ),
    }


def _again(pipeline: Pipeline) -> str:
    if pipeline.window is None:
        return "An interval of record time is read again,"
    return "An interval of event time has the windows that begin in it: closed ones are made again,"


def _moment(title: str) -> Param:
    return Param(
        None,
        type=["null", "string"],
        format="date-time",
        pattern=_ISO,  # Airflow checks patterns, and formats only with a package that it does not bring
        title=title,
        section="Interval",
        description_md="Only with mode *interval*: a time in Kafka's record time, such as `2013-03-01T00:00:00Z`; UTC "
        "without a zone.",
    )
