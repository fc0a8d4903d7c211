"""``sluice state``: what a pipeline with windows, ``dedupe`` or a processor keeps between its runs."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from sluice.cli.output import err, print_json, print_table, say_empty
from sluice.connections import Connection, find
from sluice.errors import ConfigError, SluiceError
from sluice.home import Home
from sluice.launch.submit import submit
from sluice.ledger import Ledger
from sluice.pipeline import Pipeline, load
from sluice.pipeline.operator import StateOperator
from sluice.pipeline.window import Window
from sluice.recovery import Route
from sluice.run.actions import ReadState
from sluice.run.checkpoint import Checkpoint
from sluice.run.growth import warning
from sluice.run.slowest_partition import held_by
from sluice.text import moment

__all__ = ["history", "state"]

_EVER = 1 << 52
"""Longer than any time since 1970, in milliseconds."""

_MOST = 1000
"""Maximum number of rows of the state that are shown of a key."""

_CLOSES = {
    "append": "A window is written when a batch has read an event time of closes_at or later",
    "update": "A window changes no more when a batch has read an event time of closes_at or later",
    "complete": "No window is ever closed",
}
"""By ``output``: what becomes of an open window."""


def state(pipeline: str, *, key: Sequence[str] = (), batch: int | None = None, as_json: bool) -> int:
    """Print the state of the present epoch; return the exit code.

    Parameters
    ----------
    key
        Print only what is kept of one key: ``COLUMN=VALUE`` of some of its columns.
    batch
        After which committed batch; by default the newest.

    Raises
    ------
    ConfigError
        If the pipeline has nothing that keeps state, its keys have no such column, or there is no such batch.
    SluiceError
        If Spark cannot read the state.
    """
    spec = _stateful(pipeline)
    home, ledger = Home.from_env(), Ledger.open()
    epoch = ledger.offsets.epoch(spec.name)
    first = Checkpoint(home.checkpoint(spec.name, epoch.number), epoch.positions)
    # by way of the log, a second checkpoint has the state
    checkpoint = Checkpoint(home.applied(spec.name, epoch.number)) if epoch.route is Route.LOG else first
    committed = checkpoint.committed()
    if batch is not None:
        _check_batch(spec, committed, batch)
        committed = [batch]
    defined = first.definition()
    definition = defined[1] if defined else {}
    of = _wanted(spec, definition, key) if key else None
    told: dict[str, Any] = {"pipeline": spec.name, "epoch": epoch.number, "batch": None}
    if of is not None:
        told["rows"] = []
    elif spec.window is not None:
        told["windows"] = []
    if committed and of is not None:
        found = _read(spec, checkpoint, committed[-1], _panes(checkpoint, definition, committed[-1]), of)
        told = {**told, "batch": committed[-1], "rows": found[:_MOST], "more": len(found) > _MOST}
    elif committed:
        found = _read(spec, checkpoint, committed[-1], _panes(checkpoint, definition, committed[-1]))
        if spec.window is not None and (former := checkpoint.former_to()) is not None:
            found = [each for each in found if each["window_end"] > former]
        told |= {
            "batch": committed[-1],
            "watermark": checkpoint.watermark(committed[-1]),
            "definition": definition or None,
            "shares": checkpoint.shares(),
            "bytes": checkpoint.state_bytes(),
            **_held(spec, ledger, epoch.number),
            **(_of_windows(spec.window, found) if spec.window is not None else found[0]),
        }
    wrong = warning(ledger, spec)
    if as_json:
        print_json(told if of is not None else {**told, "alarm": wrong})
    elif not committed:
        err.print(f"{spec.name} has no state yet: no batch was committed in epoch {epoch.number}", markup=False)
    else:
        _show(told, spec.stateful, {} if of is not None or spec.window is not None else found[0])
    if wrong is not None and not as_json:
        err.print(wrong, markup=False)
    return 0


def history(pipeline: str, *, limit: int, as_json: bool) -> int:
    """Print the state that the newest runs left behind, as the ledger has it; return the exit code.

    Raises
    ------
    ConfigError
        If the pipeline has nothing that keeps state.
    """
    spec = _stateful(pipeline)
    ledger = Ledger.open()
    unknown = {} if spec.stateful is not None and spec.stateful.measures else {"live": None}
    newest = list(islice(ledger.facts.states(spec.name), limit))[::-1]
    rows = [{**asdict(row), **row.sums, **unknown} for row in newest]
    wrong = warning(ledger, spec)
    if as_json:
        print_json({"pipeline": spec.name, "runs": rows, "alarm": wrong})
        return 0
    shown = (
        "run", "at", "epoch", "batch", "keys", "windows", "live", "updated", "removed", "bytes", "memory", "watermark",
    )  # fmt: skip
    print_table([{**row, "watermark": moment(row["watermark"])} for row in rows], shown)
    if not rows:
        say_empty(spec.name, "run with state")
    if wrong is not None:
        err.print(wrong, markup=False)
    return 0


def _held(spec: Pipeline, ledger: Ledger, epoch: int) -> dict[str, Any]:
    """Return which partition holds the watermark in the next run; nothing without ``hold``."""
    if spec.stateful is None or spec.stateful.hold is None:
        return {}
    behind = held_by(ledger, spec, epoch)
    return {"held_by": None if behind is None else behind._asdict()}


def _stateful(pipeline: str) -> Pipeline:
    spec = load(pipeline)
    if spec.stateful is None:
        raise ConfigError(
            f"pipeline {spec.name!r} has no aggregate, window, dedupe or processor, and keeps nothing between runs",
            state="nothing was read or written",
            next_step=f"sluice status {spec.name} shows its runs",
        )
    return spec


def _check_batch(spec: Pipeline, committed: Sequence[int], batch: int) -> None:
    if batch not in committed:
        known = f"{committed[0]} to {committed[-1]}" if committed else "none"
        raise ConfigError(
            f"--batch: the checkpoint of {spec.name} has committed no batch {batch}",
            state="nothing was read",
            next_step=f"its batches are {known}; Spark keeps the state of about the last hundred",
        )


def _wanted(spec: Pipeline, definition: Mapping[str, Any], key: Sequence[str]) -> tuple[list[str], dict[str, str], int]:
    """Return the columns of the state's keys, the wanted values of some, and how many rows to look for."""
    names = list(definition.get("keys") or definition.get("by") or [])
    if not names and not definition:  # no epoch has begun with it yet
        names = list(spec.stateful.grouping if spec.stateful is not None else ())
    wanted: dict[str, str] = {}
    for item in key:
        name, given, value = item.partition("=")
        if not given or name not in names:
            what = f"keys have no column {name!r}" if given else f"{item!r} is not COLUMN=VALUE"
            raise ConfigError(
                f"--key: {what}",
                state="nothing was read",
                next_step=f"write, for example, --key {names[0]}=VALUE; columns of keys are: {', '.join(names)}"
                if names
                else "windows without window.by have no key: leave --key out",
            )
        wanted[name] = value
    return names, wanted, _MOST + 1


