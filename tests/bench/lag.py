"""What it costs to ask how far 1,000 partitions are behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.bench.harness import Bench, Goal, Options, median

from sluice.cli.output import print_table
from sluice.home import Home
from sluice.lag.current import backlog
from sluice.ledger import Ledger
from sluice.pipeline import load
from sluice.sources.kafka import Cluster, KafkaSettings

__all__ = ["lag"]

_TOPICS, _PARTITIONS = 50, 20


def lag(bench: Bench, options: Options) -> dict[str, Any]:
    """Ask for 50 topics of 20 partitions: with nothing known yet, again, for what waits, and as a pipeline's lag."""
    from kafka.admin import KafkaAdminClient

    names = [f"lag-{n:02}" for n in range(_TOPICS)]
    admin = KafkaAdminClient(bootstrap_servers=bench.broker.bootstrap)
    admin.create_topics({name: {"num_partitions": _PARTITIONS, "replication_factor": 1} for name in names})
    admin.wait_for_topics(names)
    admin.close()
    with bench.topics.producer() as producer:
        for name in names:
            for partition in range(_PARTITIONS):
                producer.send(name, value=b"v" * 100, partition=partition)
        producer.flush(60)
    file = bench.pipeline(names[0], "lag-bench", source={"kafka": {"topics": names}})
    spec, home = load(str(file)), Home(str(bench.home))
    ledger = Ledger.open(home.ledger_url)
    settings = KafkaSettings.from_connection(bench.kafka)
    keys = {(name, p): 0 for name in names for p in range(_PARTITIONS)}
    ends = dict.fromkeys(keys, 1)
    found: dict[str, list[float]] = {}

    def timed(what: str, act: Callable[[], Any]) -> Any:
        began = time.monotonic()
        answer = act()
        found.setdefault(what, []).append(time.monotonic() - began)
        return answer

    for _ in range(max(3, options.runs)):
        with Cluster(settings) as cluster:
            states = timed("first look (connects)", lambda: cluster.look(names))
            assert sum(len(s.partitions) for s in states) == _TOPICS * _PARTITIONS
            for _ in range(5):
                timed("look", lambda: cluster.look(names))
                committed = "read_committed"
                timed("look, read_committed", lambda: cluster.look(names, isolation_level=committed))  # noqa: B023
                seen = timed("first unread records", lambda: cluster.first_unread(keys, ends))
                assert len(seen) == len(keys)
                whole = timed("lag of a pipeline", lambda: backlog(spec, cluster, home=home, ledger=ledger))
                assert (whole.records, whole.incomplete) == (len(keys), False)
                assert whole.age is not None
    rows = [{"what": what, "seconds": round(median(v), 3), "worst": round(max(v), 3)} for what, v in found.items()]
    print_table(rows, ["what", "seconds", "worst"])
    return {
        "title": f"lag: {_TOPICS} topics of {_PARTITIONS} partitions",
        "seconds": {what: [round(v, 4) for v in values] for what, values in found.items()},
        "medians": rows,
        **Goal("seconds for a look at 1,000 partitions", 1).judge(max(found["look"])),
    }
