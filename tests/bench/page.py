"""The page in Airflow: how long it takes with ten thousand runs, and its pictures in the docs.

``python -m tests.bench.page`` measures; ``python -m tests.bench.page --images`` also takes new pictures, of a real
API server and a real broker. The past of the pipelines is made up: no driver runs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from statistics import median

import httpx
from tests.fixtures.browser import ApiServer, Browser, api_server, browser
from tests.fixtures.showcase import PIPELINE, Past, fill, quarantine

from sluice.cli.output import err, print_json
from sluice.ledger import Ledger
from sluice.local.kafka import Broker, Topics
from sluice.shipped import CHECKOUT

_RUNS = 10_000
_TIMES = 7


@contextlib.contextmanager
def _served(folder: Path, pipelines: dict[str, str], bootstrap: str) -> Iterator[ApiServer]:
    assert CHECKOUT is not None
    (folder / "pipelines").mkdir(parents=True)
    for name, recovery in pipelines.items():
        (folder / "pipelines" / f"{name}.yaml").write_text(PIPELINE.format(name=name, recovery=recovery))
    kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": bootstrap}}
    env = {"SLUICE_HOME": str(folder / "home"), "SLUICE_PIPELINES": str(folder / "pipelines")}
    env |= {"AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(kafka)}
    places = {"dags": CHECKOUT / "dags", "plugins": CHECKOUT / "plugins"}
    with api_server(folder / "airflow", **places, users={"ada": "admin"}, env=env) as server:
        yield server


def measure(folder: Path) -> dict[str, object]:
    """Ask for ten thousand runs of three partitions each, as JSON and in the browser."""
    fill(Ledger.open(f"sqlite:///{folder}/home/ledger.db"), "orders", Past(_RUNS))
    found: dict[str, object] = {"runs": _RUNS}
    with _served(folder, {"orders": "replay"}, "127.0.0.1:1") as server:
        headers = {"Authorization": f"Bearer {server.token('ada')}"}
        for newest in (200, _RUNS):
            taken = []
            for _ in range(_TIMES):
                began, url = time.monotonic(), f"{server.url}/sluice/api/pipelines/orders?newest={newest}"
                answer = httpx.get(url, headers=headers, timeout=60).raise_for_status()
                taken.append(time.monotonic() - began)
            found[f"json_of_{newest}_runs"] = {"seconds": round(median(taken), 3), "bytes": len(answer.content)}
        with browser(server) as window:
            window.login("ada")
            taken = []
            for _ in range(_TIMES):
                window.open("/sluice/")
                began = time.monotonic()
                window.open("/sluice/?pipeline=orders")
                window.find(".charts[data-spans] canvas")
                taken.append(time.monotonic() - began)
            found["page_until_the_bars"] = round(median(taken), 3)
    return found


def images(folder: Path, into: Path) -> None:
    """Take the pictures: light and dark, of all pipelines and of one."""
    broker = Broker(folder / "kafka", port=0)
    broker.start()
    try:
        pasts = {
            "clicks": (
                Past(400, records=420, recovery="ignore_range", filtered=0.22, refused=0.05, refused_every=6,
                     losses={31: 74, 118: 12}, verdicts={5: "warned", 60: "failed", 61: "failed"},
                     failures=dict.fromkeys((29, 30), "no broker answers at kafka-1:9092")), 90,
            ),
            "orders": (Past(240, records=240, refused=0.02, verdicts={9: "warned"}), 32),
            "payments": (Past(240, records=120, recovery="wal"), 0),
            "returns": (Past(60, records=90, every=timedelta(hours=1), verdicts={0: "failed"}), 410),
        }  # fmt: skip
        ledger, topics = Ledger.open(f"sqlite:///{folder}/home/ledger.db"), Topics(broker.bootstrap)
        for seed, (name, (past, waiting)) in enumerate(pasts.items()):
            positions = fill(ledger, name, past, seed=seed)
            _feed(topics, name, positions, waiting)
            _checkpoint(folder / "home" / "checkpoints" / name / "epoch-1", name, positions, past.runs)
            err.print(f"{name}: {sum(positions):,} records")
        quarantine(
            folder / "home" / "clicks_quarantine",
            [("decode", None, 412), ("not_null", "user", 160), ("known_country", "country", 31)],
        )
        files = {name: past.recovery for name, (past, _) in pasts.items()}
        with _served(folder, files, broker.bootstrap) as server, browser(server, width=1280, height=980) as window:
            window.login("ada")
            for theme in ("light", "dark"):
                window.dark(theme == "dark")
                window.driver.set_window_size(1280, 600)
                window.open("/plugin/sluice")
                _picture(window, "tbody", into / f"pipelines-{theme}.png")
                window.driver.set_window_size(1280, 1060)
                window.open("/plugin/sluice/sluice/?pipeline=clicks")
                _picture(window, ".meter", into / f"pipeline-{theme}.png")
    finally:
        broker.stop()


def _feed(topics: Topics, name: str, positions: list[int], waiting: int) -> None:
    topics.create(name, len(positions))
    now = int(time.time() * 1000)
    with topics.producer(batch_size=1 << 20, linger_ms=50) as producer:
        for partition, position in enumerate(positions):
            for offset in range(position + waiting):
                age = 600_000 if offset < position else 170_000 - 400 * (offset - position)
                producer.send(name, value=b"{}", partition=partition, timestamp_ms=now - max(0, age))
        producer.flush()


def _checkpoint(folder: Path, name: str, positions: list[int], batches: int) -> None:
    for part in ("offsets", "commits", "sources/0"):
        (folder / part).mkdir(parents=True)
    last = batches - 1
    ends = {name: {str(partition): position for partition, position in enumerate(positions)}}
    meta = {"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": {}}
    (folder / "offsets" / str(last)).write_text(f"v1\n{json.dumps(meta)}\n{json.dumps(ends)}")
    (folder / "commits" / str(last)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def _picture(window: Browser, ready: str, file: Path) -> None:
    window.driver.switch_to.frame(window.find("iframe"))
    window.find(ready)
    window.wait(lambda: not window.run("return document.querySelector('.wait, .charts:not([data-spans])')"))
    window.wait(lambda: "UNKNOWN" not in window.text("main") and "BACKLOG" in window.text("main"))
    window.driver.switch_to.default_content()
    file.parent.mkdir(parents=True, exist_ok=True)
    window.driver.save_screenshot(str(file))
    err.print(f"{file}: {file.stat().st_size:,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.page", description=__doc__)
    parser.add_argument("--images", action="store_true", help="take the pictures in docs/images again")
    args = parser.parse_args()
    for name in [n for n in os.environ if n.startswith(("SLUICE_LEDGER", "AIRFLOW"))]:
        del os.environ[name]
    with tempfile.TemporaryDirectory(prefix="sluice-page-") as scratch:
        if args.images:
            assert CHECKOUT is not None
            images(Path(scratch) / "images", CHECKOUT / "docs" / "images")
        print_json(measure(Path(scratch) / "measure"))


if __name__ == "__main__":
    main()
