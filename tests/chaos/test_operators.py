"""Real kills of windows, ``dedupe``, an aggregate and a processor: whatever dies, each record takes effect once.

``make test`` kills each operator once, where the sink has a batch whose state is still to be made.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.chaos import cases
from tests.chaos.boxed import BOXES, UntracedTopicBox
from tests.chaos.boxed import made as boxed
from tests.chaos.cases import long
from tests.chaos.commands import deep, reset
from tests.chaos.models import aggregate, dedupe, processor, windows
from tests.chaos.states.boxes import TopicBox
from tests.fixtures.outward import WriterSandbox
from tests.fixtures.runs import Sandbox

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka, pytest.mark.timeout(1800)]

BEFORE = ("run-planned", "window-defined")
LANDING = ("segments-staged", "before-seal", "sealed", "seal-recorded")
"""The points that come before a batch, by way of the write-ahead log."""
BATCH = (*cases.BATCH, "query-ended")
CLOSING = ("sink-committed:2", "batch-recorded:2", "batch-started:2", "before-sink-commit:2")
"""The batch without records, which closes windows, forgets keys or fires timers."""
ROUND = ("sink-committed", "before-sink-commit")
ROWS = ("window", "sessions", "dedupe", "processor-alone")
"""Operators whose rows are appended."""

Model = windows.Stream | dedupe.Stream | processor.Feed | aggregate.Words


@dataclass(frozen=True)
class Operator:
    """A model, and the event times of the records that come before each death."""

    model: Callable[..., Model]
    window: dict[str, Any] | None = None
    step: int = 90
    tail: int = 200

    def made(self, sandbox: Sandbox, recovery: str) -> Model:
        """Return the model of a pipeline."""
        return self.model(sandbox, *([self.window] if self.window else []), recovery=recovery)

    def feeds(self, model: Any, count: int) -> Iterator[None]:
        """Produce records for each of some runs, then some for a last run, which are late for the most part."""
        if isinstance(model, processor.Feed):
            for number, part in enumerate(model.parts(count + 1)):
                yield model.put(part, bad=number < count)
            return
        if isinstance(model, aggregate.Words):
            yield from (model.feed(bad=number < count) for number in range(count + 1))
            return
        for number in range(count):
            yield model.feed(number * self.step, number * self.step + max(self.step + 10, 60), 6, bad=True)
        yield model.feed(0, count * self.step + self.tail, 6)


OPERATORS = {
    "window": Operator(windows.Stream, window=windows.HOURLY),
    "sliding": Operator(windows.Stream, window=windows.SLIDING),
    "panes": Operator(windows.Stream, window=windows.PANES),
    "sessions": Operator(windows.Sessions, window=windows.SESSIONS, step=40, tail=90),
    "update": Operator(windows.Updated, window=windows.UPDATED, step=30, tail=120),
    "update-panes": Operator(windows.Updated, window={**windows.PANES, "output": "update"}, step=30, tail=120),
    "complete": Operator(windows.Completed, window=windows.COMPLETE),
    "complete-panes": Operator(windows.Completed, window={**windows.COMPLETE, "panes": "auto"}),
    "dedupe": Operator(dedupe.Stream, step=30, tail=90),
    "words": Operator(aggregate.Words),
    "words-complete": Operator(lambda *of, **keys: aggregate.Words(*of, output="complete", **keys)),
    "processor": Operator(lambda *of, **keys: processor.Feed(*of, also=True, **keys)),
    "processor-alone": Operator(processor.Feed),
    "processor-joined": Operator(lambda *of, **keys: processor.Feed(*of, joined=True, **keys)),
}


@pytest.mark.parametrize(
    ("name", "recovery", "points"),
    [
        *((name, "replay", ("sink-committed",)) for name in ("window", "dedupe", "words")),
        # what is not among the recorded states, in which each point of the others is killed at, too
        *long(
            ("processor", "replay", ("sink-committed",)),
            *((name, "replay", (*BEFORE, *BATCH)) for name in ("sessions", "complete", "words", "words-complete")),
            ("update-panes", "replay", CLOSING),
            *((name, "replay", ROUND) for name in ("complete-panes", "processor-joined")),
            ("window", "hot", (*BEFORE, *BATCH)),
            *((name, "hot", ROUND) for name in ("dedupe", "processor", "words")),
            ("panes", "wal", (*BEFORE, *LANDING, *BATCH)),
            ("sliding", "wal", ("sealed", *CLOSING)),
            *((name, "wal", ("sealed", *ROUND)) for name in ("sessions", "update", "complete", "words")),
        ),
    ],
)
def test_operator_loses_and_doubles_nothing_when_drivers_die(
    sandbox: Sandbox, name: str, recovery: str, points: tuple[str, ...]
) -> None:
    _exact_over_deaths(sandbox, name, recovery, points)
    assert deep(sandbox)["problems"] == []


@pytest.mark.parametrize(
    ("sink", "name", "points"),
    [
        ("postgres", "update", ("sink-committed",)),  # tests/contract has what all sinks replace
        *long(
            ("kafka", "window", ROUND),
            *((sink, name, ROUND) for sink in ("iceberg", "files", "postgres") for name in (*ROWS, "complete")),
            ("iceberg", "update-panes", ROUND),
            *((sink, "update", ROUND) for sink in ("files", "postgres", "iceberg")),
            *((sink, name, ROUND) for sink in ("files", "postgres", "iceberg") for name in ("words", "words-complete")),
            *(("kafka", name, ROUND) for name in ("sessions", "processor-alone")),
        ),
    ],
)  # fmt: skip
def test_operator_writes_into_another_sink_once_when_drivers_die(
    request: pytest.FixtureRequest, sink: str, name: str, points: tuple[str, ...]
) -> None:
    box = boxed(UntracedTopicBox if sink == "kafka" else BOXES[sink], request)
    keyed = {"sink": box.into(key="tailnum" if "processor" in name else "k")} if isinstance(box, TopicBox) else {}
    _exact_over_deaths(box, name, "replay", points, **keyed)


AT = "max(timestamp_seconds({}))"
SOUND = {"rules": [{"name": "sound", "sql": {"passes": "v <> 2"}}]}


@cases.LONG
@pytest.mark.parametrize(
    ("sink", "key", "made", "mended", "named"),
    [
        ("postgres", "x\0", "sum(v)", ("sum(v)", SOUND), "zero character"),
        ("iceberg", "x", AT.format(253402318799), (AT.format("v"), {}), "year 9999"),
    ],
    ids=["postgres", "iceberg"],
)
def test_value_in_the_state_that_a_sink_refuses_has_a_way_out(
    request: pytest.FixtureRequest, sink: str, key: str, made: str, mended: tuple[str, dict[str, Any]], named: str
) -> None:
    box = boxed(BOXES[sink], request)
    stream = windows.Stream(box, windows.HOURLY)

    def configure(total: str, keys: dict[str, Any]) -> None:
        stream.configure(window={**windows.HOURLY, "aggregates": {"n": "count(*)", "total": total}}, **keys)

    configure(made, {})
    stream.give([(windows.minute(1), "a", 1), (windows.minute(2), key, 2)])
    box.run("absorbed")
    stream.give([(windows.minute(200), "a", 3)])
    refused = box.run("closed", expect=30).message
    assert (named in refused, "--rebuild-state" in refused) == (True, True)
    configure(*mended)
    reset(box, "--rebuild-state")
    box.run("again")
    assert {row["k"] for row in box.rows_of_sink()} == {"a", *([] if mended[1] else [key])}


@cases.LONG
@pytest.mark.parametrize("output", ["update", "complete"])
def test_writer_is_handed_the_windows_that_a_batch_changed_or_all(into_writer: WriterSandbox, output: str) -> None:
    window = windows.UPDATED if output == "update" else windows.COMPLETE
    stream = windows.Stream(into_writer, {**window, "by": ["k"]})
    stream.configure(sink={"foreach": {"python": "collector:Whole"}})
    stream.feed(0, 60, 6, run="first", kill_at="rows-handed-over")
    into_writer.run("first")
    stream.feed(0, 90, 6, run="second")
    handed = [json.loads(line) for line in (into_writer.collected / "whole.jsonl").read_text().splitlines()]
    newest = {(row["window_start"], row["k"]): (row["n"], row["total"]) for row in handed}  # a later one counts
    of_all = windows.Completed(into_writer, windows.COMPLETE, stream.records).model()[-1]
    assert newest == {(str(start), k): (len(v), sum(v)) for (start, _, k), v in of_all.items()}
    last = [row for row in handed if row["run"] == "second"]
    assert (len({(row["window_start"], row["k"]) for row in last}) == len(newest)) == (output == "complete")


def _exact_over_deaths(sandbox: Sandbox, name: str, recovery: str, points: tuple[str, ...], **keys: Any) -> None:
    """Let a driver die at each point, and compare rows, account and state with the model."""
    operator = OPERATORS[name]
    model = operator.made(sandbox, recovery)
    model.configure()
    sandbox.configure(**{**sandbox.spec, "spark": {"conf": {"spark.sql.shuffle.partitions": "3"}}, **keys})  # not 200
    feeds = operator.feeds(model, len(points))
    for point in points:
        next(feeds)
        sandbox.run("killed", kill_at=point)
    sandbox.run("killed")
    model.assert_exact()
    next(feeds, None)
    sandbox.run("last")
    model.assert_exact()
    model.assert_open()
    assert model.held()
    assert sandbox.never_committed() == set()
