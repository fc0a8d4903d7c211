"""What the runs before it say of a run, as a part of its verdict."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from sluice.errors import SluiceError, described
from sluice.facts.profile import Profile
from sluice.ledger import Ledger
from sluice.pipeline import Pipeline
from sluice.run.baseline import Finding, broken_by, judge
from sluice_spark.engine.logs import logger
from sluice_spark.quality.judgement import Judgement
from sluice_spark.quality.limits import Excess

__all__ = ["ALL", "with_past"]

ALL = ("volume", "freshness", "columns")


def with_past(
    judgement: Judgement,
    pipeline: Pipeline,
    ledger: Ledger,
    runs: Sequence[str],
    profile: Profile | None = None,
    *,
    of: Collection[str] = ALL,
) -> Judgement:
    """Return a judgement with what ``quality.history`` says: what a run breaks is a limit that it exceeds.

    Parameters
    ----------
    runs, profile, of
        As for :func:`sluice.run.baseline.judge`.

    Returns
    -------
    Judgement
        With ``error`` set if that failed. Only errors of the ledger are raised.
    """
    history = pipeline.quality.history
    if history is None:
        return judgement
    try:
        found = judge(ledger, pipeline.name, history, runs, profile, of=of, held=pipeline.quality.on_failed == "hold")
    except SluiceError:
        raise
    except Exception as error:
        logger.exception("judging by history failed")
        told = f"quality.history: {described(error)}"[:2000]
        return judgement if judgement.error is not None else replace(judgement, error=told)
    return judgement if found is None else _joined(judgement, found, history.severity)


def _joined(judgement: Judgement, found: Finding, severity: str) -> Judgement:
    for what, why in found.unknown.items():
        logger.info("not judged: %s: %s", what, why)
    verdict = "failed" if severity == "critical" else "warned"
    broken = [Excess(item.what, verdict, item.why) for item in broken_by(found)]
    for excess in broken:
        logger.warning("%s: %s", excess.verdict, excess)
    told = found.as_dict()
    if judgement.history is not None:  # of the batches, before their commit
        told["checks"] = [*judgement.history["checks"], *told["checks"]]
        told["unknown"] = {**judgement.history["unknown"], **told["unknown"]}
    return replace(judgement, excesses=(*judgement.excesses, *broken), history=told)
