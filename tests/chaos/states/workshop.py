"""Where scenarios are recorded and resumed, across invocations: a broker, homes, recordings and results in a folder."""

from __future__ import annotations

import pickle
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from tests.chaos.passed import code
from tests.chaos.states.progress import Progress
from tests.chaos.states.resumer import Recorded
from tests.chaos.states.scenarios import Scenario

from sluice.local.kafka import Broker, Topics

__all__ = ["Workshop"]

_CODE = "include/sluice", "spark_jobs"
"""What a recording rests on."""


@dataclass
class Workshop:
    """A folder that keeps what was recorded, and the records that it was recorded from."""

    folder: Path

    @property
    def progress(self) -> Progress:
        """The results so far."""
        return Progress(self.folder / "results.jsonl")

    def broker(self) -> Broker:
        """Return the folder's broker; its records stay for later invocations."""
        return Broker(self.folder / "kafka", port=0)

    def recorded(self, scenario: Scenario, spark: SparkSession) -> Recorded:
        """Return a scenario's recording: the one that is there, or a new one."""
        broker = self.broker()
        kept, home = self.folder / f"{scenario.name}.pickle", self.folder / "homes" / scenario.name
        if kept.exists():
            known: dict[str, Any] = pickle.loads(kept.read_bytes())
            for link in ("jars", "jvm"):
                (home / link).unlink(missing_ok=True)
            box = scenario.box(home, broker, Topics(broker.bootstrap), known["topic"], name=known["name"], spark=spark)
            box.serve()
            box.file.write_text(known["file"])
            if known.get("code") != code(*_CODE):
                print(f"{scenario.name} was recorded with other code; --anew forgets all recordings and results")
            return Recorded(scenario, box, known["recording"])
        topics = Topics(broker.bootstrap)
        shutil.rmtree(home, ignore_errors=True)  # of an attempt at recording that died
        topic = f"{scenario.name}-{uuid.uuid4().hex[:8]}"
        topics.create(topic, 2, {"retention.ms": -1})
        box = scenario.box(home, broker, topics, topic, spark=spark)
        box.serve()
        scratch = self.folder / "traces" / scenario.name  # others are recorded at the same time
        scratch.mkdir(parents=True, exist_ok=True)
        recorded = Recorded.make(scenario, box, scratch)
        known = {"topic": topic, "name": box.name, "file": recorded.file, "code": code(*_CODE)}
        known["recording"] = recorded.recording
        kept.write_bytes(pickle.dumps(known))
        return recorded
