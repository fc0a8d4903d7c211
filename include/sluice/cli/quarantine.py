"""``sluice quarantine``: shows what was refused, and why, and drops it."""

from __future__ import annotations

import difflib
from datetime import UTC, datetime

from sluice.cli.output import err, print_json, print_table
from sluice.cli.run import carry_out, ended
from sluice.decoders.explain import explained
from sluice.delta.samples import look
from sluice.errors import ConfigError, ExitCode
from sluice.home import Home
from sluice.ledger import Ledger
from sluice.pipeline import Pipeline, load
from sluice.run.actions import Redrive
from sluice.run.redrive_plan import possible, way_out

__all__ = ["drop", "quarantine"]


def drop(
    pipeline: str, *, rule: str | None, run: str | None, before: datetime | None, reason: str, as_json: bool
) -> int:
    """Take refused records out of the quarantine, by a run that the ledger has; return its exit code.

    Raises
    ------
    ConfigError
        If there is no valid pipeline file, or the rule or the run is unknown. That no record is old enough is none.
    """
    spec = load(pipeline)
    possible(spec, quarantined=True)
    found = look(Home.from_env().resolve(spec.quarantine_path), rule=rule, run=run, before=before)
    if not found.records:
        _refuse_misspelt(spec, pipeline, found.path, rule=rule, run=run)
        err.print(f"there is nothing to drop, so nothing was changed: {found.path}", markup=False)
        if as_json:
            print_json({"pipeline": spec.name, "dropped": 0})
        return int(ExitCode.DONE)
    err.print(f"{found.records:,} records are to be dropped from {found.path}", markup=False)
    name = f"drop__{datetime.now(UTC).isoformat(timespec='milliseconds')}"
    action = Redrive(
        name, (), run, quarantined=True, dropping=True, rule=rule, before=before, reason=reason, validate=False
    )
    code = carry_out(spec, action)
    return ended(spec, name, code, as_json=as_json)


def _refuse_misspelt(spec: Pipeline, pipeline: str, path: str, *, rule: str | None, run: str | None) -> None:
    if run is not None:
        Ledger.open().runs.known(spec.name, run)
    if rule is None or rule in {known.name for known in spec.rules}:
        return
    if not look(path, rule=rule).records:
        raise ConfigError(
            f"no such record is in quarantine: {path}",
            state="nothing was changed",
            next_step=f"sluice quarantine {pipeline} shows what is there",
        )


def _near(spec: Pipeline, rule: str) -> str | None:
    """Return the rule, of those that refused records, whose name is like this one."""
    known = {group.rule for group in look(Home.from_env().resolve(spec.quarantine_path)).groups} - {rule}
    return next(iter(difflib.get_close_matches(rule, sorted(known), n=1)), None)


def quarantine(
    pipeline: str,
    *,
    rule: str | None,
    run: str | None,
    since: datetime | None,
    before: datetime | None,
    show: int,
    as_json: bool,
) -> None:
    """Print what the quarantine of a pipeline holds.

    Raises
    ------
    ConfigError
        If there is no valid pipeline file, or no such run.
    SinkError
        If the table cannot be read.
    """
    spec = load(pipeline)
    found = look(
        Home.from_env().resolve(spec.quarantine_path),
        rule=rule,
        run=run,
        since=since,
        before=before,
        show=show,
        explain=explained(spec.decode.key, spec.decode.config),
    )
    if run is not None and not found.records:
        Ledger.open().runs.known(spec.name, run)  # a misspelt one must not look like one that refused nothing
    if as_json:
        print_json({"pipeline": spec.name, **found.as_dict()})
        return
    if found.groups:
        rows = [group.as_dict() for group in found.groups]
        print_table(rows, ["rule", "column", "records", "runs", "first", "last"])
    for sample in found.samples:
        where = f"\n{sample.topic}-{sample.partition} offset {sample.offset} ({sample.timestamp}), run {sample.run}"
        broke = f"{sample.rule}{f', column {sample.column}' if sample.column else ''}"
        why = f": {sample.detail}" if sample.detail else ""
        print(f"{where}\n  broke {broke}{why}\n  key {sample.key!r}, value {sample.text!r}")
    if not found.records and rule is not None and (near := _near(spec, rule)):
        err.print(f"did you mean {near!r}?", markup=False)
    asked = any(choice is not None for choice in (rule, run, since, before))
    if not found.records:
        err.print(f"nothing {'of that ' if asked else ''}is in quarantine: {found.path}", markup=False)
        return
    err.print(
        f"{found.records:,} records are in quarantine: {found.path}\n{way_out(spec)}",
        markup=False,
    )
