"""Where scenarios are recorded and resumed, across invocations: a broker, homes, recordings and results in a folder."""

from __future__ import annotations

import pickle
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import SparkSession
from tests.chaos.passed import code
from tests.chaos.states.catalog import definition
from tests.chaos.states.progress import Progress
from tests.chaos.states.resumer import Recorded
from tests.chaos.states.scenarios import Scenario
from tests.chaos.states.steps import kinds

from sluice.local.kafka import Broker, Topics
from sluice.local.servers import Postgres

__all__ = ["Known", "Workshop"]


class Known(NamedTuple):
    """A recording, the definition of its scenario, and its kinds of durable step."""

    recorded: Recorded
    steps: str
    kinds: list[str]


@dataclass
class Workshop:
    """A folder that keeps what was recorded, and the records that it was recorded from."""

    folder: Path

    @property
    def progress(self) -> Progress:
        return Progress(self.folder / "results")

    def broker(self) -> Broker:
        """Return the folder's broker; its records stay for later invocations."""
        return Broker(self.folder / "kafka", port=0)

    def recorded(self, scenario: Scenario, spark: SparkSession) -> Known:
        """Return a scenario's recording: the one that is there, if its scenario is still the same, or a new one."""
        kept = self._kept(scenario.name)
        known: dict[str, Any] = pickle.loads(kept.read_bytes()) if kept.exists() else {}
        if known and known.get("steps") != definition(scenario, known.get("kinds", ())):
            print(f"{scenario.name} is defined otherwise now: it is recorded once more")
            known = {}
        if not known:
            self.forget(scenario.name)
            return self._record(scenario, spark)
        box = self._box(scenario, spark, known["topic"], name=known["name"])
        for link in ("jars", "jvm"):
            (box.home / link).unlink(missing_ok=True)
        box.serve()
        box.file.write_text(known["file"])
        if known["code"] != code("include/sluice", "spark_jobs"):
            print(f"{scenario.name} was recorded with other code; --fresh forgets recordings and results")
        return Known(Recorded(scenario, box, known["recording"]), known["steps"], known["kinds"])

    def forget(self, name: str) -> None:
        server = self.folder / "outside" / name / "postgres"
        if server.exists():
            Postgres(server).remove()
        for place in ("homes", "outside"):
            shutil.rmtree(self.folder / place / name, ignore_errors=True)
        self._kept(name).unlink(missing_ok=True)
        self.progress.file(name).unlink(missing_ok=True)

    def _record(self, scenario: Scenario, spark: SparkSession) -> Known:
        topic = f"{scenario.name}-{uuid.uuid4().hex[:8]}"
        box = self._box(scenario, spark, topic)
        box.topics.create(topic, 2, {"retention.ms": -1})
        box.serve()
        scratch = self.folder / "traces" / scenario.name  # others are recorded at the same time
        scratch.mkdir(parents=True, exist_ok=True)
        recorded = Recorded.make(scenario, box, scratch)
        of_it = sorted({kind for kind in kinds(recorded.recording) if not kind.startswith("point ")})
        known = {"topic": topic, "name": box.name, "file": recorded.file, "code": code("include/sluice", "spark_jobs"),
                 "kinds": of_it, "steps": definition(scenario, of_it), "recording": recorded.recording}  # fmt: skip
        self._kept(scenario.name).write_bytes(pickle.dumps(known))
        return Known(recorded, known["steps"], of_it)

    def _box(self, scenario: Scenario, spark: SparkSession, topic: str, **named: str) -> Any:
        broker = self.broker()
        home = self.folder / "homes" / scenario.name
        return scenario.box(home, broker, Topics(broker.bootstrap), topic, spark=spark, **named)

    def _kept(self, name: str) -> Path:
        return self.folder / f"{name}.pickle"
