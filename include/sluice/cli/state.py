"""``sluice state``: what a pipeline with windows or ``dedupe`` keeps between its runs."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sluice.cli.output import err, moment, print_json, print_table
from sluice.connections import Connection
from sluice.errors import ConfigError, SluiceError
from sluice.home import Home
from sluice.launch.submit import read_state
from sluice.ledger import Ledger
from sluice.pipeline import Pipeline, load
from sluice.pipeline.window import Window
from sluice.recovery import Route
from sluice.run.checkpoint import Checkpoint

__all__ = ["state"]


def state(pipeline: str, *, as_json: bool) -> int:
    """Print the state of the present epoch; return the exit code.

    Raises
    ------
    ConfigError
        If the pipeline has neither a window nor ``dedupe``.
    SluiceError
        If Spark cannot read the state.
    """
    spec = load(pipeline)
    if spec.stateful is None:
        raise ConfigError(
            f"pipeline {spec.name!r} has neither a window nor dedupe, and keeps nothing between runs",
            state="nothing was read or written",
            next_step=f"sluice status {spec.name} shows its runs",
        )
    home = Home.from_env()
    epoch = Ledger.open().epoch(spec.name)
    first = Checkpoint(home.checkpoint(spec.name, epoch.number), epoch.positions)
    # by way of the log, a second checkpoint has the state
    checkpoint = Checkpoint(home.applied(spec.name, epoch.number)) if epoch.route is Route.LOG else first
    committed = checkpoint.committed()
    told: dict[str, Any] = {"pipeline": spec.name, "epoch": epoch.number, "batch": None}
    if spec.window is not None:
        told["windows"] = []
    if committed:
        defined = first.definition()
        found = _read(spec, checkpoint, committed[-1], _panes(checkpoint, defined[1] if defined else {}))
        told |= {
            "batch": committed[-1],
            "watermark": checkpoint.watermark(),
            "definition": defined[1] if defined else None,
            "shares": checkpoint.shares(),
            "bytes": checkpoint.state_bytes(),
            **(_of_windows(spec.window, found) if spec.window is not None else found[0]),
        }
    if as_json:
        print_json(told)
    elif not committed:
        err.print(f"{spec.name} has no state yet: no batch was committed in epoch {epoch.number}", markup=False)
    else:
        _show(told)
    return 0


def _of_windows(window: Window, found: list[dict[str, Any]]) -> dict[str, Any]:
    delay = round(window.watermark.total_seconds() * 1000)
    return {
        "keys": sum(each["keys"] for each in found),
        "windows": [each | {"closes_at": each["window_end"] + delay} for each in found],
    }


def _show(told: dict[str, Any]) -> None:
    kept = (
        f"{told['bytes']:,} bytes in {told['shares']} shares; watermark {moment(told['watermark'])}. "
    )  # fmt: skip
    if "windows" not in told:
        until = {n: moment(told[n]) if told[n] is not None else "" for n in ("first_forgotten_at", "last_forgotten_at")}
        print_table([{"keys": told["keys"], **until}], ("keys", *until))
        err.print(
            f"epoch {told['epoch']}, batch {told['batch']}: {told['keys']:,} keys are remembered, {kept}A key is "
            "forgotten when the watermark has reached its event time and dedupe.within",
            markup=False,
        )
        return
    shown = ("window_start", "window_end", "keys", "closes_at")
    rows = [{n: w[n] if n == "keys" else moment(w[n]) for n in shown} for w in told["windows"]]
    print_table(rows, shown)
    err.print(
        f"epoch {told['epoch']}, batch {told['batch']}: {told['keys']:,} keys in {len(rows):,} open windows, {kept}"
        "A window is written when a batch has read an event time of closes_at or later",
        markup=False,
    )


def _panes(checkpoint: Checkpoint, definition: Mapping[str, Any]) -> tuple[int, ...]:
    """Return size and slide of windows made of panes, as the epoch began with them, and the watermark."""
    if "slide" not in definition or checkpoint.panes() is None:
        return ()
    return *(round(definition[key] * 1000) for key in ("size", "slide")), checkpoint.watermark()


def _read(spec: Pipeline, checkpoint: Checkpoint, batch: int, panes: tuple[int, ...]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
        result = Path(folder) / "result.json"
        spark = Connection("spark_default", "spark", host="local[2]")
        submit = read_state(spec, checkpoint.path, batch, result, spark, panes)
        done = subprocess.run(
            submit.argv(),
            env={**os.environ, **submit.env},
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
