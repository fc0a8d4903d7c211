"""From a pipeline file to a DAG."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, Asset, CronDataIntervalTimetable, get_parsing_context
from airflow.sdk.definitions.param import ParamsDict

from sluice.errors import ConfigError, SluiceError, described
from sluice.pipeline import Pipeline, load, load_all, pipelines_folder
from sluice.pipeline.load import Clash, relative
from sluice.pipeline.schedule import Schedule
from sluice_airflow import docs, params
from sluice_airflow.callback import Callback
from sluice_airflow.freshness import freshness_dag
from sluice_airflow.gate import OnIdle
from sluice_airflow.group import add_tasks, default_args_of, pool_of, reference_of
from sluice_airflow.maintenance import maintenance_dag
from sluice_airflow.notifiers import FailureNotifier
from sluice_airflow.triggers.crossing import RETRY_AFTER
from sluice_airflow.triggers.lag_watcher import POLL_INTERVAL, lag_asset

__all__ = ["build_all", "build_dag", "refuse_bad_files"]

_LONGEST_TAG = 100
"""Airflow refuses a DAG with a longer tag; a topic's name may have 249 characters."""

_START = date(2000, 1, 1)  # an interval may lie long before the pipeline


def build_dag(
    pipeline: Pipeline | Path | str,
    *,
    on_idle: OnIdle | None = None,
    spark_conn_id: str | None = None,
    poll_interval: float = POLL_INTERVAL,
    retry_after: float = RETRY_AFTER,
) -> DAG:
    """Return the DAG of a pipeline: ``wait_for_lag`` → ``ingest`` → ``validate`` → ``account``.

    Its id is the pipeline's name. A run, scheduled or manual, with or without a logical date, means *available now*;
    its identity is Airflow's ``run_id``. One of them at a time, since a pipeline has one live writer. The runs of a
    backfill, and manual ones with mode ``interval``, mean an interval of record time; those of a backfill run beside
    live ones and beside each other: as many as the backfill allows, of which ``airflow.max_drivers`` run Spark.

    Parameters
    ----------
    pipeline
        The pipeline, its name, or its file.
    on_idle
        What ``wait_for_lag`` does in every run when too little waits. None: what the file's ``lag.on_idle`` says in a
        run of the cron schedule, and in every other one it proceeds: a user asked for it. A run that finds nothing
        ends at once with the verdict ``empty``, and the ledger shows that a user looked.
    spark_conn_id
        The Spark connection, instead of the one that the file names.
    poll_interval
        Seconds within which a run starts once the limits are passed, for ``schedule: on_lag``. All pipelines of one
        Kafka connection that name the same share their looks at the broker.
    retry_after
        Seconds after a failed run until the same backlog starts another one, for ``schedule: on_lag``; twice as long
        each time, up to an hour.

    Raises
    ------
    ConfigError
        With every mistake of the file; also for a cron expression that Airflow refuses.
    """
    spec = pipeline if isinstance(pipeline, Pipeline) else load(pipeline)
    reference = reference_of(spec)
    dag = DAG(
        dag_id=spec.name,
        schedule=_schedule(spec, reference, poll_interval, retry_after),
        start_date=_start(spec),
        catchup=False,
        max_active_runs=1,
        auto_register=False,  # a DAG belongs to the file that holds it in a global, not to the one that built it
        doc_md=docs.page(spec, poll_interval=poll_interval),
        description=spec.airflow.description,
        tags={
            "sluice",
            f"recovery:{spec.recovery}",
            *(f"topic:{t}"[:_LONGEST_TAG] for t in spec.source.config.labels),
            *spec.airflow.tags,
        },
        on_success_callback=_called(spec, "on_success") or None,
        **_of_the_team(spec),
        default_args=default_args_of(spec),
    )
    with dag:
        add_tasks(spec, reference, on_idle=on_idle, spark_conn_id=spark_conn_id)
    dag.params = ParamsDict(params.of(spec))  # last: each task would copy them deeply, and a run merges both anyway
    return _checked(dag, spec)


def build_all(folder: Path | None = None) -> dict[str, DAG]:
    """Return the DAGs of every good file of a folder, by id; by default of the folder of pipelines.

    A bad file is left out here and refused by :func:`refuse_bad_files`, which therefore belongs into a DAG file of its
    own: Airflow stops scheduling *every* DAG of a file that has an import error.

    When Airflow runs a task it needs one DAG; then only that one is built.
    """
    wanted = get_parsing_context().dag_id
    if wanted is not None:
        name, *_ = wanted.split(".")  # a pipeline's name has no dot; behind one is which of its DAGs this is
        path = (folder or pipelines_folder()) / f"{name}.yaml"
        if path.is_file() and (spec := load(path)).name == name:
            found = {dag.dag_id: dag for dag in _dags_of(spec)}
            if wanted in found:
                return {wanted: found[wanted]}
    return {found.dag_id: found for _, found in _read(folder) if isinstance(found, DAG)}