def _of_windows(window: Window, found: list[dict[str, Any]]) -> dict[str, Any]:
    delay = round(window.delay.total_seconds() * 1000)
    ever = window.output == "complete"
    return {
        "keys": sum(each["keys"] for each in found),
        "windows": [each | {"closes_at": None if ever else each["window_end"] + delay} for each in found],
    }


def _show(told: dict[str, Any], of: StateOperator | None, kept_of: Mapping[str, Any]) -> None:
    if "rows" in told:
        _show_rows(told)
        return
    kept = f"{told['bytes']:,} bytes in {told['shares']} shares"
    kept += f"; watermark {moment(told['watermark'])}. " if told["watermark"] else ". "
    if (by := told.get("held_by")) is not None:
        kept += (
            f"In the next run {by['topic']}-{by['partition']} holds it, the slowest partition, whose latest event time "
            f"is {moment(by['latest'])}: event times below are those of that partition. "
        )
    elif "held_by" in told:
        kept += "No partition is known yet, so the next run does not move it. "
    epoch = f"epoch {told['epoch']}, batch {told['batch']}"
    if "windows" not in told:
        row = {n: moment(v) if n.endswith("_at") and v is not None else v for n, v in kept_of.items()}
        print_table([row], tuple(row))
        assert of is not None
        err.print(f"{epoch}: {of.counted.format(**kept_of)}, {kept}{of.ends}", markup=False)
        return
    shown = ("window_start", "window_end", "keys", "closes_at")
    rows = [{n: w[n] if n == "keys" or w[n] is None else moment(w[n]) for n in shown} for w in told["windows"]]
    print_table(rows, shown)
    err.print(
        f"{epoch}: {told['keys']:,} keys in {len(rows):,} open windows, {kept}"
        f"{_CLOSES[(told['definition'] or {}).get('output', 'append')]}",
        markup=False,
    )


def _show_rows(told: dict[str, Any]) -> None:
    bounds = ("window_start", "window_end")
    rows = [
        {
            "key": ", ".join(f"{name}={'null' if text is None else text}" for name, text in row["key"].items()),
            **{name: moment(row[name]) for name in bounds if name in row},
            "state": row["state"],
        }
        for row in told["rows"]
    ]
    if rows:
        print_table(rows, tuple(rows[0]))
    else:
        err.print("nothing is kept of such a key", markup=False)
    more = "; there are more: add --key for further columns" if told["more"] else ""
    err.print(f"epoch {told['epoch']}, batch {told['batch']}: {len(rows):,} rows of the state{more}", markup=False)


def _panes(
    checkpoint: Checkpoint, definition: Mapping[str, Any], batch: int | None = None
) -> tuple[int, int, int] | None:
    """Return size and slide of windows made of panes, as the epoch began with them, and the watermark after a batch."""
    if "slide" not in definition or checkpoint.panes() is None:
        return None
    closed = -_EVER if definition.get("output") == "complete" else checkpoint.watermark(batch)
    return round(definition["size"] * 1000), round(definition["slide"] * 1000), closed


def _read(
    spec: Pipeline,
    checkpoint: Checkpoint,
    batch: int,
    panes: tuple[int, int, int] | None,
    of: tuple[list[str], dict[str, str], int] | None = None,
) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
        result = Path(folder) / "result.json"
        spark = Connection("spark_default", "spark", host="local[2]")
        action = ReadState(result, checkpoint.path, batch, str(spec.keeps), panes, of)
        started = submit(spec, action, spark=spark, find=find)
        done = subprocess.run(
            started.argv(),
            env={**os.environ, **started.env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        try:
            found: list[dict[str, Any]] = json.loads(result.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            said = done.stdout.decode(errors="replace").strip()
            raise SluiceError(
                f"Spark ended with code {done.returncode} and no result:\n{said[-4000:]}",
                state="nothing was written; the checkpoint is as it was",
                next_step="fix what it reports. A run may have committed a batch meanwhile: then ask again",
            ) from None
    return found
