"""Measures 1,000 pipelines in Airflow: their DAG file, a look at their lags, and the page's overview."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

from tests.bench.harness import SCHEMA, Bench, Goal, Options

from sluice.cli.output import print_table

__all__ = ["many"]

_TOPICS, _PIPELINES = 250, 1000
_GOALS = {"DAG file": 10.0, "a look": 3.0, "overview": 1.0}


def many(bench: Bench, options: Options) -> dict[str, Any]:
    """Parse, measure and list 1,000 pipelines of 250 topics, each with a schema of its own, in this process."""
    from kafka.admin import KafkaAdminClient

    names = [f"many-{n:03}" for n in range(_TOPICS)]
    admin = KafkaAdminClient(bootstrap_servers=bench.broker.bootstrap)
    admin.create_topics({name: {"num_partitions": 2, "replication_factor": 1} for name in names})
    admin.wait_for_topics(names)
    admin.close()
    with bench.topics.producer() as producer:
        for name in names:
            producer.send(name, value=b"{}")
        producer.flush(60)
    home, folder = bench.scratch / "many-home", bench.scratch / "many"
    folder.mkdir()
    for n in range(_PIPELINES):
        file = bench.pipeline(
            names[n % _TOPICS], f"p{n:04}", decode={"json": {"schema": f"{SCHEMA}, c{n} INT"}}, quality={}
        )
        file.rename(folder / file.name)
    env = {
        "SLUICE_HOME": str(home),
        "SLUICE_PIPELINES": str(folder),
        "AIRFLOW_HOME": str(bench.scratch / "many-airflow"),
    }
    figures: dict[str, list[float]] = {}

    def cpu(what: str, act: Callable[[], Any]) -> Any:
        began = time.process_time()
        answer = act()
        figures.setdefault(what, []).append(time.process_time() - began)
        return answer

    with mock.patch.dict(os.environ, env):
        from sluice_airflow.factory import build_all
        from sluice_airflow.page import readings
        from sluice_airflow.triggers.lag_watcher import _Lookout

        assert len(cpu("DAG file", build_all)) == _PIPELINES
        lookout = _Lookout(20.0)
        files = sorted(map(str, folder.glob("*.yaml")))
        for number in range(1 + max(2, options.runs)):
            found = cpu("a look" if number else "the first look", lambda: lookout.look(files, bench.kafka, 600.0))
            assert sum(backlog.records or 0 for backlog in found.values()) == _PIPELINES
            what = "overview" if number else "the first overview"
            assert len(cpu(what, lambda: readings.overview(set))) == _PIPELINES
        lookout.close()
    rows = [{"what": what, "CPU seconds": round(max(v), 2), "goal": _GOALS.get(what)} for what, v in figures.items()]
    print_table(rows, ["what", "CPU seconds", "goal"])
    goals = {what: Goal(f"CPU seconds, {what}", limit).judge(max(figures[what])) for what, limit in _GOALS.items()}
    return {"title": f"{_PIPELINES:,} pipelines of {_TOPICS} topics", "seconds": figures, "goals": goals}
