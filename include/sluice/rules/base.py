"""What the core knows of a row rule: its keys in the pipeline file, and where its Spark half is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sluice.fields import Strict
from sluice.kinds import imported

__all__ = ["RuleKind"]


@dataclass(frozen=True)
class RuleKind:
    """A kind of row rule: what a key beside ``name`` in an element of ``rules`` stands for.

    Parameters
    ----------
    config
        Reads what the file says.
    rule
        ``package.module:callable``: given the config it returns a ``sluice_spark.rules.base.Rule``.
    """

    config: type[Strict]
    rule: str

    def made(self, config: Any) -> Any:
        """Return the rule."""
        return imported(self.rule)(config)
