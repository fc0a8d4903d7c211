"""What both operators that start Spark share: one spark-submit, built when the task runs, with typed failures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException

from sluice.connections import Connection
from sluice.errors import ConfigError, SluiceError
from sluice.launch.submit import SparkSubmit, spark_master
from sluice.pipeline import Pipeline
from sluice_airflow import connections, failure
from sluice_airflow.hooks.spark import SparkHook

if TYPE_CHECKING:
    from airflow.sdk import Context

__all__ = ["SubmitOperator"]


class SubmitOperator(SparkSubmitOperator):
    """A :class:`SparkSubmitOperator` whose application, arguments, configuration and jars come from the core.

    They are built in ``execute``: parsing a DAG needs neither the jars nor a connection. Reattaching to a driver
    (``durable``) is off: it acts in cluster mode only, and a run that starts again resumes from its checkpoint anyway.

    Parameters
    ----------
    pipeline
        Name or path of the pipeline (templated).
    run
        The run's id (templated). A retry of the task has the same one: a run is one opening of the gate, however many
        attempts it takes.
    conn_id
        The Spark connection; its deploy mode must be ``client``.
    spark_binary
        The ``spark-submit`` to use; default the one beside this Python.
    **kwargs
        As of ``BaseOperator``.
    """

    template_fields: ClassVar[tuple[str, ...]] = ("pipeline", "run")

    def __init__(
        self,
        *,
        pipeline: str,
        run: str = "{{ run_id }}",
        conn_id: str = "spark_default",
        spark_binary: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(conn_id=conn_id, spark_binary=spark_binary, **{"durable": False, **kwargs})
        self.pipeline = str(pipeline)
        self.run = run
        self._submission: SparkSubmit | None = None
        self._killed = False

    def spark_connection(self) -> Connection:
        """Return the Spark connection, checked before anything else is done.

        Raises
        ------
        ConfigError
            When it is missing, names no master that Spark knows, or asks for cluster mode.
        """
        spark = connections.get(self._conn_id)
        spark_master(spark)
        return spark

    @staticmethod
    def source_connection(pipeline: Pipeline) -> Connection | None:
        """Return the connection that the pipeline's source needs, if it needs one."""
        needs = pipeline.source.config.needs
        return connections.get(needs) if needs else None

    def run_spark(self, submission: SparkSubmit, context: Context) -> None:
        """Start the application and wait for it.

        Raises
        ------
        SluiceError
            The typed failure of its exit code, in the application's own words.
        """
        self._submission = submission
        self.application = str(submission.application)
        self.application_args = submission.arguments
        self.conf = dict(submission.conf)
        if submission.java_options:
            self.conf["spark.driver.extraJavaOptions"] = submission.java_options
        self.jars = ",".join(map(str, submission.jars)) or None
        self.name = submission.name
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
        return f"read the log above, then clear this task, or: sluice status {Path(self.pipeline).stem}"

    def _get_hook(self) -> SparkHook:
        assert self._submission is not None
        hook = SparkHook(
            self._submission,
            conf=self.conf,
            conn_id=self._conn_id,
            jars=self.jars,
            name=self.name,
            application_args=self.application_args,
            spark_binary=self._spark_binary or self._submission.argv()[0],
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
