"""Stands in for spark-submit and the main that it would start: writes the ledger, speaks, exits; as the plan says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def _argument(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


def main() -> int:
    folder = Path(os.environ["FAKE_SPARK"])
    mains = ("bounded_run.py", "validate_sink.py", "redrive.py", "reset.py", "retract.py", "audit_windows.py")
    main_file = next(Path(a).name for a in sys.argv if a.endswith(mains))
    (folder / f"{main_file}.call").write_text(json.dumps({"argv": sys.argv[1:], "env": dict(os.environ)}))
    plan_file = folder / f"{Path(_argument('--pipeline')).stem}.{main_file}.plan"
    if not plan_file.exists():
        plan_file = folder / f"{main_file}.plan"
    plan = json.loads(plan_file.read_text()) if plan_file.exists() else {}
    for line in plan.get("say", []):
        print(line, flush=True)
    if plan.pop("once", False):  # the next attempt goes well
        plan_file.write_text("{}")
    if "hang" in plan:  # with a child of its own, as a JVM has its Python driver
        child = subprocess.Popen(["sleep", "600"])
        (folder / "pids").write_text(f"{os.getpid()} {child.pid}")
        with open(plan["hang"], "w"):  # tells the test that it hangs
            pass
        child.wait()
    if "result" in plan:
        Path(_argument("--result")).write_text(json.dumps(plan["result"]))
    elif plan.get("record", True):
        _record(plan, main_file)
    return int(plan.get("code", 0))


def _record(plan: dict, main_file: str) -> None:
    from sluice.ledger import Ledger
    from sluice.pipeline import load
    from sluice.ranges import Counts, OffsetRange, RangeAccount

    pipeline, run = load(_argument("--pipeline")), _argument("--run")
    ledger = Ledger.open()
    judged = plan.get("verdict") and "--no-validate" not in sys.argv
    if main_file == "validate_sink.py":
        if judged:
            ledger.judged(None, pipeline.name, run, verdict=plan["verdict"], judgement=plan.get("judgement", {}))
        return
    with ledger.acquire(pipeline.name, run) as lease:
        kind = {"retract.py": "retract", "reset.py": "reset"}.get(main_file, "live")
        ledger.run_planned(lease, kind=kind, recovery="replay", epoch=1, ranges=[], topic_ids={})
        start = 0
        for batch, written in enumerate(plan.get("written", [])):
            part = OffsetRange(pipeline.source.config.streams[0], 0, start, start + written)
            ledger.batch_committed(lease, epoch=1, batch=batch, accounts=[RangeAccount(part, Counts(written=written))])
            start += written
        if judged:
            ledger.judged(lease, pipeline.name, run, verdict=plan["verdict"], judgement=plan.get("judgement", {}))
        ledger.run_closed(lease, state="failed" if plan.get("code") else "done", seconds=1.5)


if __name__ == "__main__":
    sys.exit(main())