def refuse_bad_files(folder: Path | None = None) -> None:
    """Do nothing when every pipeline file of a folder makes a DAG, and none in folders below has its name or table.

    Raises
    ------
    ConfigError
        Naming each bad file with its mistakes.
    """
    problems = [found for _, found in _read(folder, below=True) if isinstance(found, SluiceError)]
    if len(problems) == 1:
        raise problems[0].with_traceback(None)  # the import error should show the file's mistake, not our frames
    if problems:
        raise ConfigError(
            "\n".join([f"{len(problems)} pipeline files are not valid:", *(p.what for p in problems)]),
            state="the DAGs of the other files are not touched",
            next_step="fix them, then: sluice validate-spec FILE",
        )


def _read(folder: Path | None, *, below: bool = False) -> Iterator[tuple[Path, DAG | SluiceError]]:
    """Yield the DAGs of a folder's files, and the errors of bad ones.

    Files in folders below make no DAG. With ``below`` an error tells if one of them has the name or the table of
    another file: a group's DAG would harm that one's.
    """
    root = folder or pipelines_folder()
    for path, spec in load_all(root, below=below):
        if path.parent != root and not isinstance(spec, Clash):
            continue
        if isinstance(spec, SluiceError):
            yield path, spec
            continue
        try:
            yield from ((path, dag) for dag in _dags_of(spec))
        except SluiceError as error:
            yield path, error
        except Exception as error:  # whatever it is, it must not take the other DAGs down
            yield (
                path,
                ConfigError(
                    f"{relative(path)} cannot be read: {described(error)}",
                    state="nothing was read or written",
                    next_step=f"fix it, then: sluice validate-spec {shlex.quote(relative(path))}",
                ),
            )


def _start(spec: Pipeline) -> datetime:
    day = spec.airflow.start_date or _START
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def _of_the_team(spec: Pipeline, access: Mapping[str, Sequence[str]] | None = None) -> dict[str, Any]:
    """Return what all DAGs of a file have in common: whom they call when a run has failed, who may see them.

    Parameters
    ----------
    access
        Other rights than the file's ``access_control``.
    """
    rights = spec.airflow.access_control if access is None else access
    return {
        "on_failure_callback": [*_called(spec, "on_failure"), *_mail(spec)] or None,
        "access_control": {role: set(may) for role, may in (rights or {}).items()} or None,
    }


def _mail(spec: Pipeline) -> list[Callable[..., Any]]:
    """Return what writes to the addresses of the file.

    Raises
    ------
    ConfigError
        When Airflow cannot send mail.
    """
    if not spec.airflow.email:
        return []
    try:
        from airflow.providers.smtp.notifications.smtp import SmtpNotifier
    except ImportError:
        raise ConfigError(
            f"{relative(spec.file)}: airflow.email: Airflow's SMTP provider is not installed",
            state="nothing was read or written",
            next_step="pip install apache-airflow-providers-smtp, or remove the key",
        ) from None
    subject, content = "{{ sluice.subject }}", "{{ sluice.html }}"
    return [FailureNotifier(SmtpNotifier(to=list(spec.airflow.email), subject=subject, html_content=content))]


def _called(spec: Pipeline, key: str) -> list[Callable[..., Any]]:
    """Return what a DAG run calls at its end."""
    return [Callback(f"airflow.{key}", target) for target in getattr(spec.airflow, key)]


def _dags_of(spec: Pipeline) -> list[DAG]:
    """Return the DAGs that a pipeline file makes."""
    dags, reference, wanted = [build_dag(spec)], reference_of(spec), spec.airflow.freshness
    if spec.airflow.maintenance is not None:
        shared = _of_the_team(spec, spec.airflow.maintenance_access_control)
        dags.append(_checked(maintenance_dag(spec, reference, pool=pool_of(spec), **shared), spec))
    if wanted is not None:
        dags.append(_checked(freshness_dag(spec, wanted, reference, **_of_the_team(spec)), spec))
    return dags


def _checked(dag: DAG, spec: Pipeline) -> DAG:
    """Return a DAG.

    Raises
    ------
    ConfigError
        When Airflow refuses it.
    """
    try:
        dag.validate()
    except Exception as error:
        raise ConfigError(
            f"{relative(spec.file)} does not make a DAG: {error}",
            state="nothing was read or written",
            next_step=f"fix it, then: sluice validate-spec {shlex.quote(relative(spec.file))}",
        ) from error
    return dag


def _schedule(
    spec: Pipeline, reference: str, poll_interval: float, retry_after: float
) -> CronDataIntervalTimetable | list[Asset] | None:
    match spec.schedule:
        case Schedule(cron=cron, timezone=zone):
            return CronDataIntervalTimetable(cron, timezone=zone)
        case "on_lag":
            return [lag_asset(spec, reference, poll_interval=poll_interval, retry_after=retry_after)]
        case _:
            return None
