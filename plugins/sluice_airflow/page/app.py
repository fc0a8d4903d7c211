"""The page's app. It only reads; what changes something, the page asks of Airflow's own API, with the user's login.

So Airflow checks the user's right to do it and records it in its audit log, and there is no request here that a foreign
page could forge.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.middleware.gzip import GZipMiddleware

from sluice.errors import SluiceError, public
from sluice.ledger import UnknownRunError
from sluice_airflow.page import data_docs, queries
from sluice_airflow.page.access import (
    LOGGED_IN,
    READS,
    READS_RECORDS,
    has_run,
    may_trigger,
    readable,
    shown,
    to_login,
)
from sluice_airflow.page.answers import AskedError

__all__ = ["app"]

_STATIC = Path(__file__).parent / "static"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-ancestors 'self'; base-uri 'none'; form-action 'none'"
)

# no openapi.json: FastAPI would serve it to anyone
app = FastAPI(title="Sluice", openapi_url=None, dependencies=[LOGGED_IN])
app.add_middleware(GZipMiddleware, minimum_size=2000)
app.add_exception_handler(HTTPException, to_login)  # type: ignore[arg-type]


@app.exception_handler(SluiceError)
def _told(_: Request, error: SluiceError) -> Response:
    unknown = isinstance(error, queries.UnknownPipelineError | UnknownRunError)
    body = public({"what": error.what, "state": error.state, "next_step": error.next_step})
    again = {"Retry-After": "2"} if isinstance(error, AskedError) else None
    return JSONResponse(body, status_code=404 if unknown else 503, headers=again)


@app.get("/")
def page() -> Response:
    """Return the page."""
    return _static("index.html")


@app.get("/static/{path:path}")
def static(path: str) -> Response:
    """Return a file of the page."""
    return _static(path)


def _static(path: str) -> Response:
    try:
        file = (_STATIC / path).resolve()
        there = file.is_relative_to(_STATIC.resolve()) and file.is_file()
    except (OSError, ValueError):  # too long a name, or one with a NUL
        there = False
    if not there:
        raise HTTPException(404)
    headers = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
    return FileResponse(file, media_type=_TYPES.get(file.suffix), headers=headers)


@app.get("/api/pipelines")
def pipelines(user: GetUserDep) -> list[dict[str, Any]]:
    """Return the pipelines whose DAGs the user may read, each at a glance."""
    return public(queries.overview(lambda names: readable(user, names)))


@app.get("/api/pipelines/{dag_id}", dependencies=[READS])
def pipeline(dag_id: str, user: GetUserDep, newest: Annotated[int, Query(ge=1, le=1_000_000)] = 200) -> dict[str, Any]:
    """Return a pipeline, and its newest runs in at most 200 spans."""
    found = queries.pipeline(dag_id, newest=newest)
    maintenance = found.get("maintenance")
    return {**shown(user, dag_id, found), "may_redrive": bool(maintenance and may_trigger(user, maintenance))}


@app.get("/api/pipelines/{dag_id}/runs", dependencies=[READS])
def runs(
    dag_id: str,
    user: GetUserDep,
    before: Annotated[int | None, Query(ge=0, lt=2**63)] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 25,
) -> list[dict[str, Any]]:
    """Return runs, newest first; those before a ``sequence``."""
    return shown(user, dag_id, queries.runs(dag_id, before, limit))


@app.get("/api/pipelines/{dag_id}/run", dependencies=[READS_RECORDS])
def run(dag_id: str, id: Annotated[str, Query(max_length=250)]) -> dict[str, Any]:
    """Return one run."""
    found = queries.account(dag_id, id)
    return {**found, "in_airflow": found["kind"] == "live" and has_run(dag_id, id)}


@app.get("/api/pipelines/{dag_id}/lag", dependencies=[READS])
def lag(dag_id: str, user: GetUserDep) -> dict[str, Any]:
    """Return the lag now."""
    return shown(user, dag_id, queries.lag(dag_id))


@app.get("/api/pipelines/{dag_id}/losses", dependencies=[READS])
def losses(dag_id: str, user: GetUserDep) -> dict[str, Any]:
    """Return what a redrive could bring back."""
    return shown(user, dag_id, queries.losses(dag_id))


@app.get("/api/pipelines/{dag_id}/log", dependencies=[READS])
def log(dag_id: str, user: GetUserDep) -> dict[str, Any]:
    """Return how far the write-ahead log reaches back."""
    return shown(user, dag_id, queries.log(dag_id))


@app.get("/data-docs/{dag_id}/{path:path}", dependencies=[READS_RECORDS])
def docs(dag_id: str, path: str, request: Request) -> Response:
    """Return a page of a pipeline's Data Docs."""
    return data_docs.serve(dag_id, path or "index.html", f"{request.scope['root_path']}/static")
