"""``sluice clean``: removes old segments from a write-ahead log."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sluice.cli.output import err, print_json
from sluice.errors import ConfigError
from sluice.home import Home
from sluice.ledger import Ledger
from sluice.pipeline import load
from sluice.run.log_cleaning import clean_log

__all__ = ["clean"]


def clean(pipeline: str, *, before: str | None, older_than: timedelta | None, dry_run: bool, as_json: bool) -> None:
    """Remove applied segments that are older than a time or an age; by default older than ``wal.keep``."""
    spec, ledger = load(pipeline), Ledger.open()
    if before is not None and older_than is not None:
        raise ConfigError(
            "--before and --older-than name two thresholds",
            state="nothing was removed",
            next_step="leave one of them out",
        )
    now = datetime.now(UTC)
    threshold = _time(before) if before is not None else now - (older_than if older_than is not None else spec.wal.keep)
    found = clean_log(ledger, spec, Home.from_env(), threshold, dry_run=dry_run)
    told = {"pipeline": spec.name, "threshold": threshold.isoformat(), "dry_run": dry_run, **found.as_dict()}
    if as_json:
        print_json(told)
        return
    verb = "would be removed" if dry_run else "were removed"
    err.print(
        f"{told['segments']:,} segments ({told['records']:,} records, {told['bytes']:,} bytes) with nothing newer than "
        f"{told['threshold']} {verb}. Segments that are not applied, or hold an open lost range, are retained"
    )


def _time(text: str) -> datetime:
    try:
        stamp = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"{text!r} is not a time",
            state="nothing was removed",
            next_step="write it in ISO 8601, for example 2026-11-01T00:00:00+00:00",
        ) from None
    return stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)
