"""The pipeline files of docs/examples: each does, unchanged, as its comments say."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.fixtures.lines import Server
from tests.fixtures.runs import KeptSandbox

from sluice.shipped import CHECKOUT

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

assert CHECKOUT
EXAMPLES = CHECKOUT / "docs" / "examples"
SAID = [
    [("12:07", "cat")],
    [("12:06", "cat"), ("12:20", "dog owl")],  # the first is ten minutes behind the last, and not late
    [("12:22", "dog"), ("12:24", "dog owl"), ("12:04", "cat")],  # the last is late
]
"""The lines that are produced before each run."""


@dataclass
class Example(KeptSandbox):
    """An example's pipeline, with a home of its own."""

    text: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        self.spec = yaml.safe_load(self.text)
        self.name = self.spec["pipeline"]
        super().__post_init__()

    def configure(self, **_: Any) -> None:
        """Write the file unchanged."""
        self.file.write_text(self.text)

    def written(self, run: str) -> list[dict[str, Any]]:
        """Run it, and return what the console shows."""
        lines = [line.strip() for line in self.run(run).stderr.splitlines()]
        return [{k: v for k, v in json.loads(t).items() if k != "_run"} for t in lines if t.startswith('{"')]


@pytest.fixture
def example(kept: Callable[..., Any]) -> Iterator[Callable[..., Example]]:
    made: list[Example] = []

    def make(name: str, *changes: tuple[str, str]) -> Example:
        text = (EXAMPLES / f"{name}.yaml").read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        found: Example = kept(Example, text=text)
        made.append(found)
        for topic in found.spec["source"].get("kafka", {}).get("topics", ()):
            found.topics.create(topic, 2)
        return found

    yield make
    for each in made:
        for topic in each.spec["source"].get("kafka", {}).get("topics", ()):
            each.topics.delete(topic)


def counts(**of: int) -> list[dict[str, Any]]:
    return [{"word": word, "count": n} for word, n in sorted(of.items())]


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["word"])


def test_example_counts_the_words_of_a_topic_over_all_runs(example: Callable[..., Example]) -> None:
    words = example("word_count")
    words.produce([(0, None, b"The cat and the dog"), (1, None, b""), (1, None, b"the owl")], "lines")
    assert in_order(words.written("first")) == counts(**{"the": 3, "cat": 1, "and": 1, "dog": 1, "owl": 1})
    assert {k: words.account("first")[k] for k in ("written", "filtered")} == {"written": 2, "filtered": 1}
    words.produce([(0, None, b"a dog, a dog!")], "lines")
    second = {"the": 3, "cat": 1, "and": 1, "dog": 3, "owl": 1, "a": 2}
    assert in_order(words.written("second")) == counts(**second)
    words.assert_balanced()


def test_example_counts_the_words_of_a_socket(example: Callable[..., Example]) -> None:
    with Server([b"the cat\nthe dog\n"]) as server:
        words = example("word_count_socket", ("9999", str(server.port)))
        assert in_order(words.written("first")) == counts(the=2, cat=1, dog=1)


@pytest.mark.parametrize(
    ("output", "written"),
    [
        # the batch behind the second one closes 12:00 to 12:10, when its watermark is 12:10
        ("append", [0, 1, 0]),
        ("update", [2, 6, 4]),
        ("complete", [2, 6, 7]),
    ],
)
def test_example_writes_windows_of_ten_minutes_in_each_output_mode(
    example: Callable[..., Example], output: str, written: list[int]
) -> None:
    without = [("  watermark: 10m\n", "")] if output == "complete" else []
    said = example("windows_of_ten_minutes", ("output: append", f"output: {output}"), *without)
    for number, lines in enumerate(SAID):
        values = [json.dumps({"at": f"2026-03-01T{at}:00Z", "line": line}).encode() for at, line in lines]
        said.produce([(0, None, value) for value in values], "said")
        said.run(f"r{number}")
    accounts = [said.ledger.runs.account(said.name, f"r{number}") for number in range(3)]
    assert [account["windows"]["rows"] for account in accounts] == written
    assert [account["filtered"] for account in accounts] == [0, 0, int(output != "complete")]
    rows = said.rows("windows_of_ten_minutes")
    assert rows is not None
    found = {(f"{r['window_start']:%H:%M}", r["word"]): r["count"] for r in rows.to_pylist()}
    closed = {("12:00", "cat"): 2}
    still_open = {
        ("12:05", "cat"): 2,
        ("12:15", "dog"): 3,
        ("12:20", "dog"): 3,
        ("12:15", "owl"): 2,
        ("12:20", "owl"): 2,
    }
    late = {("12:00", "cat"): 3, ("11:55", "cat"): 1}
    assert found == closed | (still_open if output != "append" else {}) | (late if output == "complete" else {})


def test_every_example_of_a_pipeline_has_a_test() -> None:
    here = Path(__file__).read_text()
    assert [file.stem for file in EXAMPLES.glob("*.yaml") if f'example("{file.stem}"' not in here] == []
