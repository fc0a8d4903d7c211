"""The result of a validation: a verdict and its reasons."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from sluice.errors import quoted
from sluice.run.circuit_breaker import FAILED, FRESHNESS
from sluice.run.verdict import WARNS, causes, faults, told
from sluice_spark.quality.limits import Excess

__all__ = ["ExpectationResult", "Judgement"]


@dataclass(frozen=True)
class ExpectationResult:
    """One expectation on one scope (``slice``: the rows of the run; ``table``: all rows)."""

    expectation: str
    column: str | None
    severity: str
    success: bool
    observed: Any
    unexpected_count: int | None
    unexpected_percent: float | None
    examples: list[Any]
    exception: str | None
    scope: str
    values: list[dict[str, Any]] = field(default_factory=list)
    """The examples again, each ``value`` with its ``count`` among the rows that were looked at."""
    seen: int = 0
    """How many of the rows that break the expectation were looked at."""
    records: list[dict[str, Any]] = field(default_factory=list)
    """``topic``, ``partition`` and ``offset`` of the first of these rows, where rows tell their record."""
    missing_count: int | None = None
    """How many values of a set no row has."""
    arguments: str | None = None
    """A digest of the arguments that the suite gives, by which it is known again."""
    expected: str | None = None
    """The suite's bounds in words, such as ``between 0 and 400``."""

    def __str__(self) -> str:
        shown = [] if self.exception else told({**asdict(self), "expected": None})
        return "; ".join([f"{self.severity}: {self.why(observed=True)}", *shown])

    @property
    def fails(self) -> bool:
        """Whether it makes the verdict fail, once it is broken."""
        return self.severity == "critical" or bool(self.exception)

    def why(self, *, observed: bool = False) -> str:
        """Describe what failed, without values of the data unless ``observed``."""
        where = f" on {self.column}" if self.column else ""
        why = [self.expected] if self.expected else []
        if self.exception:
            first = next((line for line in self.exception.splitlines() if line.strip()), "")
            why = [self.exception if observed else quoted(first[:200])]
        elif self.unexpected_count is not None:
            share = "" if self.unexpected_percent is None else f" ({self.unexpected_percent:.2f} %)"
            why.append(f"{self.unexpected_count:,} unexpected{share}")
        elif observed:
            why.append(f"observed {self.observed!r}")
        return f"{self.expectation}{where} ({self.scope}){': ' if why else ''}{', '.join(why)}"


@dataclass(frozen=True)
class Judgement:
    """All results of a run's validation.

    ``error`` says why the validation failed; the data is safe nevertheless. ``wrote`` is false if the run wrote
    nothing; its slice was then not validated.
    """

    suite: str
    rows: int
    results: tuple[ExpectationResult, ...] = ()
    data_docs: str | None = None
    error: str | None = None
    runs: tuple[str, ...] = field(default=())
    excesses: tuple[Excess, ...] = ()
    wrote: bool = True
    history: dict[str, Any] | None = None
    """The comparison with earlier runs, as :meth:`sluice.run.baseline.Finding.as_dict`; None without one."""

    @property
    def verdict(self) -> str:
        """``error``, ``failed`` (a critical expectation failed, any raised an exception, or a failing limit was
        exceeded), ``warned``, ``empty`` (nothing was written, and nothing is wrong) or ``passed``."""
        if self.error is not None:
            return "error"
        broken = [r for r in self.results if not r.success]
        told = {e.verdict for e in self.excesses}
        if "failed" in told or any(r.fails for r in broken):
            return "failed"
        if broken or told:
            return "warned"
        return "passed" if self.wrote else "empty"

    def after(self, others: Judgement) -> Judgement:
        """Return this judgement, failed if that of earlier runs is, which this run answers for."""
        # that the table is not fresh is a fault of this run's, too
        wrong = [fault for fault in faults(others.as_dict()) if not fault.startswith(FRESHNESS)]
        if others.verdict not in FAILED or not wrong:
            return self
        why = f"{', '.join(others.runs)}, not judged before: {'; '.join(causes(others.reasons)[:3])}"
        excesses = (*self.excesses, Excess("earlier_runs", "failed", why))
        return replace(self, excesses=excesses, runs=(*others.runs, *self.runs))

    def accepted(self, *more: Excess) -> Judgement:
        """Return this judgement as one that only warns, of what a user accepted; and with more that does."""
        results = tuple(replace(r, severity="warning", exception=None) if not r.success else r for r in self.results)
        excesses = (*(replace(e, verdict="warned") for e in self.excesses), *more)
        return replace(self, error=None, results=results, excesses=excesses)

    @property
    def reasons(self) -> list[str]:
        """Messages that say why the verdict is not ``passed``, without values of the data.

        What made it fail comes first. What only warns beside that says so (:data:`sluice.run.verdict.WARNS`).
        """
        error = [f"judging failed: {self.error}"] if self.error is not None else []
        found = [(e.verdict == "failed", str(e)) for e in self.excesses]
        found += [(r.fails, r.why()) for r in self.results if not r.success]
        mark = WARNS if self.verdict in FAILED else ""
        return [*error, *(why for fails, why in found if fails), *(f"{w}{mark}" for fails, w in found if not fails)]

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON-ready form that the ledger stores."""
        return {
            **asdict(self),
            "success": self.verdict in ("passed", "warned", "empty"),
            "runs": list(self.runs),
            "reasons": self.reasons,
        }
