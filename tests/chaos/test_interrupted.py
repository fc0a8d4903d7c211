"""Ctrl-C at `sluice run`: one line, no driver left, and the run is closed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fixtures.runs import Sandbox, await_that

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]


def test_a_run_that_is_interrupted_is_closed_and_the_next_one_goes_on(sandbox: Sandbox) -> None:
    sandbox.configure(transform={"python": "gate:passing"})
    sandbox.feed(8)
    gate = sandbox.home / "gate"
    gate.mkdir()
    env = sandbox.env(GATE_AT="before-sink-commit", GATE_DIR=str(gate))
    with subprocess.Popen(
        [str(Path(sys.executable).with_name("sluice")), "run", str(sandbox.file), "--run", "r", "--no-validate"],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        # who runs the tests in the background has SIGINT ignored, and so would the child
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:  # fmt: skip
        await_that((gate / "reached").exists, "the driver reached its gate", process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert err.strip().splitlines()[-1] == (
        "sluice: run r was interrupted by SIGINT: what it committed stays, and the next run goes on from there"
    )
    assert out == ""
    row = sandbox.ledger.run(sandbox.name, "r")
    assert row is not None
    assert (row.state, (row.error or {}).get("what")) == ("abandoned", "interrupted by SIGINT")
    sandbox.run("next")
    sandbox.assert_exact()
    assert sandbox.account("next")["written"] + sandbox.account("r")["written"] == 8
