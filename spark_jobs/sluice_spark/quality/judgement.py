"""The outcome of judging: a verdict and what it rests on."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

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

    def __str__(self) -> str:
        where = f" on {self.column}" if self.column else ""
        if self.exception:
            why = self.exception
        elif self.unexpected_count is not None:
            why = f"{self.unexpected_count:,} unexpected ({self.unexpected_percent or 0:.2f} %)"
            why += f", such as {', '.join(map(repr, self.examples))}" if self.examples else ""
        else:
            why = f"observed {self.observed!r}"
        return f"{self.severity}: {self.expectation}{where} ({self.scope}): {why}"


@dataclass(frozen=True)
class Judgement:
    """All results of a run.

    ``error`` tells why nothing could be judged; the data is safe all the same.
    """

    suite: str
    rows: int
    results: tuple[ExpectationResult, ...] = ()
    data_docs: str | None = None
    error: str | None = None
    runs: tuple[str, ...] = field(default=())

    @property
    def verdict(self) -> str:
        """``error``, ``failed`` (a critical one failed, or any could not be evaluated), ``warned`` or ``passed``."""
        if self.error is not None:
            return "error"
        broken = [r for r in self.results if not r.success]
        if any(r.severity == "critical" or r.exception for r in broken):
            return "failed"
        return "warned" if broken else "passed"

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON-ready form that the ledger keeps."""
        return {**asdict(self), "success": self.verdict in ("passed", "warned"), "runs": list(self.runs)}
