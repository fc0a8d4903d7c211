"""spark-submit as Airflow's Spark provider starts it, with additions."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from sluice.launch.launcher import NOISE
from sluice.launch.submit import SparkSubmit
from sluice.pipeline.spark import WEB_UI

__all__ = ["SparkHook"]

_KEPT = 200


class SparkHook(SparkSubmitHook):
    """Starts one :class:`sluice.launch.submit.SparkSubmit`.

    - The master is the one that :func:`sluice.launch.submit.spark_master` accepted. The provider alone silently
      turns a connection that it cannot read into ``yarn``.
    - Secrets go to the child's environment; on YARN and Kubernetes the provider's ``env_vars`` would be in argv.
    - ``on_web_ui`` is called with the address of Spark's web UI once the driver has one.
    - :attr:`exit_code` and :attr:`output` survive a failure; the provider's exception has them only as prose.
    - The JVM's warning about a module that Spark asks for is left out of the log.

    The child stays in the task's process group on purpose: Airflow's supervisor ends the whole group, so that a JVM
    does not outlive a task that was killed by SIGKILL.
    """

    def __init__(
        self, submit: SparkSubmit, *, on_web_ui: Callable[[str], None] = lambda _: None, **kwargs: Any
    ) -> None:
        self._submit = submit
        self._on_web_ui = on_web_ui
        self.output: deque[str] = deque(maxlen=_KEPT)
        self.killed = False
        super().__init__(**kwargs)

    def _resolve_connection(self) -> dict[str, Any]:
        return {
            **super()._resolve_connection(),
            "master": self._submit.master,
            "deploy_mode": "client",
            "spark_binary": self.spark_binary,
        }

    @property
    def exit_code(self) -> int | None:
        """The exit code of the child, negative when a signal ended it; None when it never ran."""
        return None if self._submit_sp is None else self._submit_sp.poll()

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Start it and wait.

        Raises
        ------
        AirflowException
            When it ends with another exit code than 0.
        """
        environment: Mapping[str, str] = {**os.environ, **self._submit.env}
        driver: str | None = super().submit(application, **{"env": environment, **kwargs})
        return driver

    def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
        if self.killed:  # between the kill and the start: the kill found no child
            self.on_kill()
        super()._process_spark_submit_log(self._kept(itr))

    def _kept(self, lines: Iterator[Any]) -> Iterator[Any]:
        for line in lines:
            if line.startswith(NOISE):
                continue
            self.output.append(line.rstrip())
            if WEB_UI in line:
                self._on_web_ui(line.partition(WEB_UI)[2].strip())
            yield line

    def on_kill(self) -> None:
        """End spark-submit and everything that it started; on return they are gone, or were given five seconds."""
        import psutil  # type: ignore[import-untyped]

        self.killed = True
        family = []
        if self._submit_sp is not None and self._submit_sp.poll() is None:
            try:
                family = psutil.Process(self._submit_sp.pid).children(recursive=True)
            except psutil.Error:
                family = []
        super().on_kill()
        for process in family:
            try:
                process.kill()
            except psutil.Error:
                continue
        psutil.wait_procs(family, timeout=5)
