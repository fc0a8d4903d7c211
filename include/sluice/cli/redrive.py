"""``sluice redrive``: writes lost ranges or quarantined records into the sink, once they can be read or processed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sluice.cli.output import err, print_json, print_table
from sluice.cli.preview import looked, print_differences
from sluice.cli.run import carry_out, ended
from sluice.errors import ConfigError, SluiceError
from sluice.home import Home
from sluice.ledger import Ledger
from sluice.pipeline import Pipeline, load
from sluice.ranges import OffsetRange, overlaps
from sluice.run.actions import Redrive, TryQuarantined
from sluice.run.locate import locate
from sluice.run.redrive_plan import check_ranges, possible, states_for
from sluice.sources.state import TopicState
from sluice.wal import WriteAheadLog

__all__ = ["redrive"]


def redrive(
    pipeline: str,
    run_id: str,
    *,
    ranges: Sequence[OffsetRange],
    of_run: str | None,
    quarantined: bool,
    dry_run: bool,
    validate: bool,
    as_json: bool,
) -> int:
    """Redrive, or with ``dry_run`` show what could be redriven; return the exit code."""
    spec, ledger = load(pipeline), Ledger.open()
    for item in ranges:
        if not spec.source.config.reads(item.topic) and item.topic not in ledger.runs.topic_ids(spec.name):
            raise ConfigError(
                f"--range: {spec.name} does not read {item.topic!r}",
                state="nothing was read or written",
                next_step=f"name one of: {', '.join(spec.source.config.labels)}",
            )
    if of_run is not None:
        ledger.runs.known(spec.name, of_run)
    check_ranges(ledger, spec.name, ranges)
    possible(spec, quarantined=quarantined)
    if dry_run and quarantined:
        _try_quarantined(spec, pipeline, ranges, of_run, as_json=as_json)
        return 0
    if dry_run:
        _show(spec, ranges, of_run, as_json=as_json)
        return 0
    if not quarantined and not ledger.offsets.lost(spec.name, run_id=of_run):
        err.print(f"{spec.name} has no open lost range: there is nothing to redrive", markup=False)
    action = Redrive(run_id, tuple(ranges), of_run, quarantined, validate=validate)
    code = carry_out(spec, action)
    code = ended(spec, run_id, code, as_json=as_json)
    still = ledger.offsets.lost(spec.name)
    if still and not as_json:
        err.print(
            f"{sum(len(r.range) for r in still):,} offsets are still lost: sluice redrive {spec.called} --dry-run says "
            f"where they are; what is nowhere is closed by sluice acknowledge {spec.called} --reason TEXT"
        )
    return code


def _try_quarantined(
    spec: Pipeline, pipeline: str, ranges: Sequence[OffsetRange], of_run: str | None, *, as_json: bool
) -> None:
    """Print how many quarantined records decode now, and what the others still break."""
    found = looked(spec, lambda result: TryQuarantined(result, tuple(ranges), of_run))
    if as_json:
        print_json(found)
        return
    if found["still"]:
        print_table(found["still"], ["rule", "column", "records"])
    err.print(
        f"{found['decodable']:,} of {found['records']:,} quarantined records decode and pass the row rules now; "
        "nothing was written",
        markup=False,
    )
    refused = found["decodable"] and print_differences(found["table"])
    if found["decodable"]:
        then = "to write them, once their rows fit the table" if refused else "to write them"
        err.print(f"{then}: sluice redrive {spec.called} --quarantined", markup=False)


def _states(spec: Pipeline, streams: Iterable[str]) -> list[TopicState]:
    """Return the state of the source's streams; empty if the source is down, as in the redrive itself."""
    if not spec.source.kind.replayable:
        return []
    found, places = list[TopicState](), spec.source.config.everywhere()
    for config in places:
        with spec.source.kind.opened(config, Home.from_env(), spec.name) as source:
            try:
                found += states_for(
                    source, [stream for stream in streams if config.has(stream)], Ledger.open(), spec.name
                )
            except SluiceError as error:
                rest = "only the write-ahead log was searched" if len(places) == 1 else "it was not searched"
                err.print(f"{error.what}: {rest}", markup=False)
    return found


def _show(spec: Pipeline, ranges: Sequence[OffsetRange], of_run: str | None, *, as_json: bool) -> None:
    ledger, home = Ledger.open(), Home.from_env()
    rows = ledger.offsets.lost(spec.name, run_id=of_run)
    states = _states(spec, {row.range.topic for row in rows}) if rows else []
    wanted = overlaps([r.range for r in rows], ranges) if ranges else [r.range for r in rows]
    found = locate(wanted, WriteAheadLog(home.log(spec.name), spec.name), states, ledger.runs.topic_ids(spec.name))
    places = (("write-ahead log", found.log), (spec.source.key, found.kafka), ("nowhere", found.nowhere))
    listed = [
        {
            "topic": part.topic, "partition": part.partition, "start": part.start, "end": part.end,
            "offsets": len(part), "held by": place, "lost by": row.run, "reason": row.reason,
        }
        for place, parts in places
        for part in parts
        for row in rows
        if row.range.cut(part) == part
    ]  # fmt: skip
    if as_json:
        print_json(listed)
    elif not listed:
        of = " of that" if ranges or of_run else ""
        err.print(f"no offset{of} is open as lost: there is nothing to redrive", markup=False)
    else:
        print_table(listed, ["topic", "partition", "start", "end", "offsets", "held by", "lost by", "reason"])
