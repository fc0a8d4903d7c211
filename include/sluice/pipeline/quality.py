"""The key ``quality`` of a pipeline file."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, WithJsonSchema, model_validator

from sluice.fields import Strict
from sluice.pipeline.history import History

__all__ = ["Quality", "exceeds"]

_SHARE = re.compile(r"^(\d{1,3}(?:\.\d+)?)\s*%$")


def _limit(value: Any) -> Any:
    share = _SHARE.match(value) if isinstance(value, str) else None
    count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if not count and (share is None or Decimal(share[1]) > 100):
        raise ValueError(
            f"{value!r} is neither a share of the run's records, such as 1%, nor a number of them, such as 100"
        )
    return value


Limit = Annotated[
    int | str,
    BeforeValidator(_limit),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^\d{1,3}(\.\d+)?\s*%$"}]}
    ),
]
"""How many of a run's records: a share such as ``1%``, or a number."""


def exceeds(limit: int | str, count: int, of: int) -> bool:
    """Return whether ``count`` of ``of`` records exceed a :data:`Limit`."""
    share = _SHARE.match(limit) if isinstance(limit, str) else None
    return count > int(limit) if share is None else count * 100 > Decimal(share[1]) * of


class Quality(Strict):
    """The Great Expectations suite that validates each run, and limits on quarantined and lost records."""

    suite: str | None = None
    """The suite's JSON file, relative to ``include/`` or to the file's folder; without it no expectation is checked."""
    on_failed: Literal["fail", "hold", "warn"] = "fail"
    """What a verdict ``failed`` or ``error`` does: ``fail`` fails the task ``validate`` (exit 50), ``warn`` logs it.

    ``hold`` fails it, and holds the live runs that follow: see :mod:`sluice.run.circuit_breaker`.
    """
    when: Literal["after_commit", "before_commit"] = "after_commit"
    """When rows are judged: a run's after its last batch, or each batch's before it is committed.

    With ``before_commit``, nothing of a batch with the verdict ``failed`` or ``error`` is published: the run fails, and
    the next one reads the same offsets again.
    """
    split: Literal["none", "critical"] = "none"
    """Whether rows that break an expectation go to the quarantine instead of the sink, in the run itself.

    With ``critical``, those that break a critical expectation on single rows. An expectation's ``meta.split`` (true or
    false) takes precedence. What is not about single rows stays with Great Expectations, which judges what remains.
    """
    masked: tuple[str, ...] = ()
    """Columns whose values no verdict shows: not in the log, the ledger or Data Docs. They have counts and offsets."""
    profiled: tuple[str, ...] = ()
    """Columns whose mean and number of distinct values a run's profile has, too: it reads them once more for that."""
    history: History | None = None
    """What is expected of a live run by the accepted runs before it: volume, freshness, and figures of columns."""
    max_quarantined: Limit = "1%"
    """The verdict is ``failed`` above this: a share of the records that the run read, or a number of records."""
    max_lost: Limit | None = None
    """The verdict is ``failed`` if more records are lost; without this key any lost record makes it ``warned``."""

    @property
    def measured(self) -> tuple[str, ...]:
        """The columns that are read back for the figures that no footer has."""
        return tuple(dict.fromkeys([*self.profiled, *(self.history.measured if self.history else ())]))

    @property
    def named(self) -> dict[str, tuple[str, ...]]:
        """The columns that keys name, by key."""
        history = tuple(self.history.columns if self.history else ())
        return {"masked": self.masked, "profiled": self.profiled, "history.columns": history}

    @model_validator(mode="after")
    def _hidden(self) -> Quality:
        masked = {name.lower() for name in self.masked}
        figures = self.history.columns if self.history else {}
        named = {**{name: "profiled" for name in self.profiled}}
        named |= {name: "history.columns" for name, of in figures.items() if set(of) != {"nulls"}}
        for name, key in named.items():
            if {name.lower(), name.partition(".")[0].lower()} & masked:
                raise ValueError(
                    f"{key}: {name} is masked, so a profile has only its nulls: remove it from {key} or from masked"
                )
        return self

    @model_validator(mode="after")
    def _published(self) -> Quality:
        if self.when == "before_commit" and self.on_failed == "warn":
            raise ValueError(
                "on_failed: warn would publish what when: before_commit holds back: choose fail or hold, or remove the "
                "key when"
            )
        return self
