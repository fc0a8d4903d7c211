"""Alerts of failed runs, by whatever notifier a team has, in the words of the task that failed."""

from __future__ import annotations

import copy
import html
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow.sdk import BaseNotifier

from sluice_airflow.failure_message import KEY, words_of

__all__ = ["Failure", "FailureNotifier", "failure_of"]

_log = logging.getLogger(__name__)
_STATE = "what was committed before is in the sink, accounted for; what was open is finished by the next attempt"


@dataclass(frozen=True)
class Failure:
    """A failed run: what happened, the state of the data, and the next command.

    Parameters
    ----------
    dag, run_id
        The DAG and its run.
    task
        The task that failed first; empty if Airflow does not say.
    """

    dag: str
    run_id: str
    task: str
    what: str
    state: str
    next_step: str

    @property
    def subject(self) -> str:
        """One line: which task of which DAG."""
        return f"{self.dag}: {self.task or 'a run'} failed"

    @property
    def text(self) -> str:
        """The three sentences, as plain text."""
        return f"{self.what}\n  data: {self.state}\n  next: {self.next_step}\n  run: {self.run_id}"

    @property
    def html(self) -> str:
        """The same, as HTML."""
        rows = (("What happened", self.what), ("Data", self.state), ("Next", self.next_step), ("Run", self.run_id))
        lines = (f"<p><b>{name}:</b> {html.escape(text).replace(chr(10), '<br>')}</p>" for name, text in rows)
        return "\n".join(lines)


class FailureNotifier(BaseNotifier):
    """Calls another notifier, whose templates may use ``sluice``: the :class:`Failure` of this run.

    For ``on_failure_callback`` of a DAG or of a task, and for ``airflow.on_failure`` of a pipeline file. For a DAG
    run it has the words of the task that failed first.

    Parameters
    ----------
    notifier
        Any notifier, such as ``SlackWebhookNotifier(text="{{ sluice.text }}")``, or a function of the context.
    """

    def __init__(self, notifier: Callable[[Any], Any], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.notifier = notifier

    def render_template_fields(self, context: Any, jinja_env: Any = None) -> None:
        """Do nothing: the templates are the other notifier's. (``dag.test()`` has no DAG here that could render.)"""

    def notify(self, context: Mapping[str, Any]) -> None:
        """Call it."""
        # a notifier replaces its templates by what they render to: a copy, so that the next failure is reported as well
        copy.copy(self.notifier)({**context, "sluice": failure_of(context)})


def failure_of(context: Mapping[str, Any]) -> Failure:
    """Return what failed, from the context of a task's callback or of a DAG's.

    It asks Airflow for the states and XComs of the run's tasks, and never raises because they cannot be had.
    """
    dag, run_id, ti = context["dag"], str(context["run_id"]), context.get("ti")
    error = context.get("exception")
    if isinstance(error, BaseException) and ti is not None:
        task, words = ti.task_id, words_of(error)
    else:
        task, words = _first(dag, run_id, ti)
    return Failure(
        dag.dag_id,
        run_id,
        task,
        words.get("what") or f"{f'task {task!r}' if task else 'a task'} of this DAG run failed",
        words.get("state") or _STATE,
        words.get("next_step") or f"read the log of {task or 'the task that failed'}, then clear that task",
    )


def _first(dag: Any, run_id: str, ti: Any) -> tuple[str, dict[str, str]]:
    """Return the failed task before which none failed, and what it said; never one that did not fail itself."""
    if ti is None:
        return "", {}
    first: list[_Failed] = []
    try:
        states = ti.get_task_states(dag_id=dag.dag_id, run_ids=[run_id])
        found = [name for of_run in states.values() for name, state in of_run.items() if str(state) == "failed"]
        failed = sorted(task for name in found if (task := _Failed.of(dag, name)) is not None)
        ids = {task.task_id for task in failed}
        first = [t for t in failed if not ids & dag.get_task(t.task_id).get_flat_relative_ids(upstream=True)]
        for task in [*first, *(t for t in failed if t not in first)]:  # a killed one left no words: a later one did
            words = ti.xcom_pull(task_ids=task.task_id, key=KEY, map_indexes=task.map_index)
            if words:
                return str(first[0]), words
    except Exception as error:  # an alert that says less is better than none
        _log.warning("Airflow does not say what failed: %s: %s", type(error).__name__, error)
    return (str(first[0]) if first else ""), {}


@dataclass(frozen=True, order=True)
class _Failed:
    """A task instance that failed."""

    task_id: str
    map_index: int = -1

    @classmethod
    def of(cls, dag: Any, name: str) -> _Failed | None:
        """Read what Airflow calls it beside its state: ``TASK``, or ``TASK_INDEX`` of a mapped task."""
        if dag.has_task(name):
            return cls(name)
        task, _, index = name.rpartition("_")
        return cls(task, int(index)) if index.isdecimal() and dag.has_task(task) else None

    def __str__(self) -> str:
        return self.task_id if self.map_index < 0 else f"{self.task_id}[{self.map_index}]"
