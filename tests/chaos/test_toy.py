"""A source, a sink and a decoder from a package outside: they work end to end, and a kill neither loses nor doubles."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.place import Place, account

from sluice.shipped import CHECKOUT

TOY = CHECKOUT / "tests" / "fixtures" / "toy"


@dataclass
class Toys(Place):
    """A pipeline of toys, in a folder of its own."""

    def __post_init__(self) -> None:
        (self.root / "in" / "lines").mkdir(parents=True)
        super().__post_init__()

    def spec(self) -> dict[str, Any]:
        source = {"lines": {"path": str(self.root / "in" / "lines"), "max_records_per_batch": 7}}
        return {
            "source": source, "decode": {"pairs": {"fields": ["id", "name"]}},
            "sink": {"jsonl": {"path": "out"}}, "quality": {"max_quarantined": "100%"},
        }  # fmt: skip

    def env(self) -> dict[str, str]:
        return {"PYTHONPATH": str(TOY)}

    def feed(self, count: int) -> None:
        """Append lines to two files; each fifth is no pair."""
        for number in (0, 1):
            file = self.root / "in" / "lines" / str(number)
            done = len(file.read_text().splitlines()) if file.exists() else 0
            with file.open("a") as out:
                out.writelines(f"id={n};name=n{n}\n" if n % 5 else "nothing\n" for n in range(done, done + count))

    def sink(self) -> Counter[tuple[int, int]]:
        """Return partition and offset of each visible row."""
        out = self.root / "home" / "out"
        commits = [json.loads(file.read_text()) for file in sorted((out / "_commits").glob("*.json"))]
        files = [out / file for commit in commits for file in commit["files"]]
        rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return Counter((row["_partition"], row["_offset"]) for row in rows)

    def good(self) -> Counter[tuple[int, int]]:
        files = (self.root / "in" / "lines").iterdir()
        lines = [(int(f.name), n, text) for f in files for n, text in enumerate(f.read_text().splitlines())]
        return Counter((number, n) for number, n, text in lines if text.startswith("id="))

    def quarantine(self) -> Counter[tuple[int, int]]:
        found = self.offsets("quarantine/toy")
        return Counter({(partition, offset): n for (_, partition, offset), n in found.items()})

    def assert_exact(self) -> None:
        lines = {int(f.name): len(f.read_text().splitlines()) for f in (self.root / "in" / "lines").iterdir()}
        everything = Counter((number, n) for number, count in lines.items() for n in range(count))
        assert self.sink() == self.good()
        assert self.quarantine() == everything - self.good()
        self.audit()


@pytest.fixture
def place(tmp_path: Path) -> Toys:
    return Toys(tmp_path, "toy")


@pytest.mark.chaos
@pytest.mark.spark
@pytest.mark.parametrize(
    ("strategy", "points"),
    [
        pytest.param("replay", ("sink-committed",), marks=pytest.mark.long),
        pytest.param("replay", ("before-sink-commit",), marks=pytest.mark.long),
        pytest.param("wal", ("before-seal", "sealed", "sink-committed", "batch-recorded"), marks=pytest.mark.long),
        pytest.param("hot", ("rows-staged", "batch-recorded"), marks=pytest.mark.long),
        pytest.param("ignore_range", ("quarantine-staged", "quarantine-committed"), marks=pytest.mark.long),
    ],
)
def test_toys_lose_and_double_nothing_when_killed(place: Toys, strategy: str, points: tuple[str, ...]) -> None:
    place.configure(recovery=strategy)
    for number, point in enumerate(points):
        place.feed(6)
        place.killed(f"killed {number}", point)
    done = account(place.run("last"))
    assert done["lost"] == done["absent"] == 0
    place.assert_exact()


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"sink": {"print": {"path": "x"}}}, "cannot commit a batch atomically with its batch number"),
        ({"source": {"drops": {"path": "x"}}}, "choose recovery: wal"),
        ({"schedule": "on_lag"}, "cannot watch source.lines"),
        (
            {"airflow": {"freshness": {"cron": "@daily", "max_age": "2h"}}},
            "the unread records of source.lines are is not known",
        ),
        ({"lag": {"mirror_group": "g"}}, "is a consumer group"),
        ({"source": {"lines": {"path": "x", "pat": "y"}}}, "did you mean 'path'"),
        ({"source": {"line": {"path": "x"}}}, "source.line: unknown key"),
        ({"source": {"lines": {"path": "x"}, "kafka": {"topics": ["t"]}}}, "source needs exactly one of"),
        ({"source": 5}, "source: expected a mapping, not 5; the keys here are: kafka"),
        ({"source": ["lines"]}, "source: expected a mapping, not a list"),
        ({"sink": {"broken": {"path": "x"}}}, "cannot be imported: RuntimeError: not today"),
        ({"decode": {"nothing": {}}}, "is not a kind of decoders"),
        ({"quarantine": {"delta": {"path": "out"}}}, "quarantine.delta.path: it is, or lies in, the sink"),
        ({"quarantine": {"delta": {"path": "out/refused"}}}, "quarantine.delta.path: it is, or lies in, the sink"),
    ],
)
def test_what_source_or_sink_cannot_do_is_refused_when_the_file_is_read(
    place: Toys, keys: dict[str, Any], told: str
) -> None:
    place.configure(**keys)
    refused = place.sluice("validate-spec", "--no-spark", str(place.file))
    assert (refused.returncode, told in refused.stderr.replace("\n", " ")) == (10, True), refused.stderr


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("run", "--start", "2020-01-01", "--end", "2020-01-02"), "has no intervals"),
        (("lag",), "needs source.kafka"),
        (("audit", "--deep"), "needs a Delta table"),
    ],
)
def test_what_only_others_can_do_is_refused_by_name(place: Toys, command: tuple[str, ...], told: str) -> None:
    place.feed(1)
    refused = place.sluice(command[0], str(place.file), *command[1:])
    assert (refused.returncode, told in refused.stderr.replace("\n", " ")) == (10, True), refused.stderr


def test_the_lag_of_all_pipelines_is_that_of_those_which_read_kafka(place: Toys) -> None:
    asked = place.sluice("lag", "--json", SLUICE_PIPELINES=str(place.root))
    assert (asked.returncode, json.loads(asked.stdout)) == (0, []), asked.stderr
