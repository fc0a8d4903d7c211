"""A function or notifier of a pipeline file, imported when a DAG run calls it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sluice.errors import ConfigError
from sluice.kinds import imported

__all__ = ["Callback"]


@dataclass(frozen=True)
class Callback:
    """A callback of a DAG. One DAG file has all pipelines, so that no module is imported while it is parsed.

    Parameters
    ----------
    key
        The key of the file, for messages.
    target
        ``package.module:name`` of a function or a notifier.
    """

    key: str
    target: str

    def __call__(self, context: Any) -> Any:
        """Import it, and call it with the context.

        Raises
        ------
        ConfigError
            If it cannot be imported, or called; or if it ends its process, in which Airflow calls those of others.
        """
        function = imported(self.target)
        if not callable(function):
            raise ConfigError(
                f"{self.key}: {self.target} is neither a function nor a notifier",
                state="the DAG run has ended, and is as it was",
                next_step="name a callable in the pipeline file",
            )
        try:
            return function(context)
        except SystemExit as end:
            raise ConfigError(
                f"{self.key}: {self.target} called sys.exit({end.code})",
                state="the DAG run has ended, and is as it was",
                next_step="let it return, or raise an exception",
            ) from None
