"""``sluice state``: what a pipeline with windows keeps open between its runs."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from sluice.cli.output import err, moment, print_json, print_table
from sluice.connections import Connection
from sluice.errors import ConfigError, SluiceError
from sluice.home import Home
from sluice.launch.submit import read_state
from sluice.ledger import Ledger
from sluice.pipeline import Pipeline, load
from sluice.run.checkpoint import Checkpoint

__all__ = ["state"]


def state(pipeline: str, *, as_json: bool) -> int:
    """Print the state of the present epoch; return the exit code.

    Raises
    ------
    ConfigError
        If the pipeline has no window.
    SluiceError
        If Spark cannot read the state.
    """
    spec = load(pipeline)
    if spec.window is None:
        raise ConfigError(
            f"pipeline {spec.name!r} has no window, and keeps nothing open between runs",
            state="nothing was read or written",
            next_step=f"sluice status {spec.name} shows its runs",
        )
    home = Home.from_env()
    epoch = Ledger.open().epoch(spec.name)
    checkpoint = Checkpoint(home.checkpoint(spec.name, epoch.number), epoch.positions)
    committed = checkpoint.committed()
    told: dict[str, Any] = {"pipeline": spec.name, "epoch": epoch.number, "batch": None, "windows": []}
    if committed:
        watermark = checkpoint.watermark()
        found = _read(spec, checkpoint.path, committed[-1])
        delay = round(spec.window.watermark.total_seconds() * 1000)
        told |= {
            "batch": committed[-1],
            "watermark": watermark,
            "definition": checkpoint.window(),
            "shares": checkpoint.shares(),
            "bytes": checkpoint.state_bytes(),
            "keys": sum(window["keys"] for window in found),
            "windows": [window | {"closes_at": window["window_end"] + delay} for window in found],
        }
    if as_json:
        print_json(told)
    elif not committed:
        err.print(f"{spec.name} has no state yet: no batch was committed in epoch {epoch.number}", markup=False)
    else:
        shown = ("window_start", "window_end", "keys", "closes_at")
        rows = [{n: w[n] if n == "keys" else moment(w[n]) for n in shown} for w in told["windows"]]
        print_table(rows, shown)
        err.print(
            f"epoch {epoch.number}, batch {committed[-1]}: {told['keys']:,} keys in {len(rows):,} open windows, "
            f"{told['bytes']:,} bytes in {told['shares']} shares; watermark {moment(told['watermark'])}. A window is "
            "written when a batch has read an event time of closes_at or later",
            markup=False,
        )
    return 0


def _read(spec: Pipeline, checkpoint: str, batch: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="sluice-") as folder:
        result = Path(folder) / "result.json"
        submit = read_state(spec, checkpoint, batch, result, Connection("spark_default", "spark", host="local[2]"))
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
