"""What both operators that start Spark share: one spark-submit, built when the task runs, with typed failures."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException

from sluice.connections import Connection
from sluice.errors import ConfigError, SluiceError
from sluice.launch.submit import SparkSubmit, spark_master, submit
from sluice.pipeline import Pipeline
from sluice.pipeline.spark import RESOURCES, Spark
from sluice.run.actions import Action
from sluice_airflow import connections, failure
from sluice_airflow.gate import given
from sluice_airflow.hooks.spark import SparkHook
from sluice_airflow.links.spark_ui import SparkUiLink

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["SubmitOperator"]

_HONOURED = ("conn_id", "spark_binary", "conf", *RESOURCES)

_REFUSED = set(inspect.signature(SparkSubmitOperator.__init__).parameters) - {"self", "kwargs", *_HONOURED}
"""What the operator underneath takes and this one has no use for: the core says it, or it is for cluster mode."""

_INSTEAD = {
    "packages": "conf={'spark.jars.packages': …}",
    "exclude_packages": "conf={'spark.jars.excludes': …}",
    "repositories": "conf={'spark.jars.repositories': …}",
    "files": "conf={'spark.files': …}",
    "archives": "conf={'spark.archives': …}",
    "py_files": "conf={'spark.submit.pyFiles': …}",
    "keytab": "conf={'spark.kerberos.keytab': …}",
    "principal": "conf={'spark.kerberos.principal': …}",
    "yarn_queue": "conf={'spark.yarn.queue': …}",
    "jars": "conf={'spark.jars.packages': …}",
    "application_args": "the arguments of this operator",
    "env_vars": "the environment of the workers",
    "name": "the pipeline's name",
}


class SubmitOperator(SparkSubmitOperator):
    """A :class:`SparkSubmitOperator` whose application, arguments, configuration and jars come from the core.

    They are built in ``execute``: parsing a DAG needs neither the jars nor a connection. Reattaching to a driver
    (``durable``) is off: it acts in cluster mode only, and a run that starts again resumes from its checkpoint anyway.

    Parameters
    ----------
    pipeline
        Name or path of the pipeline (templated).
    run_id
        The run's id (templated). A retry of the task has the same one: all attempts are
        attempts of one run.
    conn_id
        The Spark connection, instead of the one that the pipeline's file names; its deploy mode must be ``client``.
    spark_binary
        The ``spark-submit`` to use; default the one beside this Python.
    conf, driver_memory, executor_memory, executor_cores, num_executors, total_executor_cores
        Instead of what the pipeline's file says below ``spark`` (templated); ``conf`` key by key. What the core sets
        itself cannot be set.
    **kwargs
        As of ``BaseOperator``.

    Raises
    ------
    ConfigError
        When it is made with an argument of :class:`SparkSubmitOperator` that would do nothing here, or with a setting
        that is the core's.
    """

    template_fields: ClassVar[tuple[str, ...]] = ("pipeline", "run_id", "conn_id", "conf", *RESOURCES)

    def __init__(
        self,
        *,
        pipeline: str,
        run_id: str = "{{ run_id }}",
        conn_id: str | None = None,
        spark_binary: str | None = None,
        conf: Mapping[str, Any] | None = None,
        driver_memory: str | None = None,
        executor_memory: str | None = None,
        executor_cores: int | str | None = None,
        num_executors: int | str | None = None,
        total_executor_cores: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        if unused := sorted(_REFUSED & set(kwargs)):
            _refuse(str(kwargs.get("task_id", "")), unused)
        super().__init__(spark_binary=spark_binary, durable=False, **kwargs)
        self.pipeline = str(pipeline)
        self.run_id = run_id
        self.conn_id = conn_id
        self.conf = conf
        self.driver_memory = driver_memory
        self.executor_memory = executor_memory
        self.executor_cores = executor_cores
        self.num_executors = num_executors
        self.total_executor_cores = total_executor_cores
        Spark().over(**_plain(self._asked_of_spark()))
        self._submission: SparkSubmit | None = None
        self._web_ui: Callable[[str], None] = lambda _: None
        self._killed = False

    def spark_settings(self, pipeline: Pipeline) -> Spark:
        """Return what the application gets: the pipeline file's, with this task's in their place.

        Raises
        ------
        ConfigError
            When a template rendered to something that cannot be set.
        """
        return pipeline.spark.over(**self._asked_of_spark())

    def _asked_of_spark(self) -> dict[str, Any]:
        return given(**{name: getattr(self, name) for name in ("conf", *RESOURCES)})

    def spark_connection(self, pipeline: Pipeline) -> Connection:
        """Return the Spark connection, checked before anything else is done.

        Raises
        ------
        ConfigError
            When it is missing, names no master that Spark knows, or asks for cluster mode.
        """
        self._conn_id = self.conn_id or pipeline.spark.connection
        spark = connections.get(self._conn_id)
        spark_master(spark)
        return spark

    def carry_out(self, pipeline: Pipeline, action: Action, context: Context, *, small: bool | None = None) -> None:
        """Start the application of an action and wait for it.

        Parameters
        ----------
        small
            As of :func:`~sluice.launch.submit.submit`.

        Raises
        ------
        SluiceError
            The typed failure of its exit code, in the application's own words.
        """
        spark, settings = self.spark_connection(pipeline), self.spark_settings(pipeline)
        self.run_spark(
            submit(pipeline, action, spark=spark, find=connections.get, settings=settings, small=small), context
        )

    def run_spark(self, submission: SparkSubmit, context: Context) -> None:
        """Start the application and wait for it.

        Raises
        ------
        SluiceError
            The typed failure of its exit code, in the application's own words.
        """
        self._submission, self._web_ui = submission, partial(SparkUiLink().show, self, context)
        self.application = str(submission.application)
        self.conf = dict(submission.conf)
        if submission.java_options:
            self.conf["spark.driver.extraJavaOptions"] = submission.java_options
        self._hook = None
        try:
            super().execute(context)
        except OSError as error:
            raise ConfigError(
                f"spark-submit cannot be started: {error}",
                state="nothing was read or written",
                next_step="make setup",
            ) from error
        except AirflowException:
            hook = self._hook
            code = hook.exit_code if hook is not None else None
            output: list[str] = list(hook.output) if hook is not None else []
            if hook is None or code in (0, None):
                raise
            raise failure.from_exit(code, output, command=self.next_step()) from None
        finally:
            self._raise_if_killed()

    def next_step(self) -> str:
        """Return the command that comes after a failure that names none."""
        return f"read the log of the task, then clear this task, or: sluice status {Path(self.pipeline).stem}"

    def _get_hook(self) -> SparkHook:
        submission = self._submission
        assert submission is not None
        hook = SparkHook(
            submission,
            conf=self.conf,
            conn_id=self._conn_id,
            jars=",".join(map(str, submission.jars)) or None,
            name=submission.name,
            application_args=submission.arguments,
            spark_binary=self._spark_binary or submission.argv()[0],
            on_web_ui=self._web_ui,
            **submission.resources,
        )
        hook.killed = self._killed
        return hook

    def on_kill(self) -> None:
        """End the application, whatever stage the task is in. The task then ends as failed, never as success."""
        self._killed = True
        if self._hook is not None:
            self._hook.on_kill()

    def _raise_if_killed(self) -> None:
        # Airflow calls on_kill from its signal handler and lets execute() go on: returning would mean success.
        if self._killed:
            raise SluiceError(
                "the task was killed, and its Spark application with it",
                state="a batch that was open is finished by the next run, exactly once; what was committed stays",
                next_step="clear the task: the same run goes on where it stopped",
            )


def _refuse(task_id: str, arguments: list[str]) -> NoReturn:
    known = [f"instead of {name}: {_INSTEAD[name]}" for name in arguments if name in _INSTEAD]
    raise ConfigError(
        f"task {task_id!r} was given what would do nothing here: {', '.join(arguments)}. Application, arguments and "
        "jars are Sluice's, and it runs in client mode",
        state="nothing was read or written",
        next_step="; ".join([*known, f"Spark's settings here are {', '.join(_HONOURED)}"]),
    )


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what only its template's rendering will say."""

    def known(value: Any) -> bool:
        return isinstance(value, int | float) or (isinstance(value, str) and "{{" not in value and "{%" not in value)

    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found[name] = {k: v for k, v in value.items() if known(v) or v is None}
        elif known(value):
            found[name] = value
    return found
