"""What the page shows, as JSON: the ledger's, the broker's and the tables' answers, which the commands read, too."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from sluice.connections import Connection
from sluice.delta.quarantine import refused
from sluice.errors import SluiceError
from sluice.home import Home
from sluice.lag.current import active
from sluice.ledger import Ledger
from sluice.ledger.cache import Cache
from sluice.ledger.history import Glance
from sluice.pipeline import Pipeline
from sluice.recovery import Route
from sluice.run.circuit_breaker import unsettled
from sluice.wal import WriteAheadLog
from sluice.wal.coverage import coverage
from sluice_airflow import connections
from sluice_airflow.files import Files
from sluice_airflow.gate import look
from sluice_airflow.maintenance import SUFFIX
from sluice_airflow.page.answers import Answers

__all__ = ["UnknownPipelineError", "account", "lag", "ledger", "log", "losses", "overview", "pipeline", "runs"]

PATIENCE = 8.0
"""Seconds for which a broker is asked."""

_answers = Answers()
_files = Files()
_glances: Cache[Glance] = Cache()
_ledgers: dict[str, Ledger] = {}

_LISTED = 500
"""Open lost ranges that are listed one by one."""


class UnknownPipelineError(SluiceError):
    """Neither a pipeline file nor the ledger has it."""


def ledger() -> Ledger:
    """Return the ledger, which is opened once.

    Raises
    ------
    SluiceError
        If it cannot be opened, or another thread opens it.
    """
    url = Home.from_env().ledger_url
    if url not in _ledgers:
        _ledgers[url] = _answers.of(("ledger", url), lambda: Ledger.open(url))
    return _ledgers[url]


def _file(name: str) -> Pipeline:
    found = _files.named(name)
    if found is None and (problem := _files.broken().get(name)) is not None:
        raise UnknownPipelineError(
            f"the pipeline file is not valid: {problem}",
            state="its runs are in the ledger",
            next_step="correct the file; sluice validate-spec checks it",
        )
    if found is None:
        raise UnknownPipelineError(
            f"the folder of pipelines has no valid file of {name!r}",
            state="its runs are in the ledger",
            next_step="give the API server the SLUICE_PIPELINES of the workers, then: sluice validate-spec",
        )
    return found


def overview(allowed: Callable[[Collection[str]], set[str]]) -> list[dict[str, Any]]:
    """Return the pipelines that are allowed, each at a glance.

    Parameters
    ----------
    allowed
        Which of some names are.
    """
    book, (files, broken) = ledger(), _files.read_all()
    gone = book.runs.pipelines() - set(files)
    names = sorted(allowed(set(files) | gone - book.runs.forgotten(gone)))
    found = _glances.of(book, names, lambda unknown: book.runs.glances(unknown) if unknown else {})
    return [
        {
            **_about(name, files.get(name), broken),
            **_glance(found[name]),
            **_standing(name, files.get(name), found[name]),
        }
        for name in names
    ]


def _about(name: str, spec: Pipeline | None, broken: Mapping[str, str]) -> dict[str, Any]:
    if spec is None:
        return {"name": name, "file": False, **({"problem": broken[name]} if name in broken else {})}
    return {
        "name": name,
        "file": True,
        "description": spec.airflow.description,
        "recovery": str(spec.recovery),
        "streams": list(spec.source.config.labels),
        "kafka": spec.source.kafka is not None,
    }


def _standing(name: str, spec: Pipeline | None, found: Glance) -> dict[str, Any]:
    """Return the failed verdict that stands, if there is one, in place of that of a later run that found nothing."""
    good = found.judged is None or found.judged.verdict in ("passed", "warned")
    holds = spec is not None and spec.quality.on_failed == "hold"
    if good and not holds:
        return {}
    run = unsettled(ledger(), name)
    if run is None:
        return {}
    shown = {"verdict": run.verdict, "run_id": run.run, "at": run.closed_at or run.opened_at}
    return {"verdict": shown, **({"held": run.run} if holds else {})}


def _glance(found: Glance) -> dict[str, Any]:
    judged = found.judged
    return {
        "lost": found.lost,
        "verdict": judged
        and {"verdict": judged.verdict, "run_id": judged.run_id, "at": judged.closed_at or judged.opened_at},
        "recent": [run.as_dict() for run in found.runs],
    }


def pipeline(name: str, *, newest: int) -> dict[str, Any]:
    """Return a pipeline with its newest runs, as many of them together as there is room for.

    Raises
    ------
    UnknownPipelineError
        If there is none of this name.
    """
    book, spec = ledger(), _files.named(name)
    count = book.runs.count(name)
    if spec is None and not count:
        raise UnknownPipelineError(
            f"there is no pipeline {name!r}",
            state="nothing was read or written",
            next_step="choose one of: sluice status",
        )
    glance = book.runs.glances([name], runs=1)[name]
    spans = [span.as_dict() for span in book.runs.spans(name, newest=newest)] if count else []
    about = _about(name, spec, {} if spec is not None else _files.broken())
    if spec is not None:
        about |= {
            "sink": ", ".join(sink.config.shown for sink in spec.sinks.values()),
            "log": spec.recovery.route is Route.LOG,
            "maintenance": f"{name}{SUFFIX}" if spec.airflow.maintenance is not None else None,
            "running": book.runs.running(name),
        }
    return {
        **about,
        **_glance(glance),
        **_standing(name, spec, glance),
        "count": count,
        "spans": spans,
        "page": runs(name),
    }


def runs(name: str, before: int | None = None, limit: int = 25) -> list[dict[str, Any]]:
    """Return a page of runs, newest first."""
    return [line.as_dict() for line in ledger().runs.page(name, before=before, limit=limit)]


def account(name: str, run_id: str) -> dict[str, Any]:
    """Return one run: its account, how it ended, and how it was judged.

    Raises
    ------
    UnknownRunError
        If the ledger does not have it.
    """
    book = ledger()
    row = book.runs.known(name, run_id)
    judgement = row.judgement or {}
    return {
        **book.runs.account(name, run_id),
        "kind": row.kind,
        "state": row.state,
        "attempts": row.attempts,
        "opened_at": row.opened_at,
        "closed_at": row.closed_at,
        "error": row.error and {"next_step" if key == "next" else key: said for key, said in row.error.items()},
        "suite": judgement.get("suite"),
        "results": judgement.get("results") or [],
        "data_docs": bool(judgement.get("data_docs")),
        "ranges": [
            {"topic": a.range.topic, "partition": a.range.partition, "start": a.range.start, "end": a.range.end,
             **a.counts.as_dict()}
            for a in book.offsets.accounts(name, run_id)
        ],
    }  # fmt: skip


def losses(name: str) -> dict[str, Any]:
    """Return the open lost ranges, and what is in quarantine, by rule.

    Raises
    ------
    SinkError
        If the quarantine cannot be read.
    """
    rows, spec = ledger().offsets.lost(name), _files.named(name)
    found = _answers.of(("quarantine", name), lambda: _refused(spec)) if spec else None
    listed = [{k: v for k, v in row.as_dict().items() if k != "sample"} for row in rows[:_LISTED]]
    return {
        "ranges": listed,
        "count": len(rows),
        "lost": sum(len(row.range) for row in rows),
        "quarantine": found,
    }  # fmt: skip


def _refused(spec: Pipeline) -> list[dict[str, Any]]:
    return [item.as_dict() for item in refused(Home.from_env().resolve(spec.quarantine_path))]


def lag(name: str) -> dict[str, Any]:
    """Return the lag of a pipeline, as ``sluice lag`` measures it.

    Raises
    ------
    SluiceError
        If file, connection, checkpoint or ledger cannot be read. (A silent broker is an answer.)
    """
    book = ledger()
    return _answers.of(("lag", name), lambda: _lag(_file(name), book))


def _lag(spec: Pipeline, book: Ledger) -> dict[str, Any]:
    return look(str(spec.file), _connection(spec), timeout=PATIENCE, ledger=book).as_dict()


def log(name: str) -> dict[str, Any]:
    """Return how far the write-ahead log reaches back, and for how long the broker keeps records.

    Raises
    ------
    SluiceError
        As :func:`lag`.
    """
    return _answers.of(("log", name), lambda: _log(_file(name)))


def _log(spec: Pipeline) -> dict[str, Any]:
    held = [part.as_dict() for part in coverage(WriteAheadLog(Home.from_env().log(spec.name), spec.name))]
    kept: dict[str, float | None] = {}
    if spec.source.kafka:
        try:
            with spec.source.kind.cluster(_connection(spec), timeout=PATIENCE) as cluster:
                asked = cluster.retention(cluster.topics_of(spec.kafka))
            kept = {topic: None if time is None else time.total_seconds() for topic, time in asked.items()}
        except SluiceError:  # unknown; the log is what counts when Kafka is down
            pass
    return {"held": held, "retention": kept}


def _connection(spec: Pipeline) -> Connection:
    return connections.stored(active(spec, Ledger.open))
