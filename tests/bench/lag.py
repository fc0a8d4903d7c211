"""What it costs to ask how far 1,000 partitions are behind, and what 1,000 pipelines cost Airflow."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

from tests.bench.harness import SCHEMA, Bench, Goal, Options, median

from sluice.cli.output import print_table
from sluice.home import Home
from sluice.lag.current import backlog
from sluice.ledger import Ledger
from sluice.pipeline import load
from sluice.sources.kafka import Cluster, KafkaSettings


def _fill(bench: Bench, names: list[str], partitions: int, filled: int) -> None:
    """Make topics, of which so many partitions have a record."""
    from kafka.admin import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=bench.broker.bootstrap)
    admin.create_topics({name: {"num_partitions": partitions, "replication_factor": 1} for name in names})
    admin.wait_for_topics(names)
    admin.close()
    with bench.topics.producer() as producer:
        for name in names:
            for partition in range(filled):
                producer.send(name, value=b"v" * 100, partition=partition)
        producer.flush(60)


def _timed(clock: Callable[[], float], found: dict[str, list[float]], what: str, act: Callable[[], Any]) -> Any:
    began = clock()
    answer = act()
    found.setdefault(what, []).append(clock() - began)
    return answer


def lag(bench: Bench, options: Options) -> dict[str, Any]:
    """Ask for 50 topics of 20 partitions: with nothing known yet, again, for what waits, and as a pipeline's lag."""
    names, partitions = [f"lag-{n:02}" for n in range(50)], 20
    _fill(bench, names, partitions, partitions)
    spec = load(str(bench.pipeline(names[0], "lag-bench", source={"kafka": {"topics": names}})))
    home = Home(str(bench.home))
    ledger, settings = Ledger.open(home.ledger_url), KafkaSettings.from_connection(bench.kafka)
    keys = {(name, p): 0 for name in names for p in range(partitions)}
    ends = dict.fromkeys(keys, 1)
    found: dict[str, list[float]] = {}
    timed = partial(_timed, time.monotonic, found)
    for _ in range(max(3, options.runs)):
        with Cluster(settings) as cluster:
            states = timed("first look (connects)", lambda: cluster.look(names))
            assert sum(len(s.partitions) for s in states) == len(keys)
            committed = partial(cluster.look, names, isolation_level="read_committed")
            for _ in range(5):
                timed("look", lambda: cluster.look(names))
                timed("look, read_committed", committed)
                seen = timed("first unread records", lambda: cluster.first_unread(keys, ends))
                assert len(seen) == len(keys)
                whole = timed("lag of a pipeline", lambda: backlog(spec, cluster, home=home, ledger=ledger))
                assert (whole.records, whole.incomplete, whole.age is None) == (len(keys), False, False)
    rows = [{"what": what, "seconds": round(median(v), 3), "worst": round(max(v), 3)} for what, v in found.items()]
    print_table(rows, ["what", "seconds", "worst"])
    seconds = {what: [round(v, 4) for v in values] for what, values in found.items()}
    judged = Goal("seconds for a look at 1,000 partitions", 1).judge(max(found["look"]))
    return {"title": "lag: 50 topics of 20 partitions", "seconds": seconds, "medians": rows, **judged}


_PIPELINES = 1000
_GOALS = {"DAG file": 10.0, "a look": 3.0, "overview": 1.0}


def many(bench: Bench, options: Options) -> dict[str, Any]:
    """Parse, measure and list 1,000 pipelines of 250 topics, each with a schema of its own, in this process."""
    names, folder = [f"many-{n:03}" for n in range(250)], bench.scratch / "many"
    _fill(bench, names, 2, 1)
    folder.mkdir()
    for n in range(_PIPELINES):
        decode = {"json": {"schema": f"{SCHEMA}, c{n} INT"}}
        file = bench.pipeline(names[n % len(names)], f"p{n:04}", decode=decode, quality={})
        file.rename(folder / file.name)
    env = {"SLUICE_HOME": str(bench.scratch / "many-home"), "SLUICE_PIPELINES": str(folder)}
    figures: dict[str, list[float]] = {}
    cpu = partial(_timed, time.process_time, figures)
    with mock.patch.dict(os.environ, env, AIRFLOW_HOME=str(bench.scratch / "many-airflow")):
        from sluice_airflow.factory import build_all
        from sluice_airflow.page import queries
        from sluice_airflow.triggers.lag_watcher import _Lookout

        assert len(cpu("DAG file", build_all)) == _PIPELINES
        lookout = _Lookout(20.0)
        files = sorted(map(str, folder.glob("*.yaml")))
        for number in range(1 + max(2, options.runs)):
            found = cpu("a look" if number else "the first look", lambda: lookout.look(files, bench.kafka, 600.0))
            assert sum(backlog.records or 0 for backlog in found.values()) == _PIPELINES
            what = "overview" if number else "the first overview"
            assert len(cpu(what, lambda: queries.overview(set))) == _PIPELINES
        lookout.close()
    rows = [{"what": what, "CPU seconds": round(max(v), 2), "goal": _GOALS.get(what)} for what, v in figures.items()]
    print_table(rows, ["what", "CPU seconds", "goal"])
    goals = {what: Goal(f"CPU seconds, {what}", limit).judge(max(figures[what])) for what, limit in _GOALS.items()}
    return {"title": f"{_PIPELINES:,} pipelines of 250 topics", "seconds": figures, "goals": goals}
