"""Record scenarios, resume their states: ``python -m tests.chaos.states [--only NAME] [--limit N] [--every K]``.

Each run is also killed for real at each named point that it passed. What was finished is skipped when this is called
again; ``SLUICE_CHAOS_FOLDER`` names the folder that remembers, in its ``states`` (default ``var/chaos``). What each
scenario came to is written into ``docs/chaos-results.json`` and its page (:mod:`tests.chaos.results`).
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

from tests.chaos import results
from tests.chaos.passed import SHARD, Shard
from tests.chaos.states.boxes import close
from tests.chaos.states.catalog import SCENARIOS
from tests.chaos.states.moments import DEATH, KILL, POWER, kills, moments
from tests.chaos.states.progress import record, spread
from tests.chaos.states.recorder import why_not
from tests.chaos.states.steps import unguarded
from tests.chaos.states.workshop import Workshop
from tests.fixtures.spark import kept_session

from sluice.home import Home
from sluice.launch import jars
from sluice.launch.submit import _java_options
from sluice.shipped import CHECKOUT


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.states", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", choices=SCENARIOS, help="these scenarios")
    parser.add_argument("--shard", default=os.environ.get(SHARD, ""), metavar="K/N", help=f"a part of them (${SHARD})")
    parser.add_argument("--limit", type=int, metavar="N", help="at most so many states of a scenario, spread evenly")
    parser.add_argument("--every", type=int, default=1, metavar="K", help="only each K-th state")
    parser.add_argument("--kind", choices=(DEATH, POWER, KILL), help="only recorded deaths, power cuts, or real kills")
    parser.add_argument("--what", metavar="TEXT", help="only states whose last operation names this: a part of a path")
    parser.add_argument("--failed", action="store_true", help="once more those that did not go well")
    parser.add_argument("--at-once", type=int, default=2, metavar="N", help="scenarios at once, each in a process (2)")
    parser.add_argument("--fresh", action="store_true", help="forget what was recorded and resumed of them")
    parser.add_argument("--report", action="store_true", help="do nothing; list what failed")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    shard = Shard.parse(args.shard)
    base = Path(os.environ.get("SLUICE_CHAOS_FOLDER") or Path(str(CHECKOUT)) / "var" / "chaos")
    workshop = Workshop(base.resolve() / ("states" if shard is None else f"states-{shard.number}-of-{shard.count}"))
    if args.here:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            return _scenario(workshop, args)
        finally:
            close()
    if args.report:
        return _report(workshop, [])
    reason = why_not()
    if reason:
        print(f"nothing was recorded, killed or resumed: {reason}")
        return 1
    names = args.only or list(SCENARIOS)
    names = names if shard is None else shard.part(names, str)
    if args.fresh:
        for name in names:
            workshop.forget(name)
    workshop.folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and the scenario that is at work ends with this
    for jar_set in ("spark", "kafka"):
        jars.fetch(jar_set)
    broker = workshop.broker()
    broker.start()
    rest = [word for word in sys.argv[1:] if word != "--fresh"]
    children: list[subprocess.Popen[bytes]] = []

    def ended_well(name: str) -> bool:  # each in a session of its own: one that dies takes no other along
        child = subprocess.Popen([sys.executable, "-m", "tests.chaos.states", *rest, "--here", "--only", name])
        children.append(child)
        return child.wait() == 0

    try:
        with ThreadPoolExecutor(args.at_once) as pool:
            try:
                broken = [name for name, well in zip(names, pool.map(ended_well, names), strict=True) if not well]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                for child in children:
                    child.terminate()
                raise
    finally:
        broker.stop()
    results.update(versions=_versions())
    return _report(workshop, broken)


def _report(workshop: Workshop, broken: Sequence[str]) -> int:
    failed = [r for name in SCENARIOS for r in workshop.progress.results(name) if not r["ok"]]
    for result in failed:
        print(f"FAILED {result['scenario']} {result['operation']} {result['what']}: {result['problems'][0]}")
    for name in broken:
        print(f"FAILED {name}: see above: not recorded, a step without points, or a session that died")
    print(f"{len(failed)} states did not go on as they must; docs/chaos-results.md has what each scenario came to")
    return 1 if broken or failed else 0


def _versions() -> dict[str, str]:
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    clients = next(path.name for path in jars.paths("kafka") if path.name.startswith("kafka-clients"))
    return {
        "Python": sys.version.partition(" ")[0],
        "Java": java.partition('"')[2].partition('"')[0],
        "Kafka": clients.removeprefix("kafka-clients-").removesuffix(".jar"),
        **{name: metadata.version(name) for name in ("pyspark", "deltalake", "kafka-python")},
        "SQLite": sqlite3.sqlite_version,
    }


def _scenario(workshop: Workshop, args: argparse.Namespace) -> int:
    name = args.only[-1]
    quick = " ".join(_java_options(Home.from_env(), light=True))
    class_path = [jar.resolve() for jar in jars.paths("spark")]
    with tempfile.TemporaryDirectory() as warehouse, kept_session(class_path, Path(warehouse), quick) as spark:
        spark.sparkContext.setLogLevel("OFF")
        logging.getLogger("sluice").propagate = False
        recorded, steps, kinds = workshop.recorded(SCENARIOS[name], spark)
        bare = unguarded(recorded.recording)
        for step in bare:
            print(f"{name}: no named points around {step}", flush=True)
        states = [] if recorded.box.on_server else list(moments(recorded.recording))
        real = list(kills(recorded.recording))
        chosen = [
            moment
            for part in (states, real)
            for moment in spread(
                [m for m in part if args.kind in (None, m.kind) and (args.what or "") in m.what], args.limit, args.every
            )
        ]
        known = workshop.progress.results(name)
        done = {(r["kind"], r["key"]) for r in known if r["ok"] or not args.failed}
        left = [m for m in chosen if (m.kind, m.key) not in done]
        print(f"{name}: {len(states)} states, {len(real)} kills; {len(chosen)} chosen, {len(left)} to do", flush=True)
        began = time.monotonic()
        try:
            for count, moment in enumerate(left, 1):
                result = workshop.progress.add(SCENARIOS[name], moment, recorded.resume(moment))
                if not result["ok"]:
                    print(f"{name} {moment.kind} {moment.number} {moment.what}:\n  {result['problems'][0]}", flush=True)
                if count % 25 == 0 or count == len(left):
                    pace = (time.monotonic() - began) / count
                    print(f"{name}: {count} of {len(left)}, {pace:.2f} s each", flush=True)
        finally:
            found = workshop.progress.results(name)
            if found:
                results.update(scenarios=[record(SCENARIOS[name], steps, kinds, [*states, *real], found)])
    return int(bool(bare))


if __name__ == "__main__":
    sys.exit(main())
