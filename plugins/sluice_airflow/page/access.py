"""Who may see what: Airflow's own answer, for each request."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar
from urllib.parse import urlencode

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag, requires_access_view
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from fastapi import Depends, HTTPException, Request, Response
from fastapi.exception_handlers import http_exception_handler
from fastapi.responses import RedirectResponse
from sqlalchemy import select

from sluice.errors import public

__all__ = ["LOGGED_IN", "READS", "READS_RECORDS", "has_run", "may_trigger", "readable", "shown", "to_login"]

_Answer = TypeVar("_Answer")

LOGGED_IN = Depends(requires_access_view(AccessView.PLUGINS))
"""A user who may see plugins. Without a login: 401."""

READS = Depends(requires_access_dag("GET"))
"""Whoever may read the DAG of the path's ``dag_id``, which is the pipeline's name."""

READS_RECORDS = Depends(requires_access_dag("GET", DagAccessEntity.TASK_LOGS))
"""Whoever may read its task logs as well: like these, Data Docs and judgements show values of records."""


def readable(user: GetUserDep, names: Collection[str]) -> set[str]:
    """Return the pipelines among these names whose DAG the user may read, as :data:`READS` decides it for one.

    A pipeline that only tasks of other DAGs run has no DAG of its name; whoever may read all DAGs sees it.
    """
    teams = DagModel.get_dag_id_to_team_name_mapping(list(names))
    by_team: dict[str | None, set[str]] = {}
    for name in names:
        by_team.setdefault(teams.get(name), set()).add(name)
    ask = get_auth_manager().filter_authorized_dag_ids
    return set().union(*(ask(dag_ids=own, user=user, method="GET", team_name=t) for t, own in by_team.items()))


def has_run(dag_id: str, run_id: str) -> bool:
    """Tell whether the DAG has a run of this id: a group's runs belong to a DAG of another name, and some to none."""
    with create_session() as session:
        return session.scalar(select(DagRun.id).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)) is not None


def shown(user: GetUserDep, dag_id: str, answer: _Answer) -> _Answer:
    """Return an answer about a pipeline without the text that only those who may read its task logs may read."""
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    logs = get_auth_manager().is_authorized_dag(
        method="GET", access_entity=DagAccessEntity.TASK_LOGS, details=details, user=user
    )
    return answer if logs else public(answer)


def may_trigger(user: GetUserDep, dag_id: str) -> bool:
    """Tell whether the user may trigger a DAG. Airflow asks again when they do."""
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    return bool(
        get_auth_manager().is_authorized_dag(
            method="POST", access_entity=DagAccessEntity.RUN, details=details, user=user
        )
    )  # fmt: skip


async def to_login(request: Request, error: HTTPException) -> Response:
    """Answer a person who is not logged in with the login, and a program with 401."""
    if error.status_code != 401 or "text/html" not in request.headers.get("accept", ""):
        return await http_exception_handler(request, error)
    mounted = request.scope.get("root_path", "")
    airflow = mounted.rpartition("/")[0]
    query = urlencode({"next": str(request.url)})
    return RedirectResponse(f"{airflow}/api/v2/auth/login?{query}", status_code=303)
