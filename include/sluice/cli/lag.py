"""``sluice lag``: how far pipelines are behind, for people, scripts and Prometheus."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sluice.cli.output import err, print_json, print_table
from sluice.connections import find
from sluice.errors import ConfigError, ExitCode, SluiceError
from sluice.home import Home
from sluice.lag import Backlog, Limits, Status
from sluice.lag.current import Known, active, backlogs
from sluice.ledger import Ledger
from sluice.ledger.cache import Cache
from sluice.pipeline import Pipeline, load, load_all
from sluice.sources.measurable import Measurable
from sluice.text import length

__all__ = ["exit_code", "openmetrics", "show"]

STDOUT = "-"
"""The file name that means stdout."""

_COLUMNS = ("pipeline", "topic", "partition", "status", "position", "start", "end", "lag", "age", "share", "lost")
_CALM = (Status.OK, Status.NEW, Status.BACKLOG, Status.CLOCK)


def show(pipeline: str | None, *, watch: bool, interval: float, as_json: bool, metrics: str | None) -> int:
    """Measure once, or every ``interval`` seconds until interrupted; return the exit code of the last measurement."""
    specs = [load(pipeline)] if pipeline else [spec for _, spec in load_all()]
    broken = [spec for spec in specs if isinstance(spec, SluiceError)]
    for error in broken:  # reported, and does not affect other pipelines
        err.print(f"sluice: error: {error}", markup=False)
    valid = [spec for spec in specs if not isinstance(spec, SluiceError)]
    # lag is measured against Kafka's brokers; a pipeline with another source is an error only if it was named
    others = [] if pipeline else [spec.name for spec in valid if spec.source.kafka is None]
    if others:
        err.print(f"without a lag, since they do not read Kafka: {', '.join(others)}", markup=False)
    looks = _Looks([spec for spec in valid if spec.name not in others])
    code, looked = 0, False
    try:
        while True:
            found = looks.once()
            _print(found, as_json=as_json, metrics=metrics, clear=watch)
            code = exit_code(found) or (int(ExitCode.CONFIG) if broken else 0)
            looked = True
            if not watch:
                break
            time.sleep(interval)
    except KeyboardInterrupt:
        if not (watch and looked):  # this is how a watch ends
            raise
    finally:
        looks.close()
    return code


def exit_code(found: Iterable[Backlog]) -> int:
    """Return the exit code for the worst pipeline.

    0: within the limits. 1: over the limits, or a status worse than CLOCK. If the lag is unknown, the exit code of
    the error: 20 if no broker answers, 23 if it refuses, 10 if a topic does not exist.
    """
    worst = max(found, key=lambda b: (b.verdict.severity, b.over), default=None)
    if worst is None or (worst.verdict in _CALM and not worst.over):
        return int(ExitCode.DONE)
    if worst.verdict in (Status.UNKNOWN, Status.AUTH) and worst.error is not None:
        return int(worst.error.exit_code)
    return int(ExitCode.OTHER)


class _Looks:
    """Measures pipelines repeatedly, with one client and one look for all pipelines of a cluster."""

    def __init__(self, specs: Sequence[Pipeline]) -> None:
        self._specs = specs
        self._ledger, self._home = Ledger.open(), Home.from_env()
        self._clusters: dict[str, Measurable] = {}
        self._known: dict[str, Cache[Known]] = {}

    def once(self) -> list[Backlog]:
        found: dict[str, Backlog | SluiceError] = {}
        together: dict[str, list[Pipeline]] = {}
        for spec in self._specs:
            try:  # a missing connection does not affect other pipelines
                together.setdefault(self._cluster(spec), []).append(spec)
            except SluiceError as error:
                found[spec.name] = error
        for name, specs in together.items():
            try:
                found |= backlogs(
                    specs,
                    self._clusters[name],
                    home=self._home,
                    ledger=self._ledger,
                    remembered=self._known.setdefault(name, Cache()),
                )
            except SluiceError as error:
                found |= {spec.name: error for spec in specs}
        return [
            one if isinstance(one := found[spec.name], Backlog) else Backlog(spec.name, (), Limits.of(spec.lag), one)
            for spec in self._specs
        ]

    def close(self) -> None:
        for cluster in self._clusters.values():
            cluster.close()

    def _cluster(self, spec: Pipeline) -> str:
        name = active(spec, lambda: self._ledger)
        if name not in self._clusters:
            self._clusters[name] = spec.source.kind.cluster(find(name))
        return name


def _print(found: Sequence[Backlog], *, as_json: bool, metrics: str | None, clear: bool) -> None:
    if metrics is not None:
        text = openmetrics(found)
        if metrics == STDOUT:
            sys.stdout.write(text)
            sys.stdout.flush()
            return
        _replace(Path(metrics), text)
    if as_json:
        print_json([b.as_dict() for b in found])
        return
    if metrics is not None and not clear:
        return
    if clear and sys.stdout.isatty():
        sys.stdout.write("\x1b[H\x1b[2J")
    rows = [{"pipeline": b.pipeline, **_row(p.as_dict())} for b in found for p in b.partitions]
    if rows:  # a pipeline whose lag is unknown has none
        print_table(rows, _COLUMNS)
    for b in found:
        err.print(_summary(b), markup=False)


def _row(part: dict[str, Any]) -> dict[str, Any]:
    age, share = part["age"], part["share"]
    return part | {"age": None if age is None else length(age), "share": None if share is None else f"{share:.1%}"}


def _summary(b: Backlog) -> str:
    parts = []
    if b.records is not None:
        parts.append(f"{b.records:,} records wait" + (" at least" if b.incomplete else ""))
    if b.age:
        parts.append(f"the oldest since {length(b.age)}")
    if b.share:
        parts.append(f"{b.share:.1%} of the retention time used")
    if b.lost:
        parts.append(f"{b.lost:,} are lost")
    if b.over:
        parts.append(f"a run is due: there are {b.limits}")
    else:  # unknown is never within
        parts.append(
            "whether a run is due is not known" if b.incomplete else f"no run is due before there are {b.limits}"
        )
    if b.running:
        parts.append(f"run {b.running} is at work")
    if b.held:
        parts.append(f"held by the verdict of run {b.held}")
    lines = [f"{b.pipeline}: {b.verdict}: {', '.join(parts)}"]
    if b.error is not None:
        lines += [f"  {line}" for line in str(b.error).splitlines()]
    return "\n".join(lines)


# --- OpenMetrics -----------------------------------------------------------------------------------------------------

_GAUGES = (
    ("sluice_lag_records", "Offsets that no run has read; markers and gaps count as well.", "lag"),
    ("sluice_lag_age_seconds", "Age of the first unread record.", "age"),
    ("sluice_lag_retention_share", "The age of the first unread record as a share of the retention time.", "share"),
    ("sluice_lag_lost_records", "Offsets that the broker removed before any run read them.", "lost"),
)


def openmetrics(found: Sequence[Backlog]) -> str:
    """Return gauges per partition, and the verdict per pipeline, in the OpenMetrics text format.

    An unknown value has no sample; it is never zero.
    """
    lines: list[str] = []
    for name, about, key in _GAUGES:
        lines += _head(name, about, "seconds" if name.endswith("_seconds") else None)
        for b in found:
            for part in b.partitions:
                value = part.as_dict()[key]
                if value is not None:
                    labels = _labels(pipeline=b.pipeline, topic=part.topic, partition=part.partition)
                    lines.append(f"{name}{labels} {value}")
    lines += _head("sluice_lag_status", "1 for the pipeline's verdict, 0 for the others.", None)
    for b in found:
        for status in Status:
            lines.append(f"sluice_lag_status{_labels(pipeline=b.pipeline, status=status)} {int(b.verdict is status)}")
    lines += _head("sluice_lag_over_limits", "Whether the pipeline's limits are exceeded, as far as known.", None)
    lines += [
        f"sluice_lag_over_limits{_labels(pipeline=b.pipeline)} {int(b.over)}"
        for b in found
        if b.over or not b.incomplete
    ]
    return "\n".join([*lines, "# EOF", ""])


def _head(name: str, about: str, unit: str | None) -> list[str]:
    return [f"# TYPE {name} gauge", *([f"# UNIT {name} {unit}"] if unit else []), f"# HELP {name} {about}"]


def _labels(**values: object) -> str:
    def quoted(value: object) -> str:
        return str(value).replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')

    return "{" + ",".join(f'{k}="{quoted(v)}"' for k, v in values.items()) + "}"


def _replace(path: Path, text: str) -> None:
    """Write a file atomically: a reader sees either the old or the new content."""
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(name, 0o644)  # the node exporter is another user
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error}",
            state="nothing else was read or written",
            next_step="name a file in an existing folder, such as the node exporter's textfile directory",
        ) from error
