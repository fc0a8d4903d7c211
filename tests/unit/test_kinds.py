"""Sources and sinks of plug-ins that declare that they cannot do something."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.fixtures.books import split
from tests.fixtures.ledgers import attempt

from sluice.cli import redrive as command
from sluice.errors import ConfigError
from sluice.home import Home
from sluice.ledger import Ledger
from sluice.ledger.events import batch_committed
from sluice.pipeline import Pipeline
from sluice.pipeline.model import model_for
from sluice.shipped import CHECKOUT
from sluice_spark.batch.writer import BatchWriter, PreparedBatch
from sluice_spark.quality.judge import Judge
from sluice_spark.sinks.base import Staged, StagedFile

TOY = Path(str(CHECKOUT)) / "tests" / "fixtures" / "toy"


@pytest.fixture(autouse=True)
def _toys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOY))


def pipeline(**keys: Any) -> Pipeline:
    spec = {
        "pipeline": "p", "source": {"lines": {"path": "x"}}, "decode": {"text": {}}, "sink": {"jsonl": {"path": "out"}},
    }  # fmt: skip
    return model_for(spec | keys).model_validate(spec | keys)


def test_sink_that_cannot_be_read_back_is_judged_by_counts(tmp_path: Path) -> None:
    ledger, account = Ledger.open(f"sqlite:///{tmp_path}/ledger.db"), split(0, 10, written=4, quarantined=6)
    with attempt(ledger, "r", account.range) as lease:
        ledger.record(lease, *batch_committed(1, 0, [account]))

    def verdict(limit: str) -> str:
        spec = pipeline(sink={"blind": {"path": "out"}}, quality={"max_quarantined": limit})
        judge = Judge(spec, Home(str(tmp_path)), "r")
        return judge.settle(ledger, lambda: pytest.fail("no session is needed"), cast(Any, object()), ["r"]).verdict

    assert [verdict(limit) for limit in ("1%", "100%")] == ["failed", "passed"]


def test_source_that_cannot_be_read_again_has_no_intervals() -> None:
    spec = pipeline(source={"drops": {"path": "/nowhere"}}, recovery="wal")
    assert spec.no_intervals
    assert command._states(spec, []) == []
    assert "recovery: wal" in str(spec.refusal(spec.recovery.REPLAY))


def test_sink_does_not_commit_a_batch_without_its_quarantine() -> None:
    committed: list[int] = []

    def refuse(_: Staged) -> None:
        raise ConfigError("another pipeline's", state="", next_step="")

    sink = SimpleNamespace(path="s", commit=lambda *_, **__: committed.append(1) or True)
    quarantine = SimpleNamespace(path="q", admit=refuse, commit=lambda *_: committed.append(2))
    writer = BatchWriter(pipeline(), "r", *cast(Any, (None, None, sink, quarantine)))
    refused = Staged("batches/b", (StagedFile("f", 1, 0, 1, {}, "{}"),), {})
    prepared = PreparedBatch((), refused, refused)
    with pytest.raises(ConfigError, match="another pipeline's"):
        writer.commit(0, prepared, {}, "b")
    assert committed == []
    quarantine.admit = lambda _: None
    writer.commit(0, prepared, {}, "b")
    assert committed == [1, 2]
