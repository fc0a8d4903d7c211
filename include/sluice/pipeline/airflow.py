"""The key ``airflow`` of a pipeline file: how Airflow runs the DAG's tasks."""

from __future__ import annotations

import re
from datetime import date, timedelta
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field, field_validator, model_validator

from sluice.fields import Duration, Strict
from sluice.pipeline.schedule import Schedule, check_cron
from sluice.pipeline.targets import check_function

__all__ = ["Airflow", "Freshness"]


def _target(target: str) -> str:
    check_function(target)
    return target


def _maintenance(when: str) -> str:
    return when if when == "manual" else check_cron(when)


def _address(text: str) -> str:
    if not re.fullmatch(_ADDRESS, text):
        raise ValueError("not a mail address, such as team@example.org")
    return text


def _line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("it has a character that is not printable: write one line of text")
    return text


_ADDRESS = r"^[^@\s,;]+@[^@\s,;]+$"

Address = Annotated[str, AfterValidator(_address), Field(json_schema_extra={"pattern": _ADDRESS})]
"""A mail address."""

Label = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_line)]
"""A name that Airflow stores: one line."""

Target = Annotated[str, AfterValidator(_target)]
"""``package.module:name``, on the Python path."""


Step = Literal["audit", "clean", "compact", "vacuum"]
"""A step of maintenance."""


class Freshness(Schedule):
    """How fresh the table must be, and when that is checked."""

    max_age: Duration
    """The check fails if a record that is older than this, by Kafka's timestamp, is not in the table yet."""


class Airflow(Strict):
    """How Airflow runs the DAG's tasks; without effect elsewhere."""

    execution_timeout: Duration = timedelta(hours=12)
    """The longest that one attempt of a task may take. Then Airflow ends its driver; a retry goes on with the run."""

    max_drivers: Annotated[int, Field(ge=1, le=10_000)] = 2
    """How many runs of the DAG may be in ``ingest`` at the same time: those of a backfill, and the live one."""
    pool: Label | None = None
    """A pool of Airflow's, which has to exist, for the tasks that start Spark: it bounds several pipelines together."""
    owner: Label | None = None
    """The owner that Airflow shows for the DAG; by default Airflow's own default."""
    tags: tuple[Annotated[Label, Field(max_length=100)], ...] = ()
    """Tags of the DAG, beside those that Sluice adds."""
    description: Annotated[str, Field(max_length=2000), AfterValidator(_line)] | None = None
    """One line about the DAG, in Airflow's list of DAGs."""
    retries: Annotated[int, Field(ge=0, le=1000)] = 3
    """How often a task is tried again, where trying again may help."""
    queue: Label | None = None
    """The queue of the DAG's tasks, for executors that have queues."""
    priority: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """The priority weight of the DAG's tasks: a larger one gets a free place first."""
    maintenance: Annotated[str, AfterValidator(_maintenance)] | None = None
    """A DAG ``PIPELINE.maintenance`` that redrives on request, audits and cleans: a cron line (UTC), or ``manual``."""
    maintenance_steps: Annotated[tuple[Step, ...], Field(min_length=1)] = ("audit", "clean")
    """What that DAG does behind a redrive, in this order: ``audit``, ``clean``, ``compact``, ``vacuum``."""
    start_date: Annotated[date, Field(ge=date(1970, 1, 1))] | None = None
    """The first day, in UTC, that a backfill may reprocess; by default in the year 2000."""
    access_control: dict[str, tuple[Annotated[str, Field(min_length=1)], ...]] | None = None
    """What each role may do with the DAG, such as ``{Analyst: [can_read]}``; for auth managers with roles of a DAG."""
    maintenance_access_control: dict[str, tuple[Annotated[str, Field(min_length=1)], ...]] | None = None
    """The same for ``PIPELINE.maintenance``, which changes the table; by default as ``access_control``."""
    freshness: Freshness | None = None
    """A DAG ``PIPELINE.freshness`` that fails, and alerts, when the table is not fresh at a time of its ``cron``."""
    email: tuple[Address, ...] = ()
    """Who gets a mail when a DAG run has failed, by Airflow's connection ``smtp_default``."""
    on_failure: tuple[Target, ...] = ()
    """Functions, or notifiers, as ``package.module:name``: called with Airflow's context when a DAG run has failed."""
    on_success: tuple[Target, ...] = ()
    """The same, when a DAG run has succeeded."""

    @field_validator("maintenance_steps")
    @classmethod
    def _maintenance_steps(cls, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        order = list(get_args(Step))
        if list(steps) != [step for step in order if step in steps]:
            raise ValueError(f"each step at most once, in the order {', '.join(order)}")
        return steps

    @model_validator(mode="after")
    def _steps_of_something(self) -> Airflow:
        for name in ("maintenance_steps", "maintenance_access_control"):
            if name in self.model_fields_set and self.maintenance is None:
                raise ValueError(f"{name} does nothing without maintenance: add a cron line, or manual")
        return self

    @field_validator("execution_timeout")
    @classmethod
    def _execution_timeout(cls, timeout: timedelta) -> timedelta:
        if timeout <= timedelta(0):
            raise ValueError("a task that may take no time never runs: write 1m or more, such as 12h")
        return timeout
