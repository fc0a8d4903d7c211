"""The DAG by which a pipeline is repaired and looked after, without a shell."""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, CronTriggerTimetable, Param, TriggerRule, chain, timezone

from sluice.pipeline import Pipeline
from sluice_airflow.group import default_args_of
from sluice_airflow.operators.audit import AuditOperator
from sluice_airflow.operators.clean import CleanOperator
from sluice_airflow.operators.compact import CompactOperator
from sluice_airflow.operators.redrive import RedriveOperator
from sluice_airflow.operators.vacuum import VacuumOperator

__all__ = ["SUFFIX", "maintenance_dag"]

SUFFIX = ".maintenance"
"""The end of the DAG's id, behind the pipeline's name, which has no dot."""

_STEPS = {"audit": AuditOperator, "clean": CleanOperator, "compact": CompactOperator, "vacuum": VacuumOperator}

_DOES = {
    "audit": "audits ledger, tables and write-ahead log",
    "clean": "removes old segments of the log",
    "compact": "merges small files of the tables",
    "vacuum": "removes files that the tables no longer use",
}

_PAGE = """\
Repairs and looks after the pipeline `{name}`: {tasks}.

Triggered as it is, and by its schedule, it redrives nothing: it {does}.
To write what was lost, or what was refused and passes by now, trigger it with `redrive`.
Airflow's audit log says who did. The same on the command line: {commands}.
"""


def maintenance_dag(pipeline: Pipeline, reference: str, *, pool: str | None = None, **team: Any) -> DAG:
    """Return the maintenance DAG of a pipeline whose file has ``airflow.maintenance``.

    Parameters
    ----------
    reference
        The pipeline's name or path, for the tasks.
    pool
        The pool of the task that starts Spark.
    **team
        More arguments of the DAG: callbacks, access.
    """
    cron, steps = pipeline.airflow.maintenance, pipeline.airflow.maintenance_steps
    dag = DAG(
        dag_id=f"{pipeline.name}{SUFFIX}",
        schedule=None if cron in (None, "manual") else CronTriggerTimetable(cron, timezone="UTC"),
        start_date=timezone.datetime(2000, 1, 1),
        catchup=False,
        max_active_runs=1,
        auto_register=False,
        description=f"Redrives and looks after the pipeline {pipeline.name}: {', '.join(steps)}",
        tags={"sluice", "maintenance", *pipeline.airflow.tags},
        doc_md=_PAGE.format(
            name=pipeline.name,
            tasks=" → ".join(f"`{task}`" for task in ("redrive", *steps)),
            does=", ".join(_DOES[step] for step in steps),
            commands=", ".join(f"`sluice {step}`" for step in ("redrive", *steps)).replace("audit", "audit --deep"),
        ),
        params={
            "redrive": Param(
                "nothing",
                type="string",
                enum=["nothing", "lost", "quarantined"],
                values_display={
                    "nothing": f"nothing: only {', '.join(steps)}",
                    "lost": "lost: open lost ranges that can be read again",
                    "quarantined": "quarantined: refused records that decode and pass the rules now",
                },
                title="Redrive",
                description_md="What is written, exactly once, before anything else.",
            ),
            "ranges": Param(
                [],
                type="array",
                items={"type": "string", "pattern": r"^[^:]+:\d+:\d+-\d+$"},
                title="Only these ranges",
                description_md="Each as `TOPIC:PARTITION:START-END`, end exclusive; none means all.",
            ),
            "of_run": Param(
                None,
                type=["null", "string"],
                title="Only of this run",
                description_md="What the run with this id lost or quarantined.",
            ),
        },
        default_args=default_args_of(pipeline),
        **team,
    )
    with dag:
        redrive = RedriveOperator(
            task_id="redrive",
            pipeline=reference,
            what="{{ params.redrive }}",
            ranges="{{ params.ranges | join(' ') }}",
            of_run="{{ params.of_run or '' }}",
            **({"pool": pool} if pool else {}),
        )
        first, *others = (_STEPS[step](task_id=step, pipeline=reference) for step in steps)
        first.trigger_rule = TriggerRule.NONE_FAILED  # redrive is skipped most of the time
        chain(redrive, first, *others)
    return dag
