"""The outcome of judging: a verdict and what it rests on."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

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

    def __str__(self) -> str:
        shown = f", such as {', '.join(map(repr, self.examples))}" if self.examples and not self.exception else ""
        return f"{self.severity}: {self.why(observed=True)}{shown}"

    def why(self, *, observed: bool = False) -> str:
        """Return in words what failed, without values of the data unless ``observed``."""
        where = f" on {self.column}" if self.column else ""
        if self.exception:
            why = f": {self.exception if observed else self.exception.splitlines()[0][:200]}"
        elif self.unexpected_count is not None:
            why = f": {self.unexpected_count:,} unexpected ({self.unexpected_percent or 0:.2f} %)"
        else:
            why = f": observed {self.observed!r}" if observed else ""
        return f"{self.expectation}{where} ({self.scope}){why}"


@dataclass(frozen=True)
class Judgement:
    """All results of a run.

    ``error`` tells why nothing could be judged; the data is safe all the same. ``wrote`` is false when the run wrote
    nothing: then nothing of its slice was judged.
    """

    suite: str
    rows: int
    results: tuple[ExpectationResult, ...] = ()
    data_docs: str | None = None
    error: str | None = None
    runs: tuple[str, ...] = field(default=())
    excesses: tuple[Excess, ...] = ()
    wrote: bool = True

    @property
    def verdict(self) -> str:
        """``error``, ``failed`` (a critical one failed, any could not be evaluated, or a limit that fails a run was
        exceeded), ``warned``, ``empty`` (nothing was written, and nothing is to be told) or ``passed``."""
        if self.error is not None:
            return "error"
        broken = [r for r in self.results if not r.success]
        told = {e.verdict for e in self.excesses}
        if "failed" in told or any(r.severity == "critical" or r.exception for r in broken):
            return "failed"
        if broken or told:
            return "warned"
        return "passed" if self.wrote else "empty"

    @property
    def reasons(self) -> list[str]:
        """Why the verdict is not ``passed``, in words and without values of the data."""
        error = [f"judging failed: {self.error}"] if self.error is not None else []
        return [*error, *map(str, self.excesses), *(r.why() for r in self.results if not r.success)]

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON-ready form that the ledger keeps."""
        return {
            **asdict(self),
            "success": self.verdict in ("passed", "warned", "empty"),
            "runs": list(self.runs),
            "reasons": self.reasons,
        }
