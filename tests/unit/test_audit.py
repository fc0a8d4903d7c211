"""Wrongs are planted in ledgers, tables and logs; the audit must find each one and name its range."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
import yaml
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.transaction import AddAction
from typer.testing import CliRunner

from sluice.audit import AuditReport, audit, deep, deep_audit, sieve, snapshot
from sluice.audit.cover import Cover
from sluice.cli.main import app
from sluice.errors import ConfigError, SinkError
from sluice.home import Home
from sluice.ledger import REDRIVEN, Ledger
from sluice.pipeline import load
from sluice.ranges import Counts, LostRange, OffsetRange, RangeAccount
from sluice.recovery import Route
from sluice.wal.log import SEAL, seal_text
from sluice.wal.segment import inspect, spread

Row = tuple[str | None, int | None, int | None, str]
"""Topic, partition, offset, run."""

SCHEMA = pa.schema(
    [("id", pa.int64()), ("_topic", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64()),
     ("_run", pa.string())]
)  # fmt: skip


def span(start: int, end: int, partition: int = 0) -> OffsetRange:
    return OffsetRange("t", partition, start, end)


def split(start: int, end: int, partition: int = 0, **parts: int) -> RangeAccount:
    return RangeAccount(span(start, end, partition), Counts(**(parts or {"written": end - start})))


def lost(start: int, end: int, partition: int = 0) -> LostRange:
    return LostRange(span(start, end, partition), "poison", {"offset": start, "key": None, "value": "x"})


def rows(run: str, *offsets: int, partition: int = 0) -> list[Row]:
    return [("t", partition, offset, run) for offset in offsets]


@dataclass
class Place:
    """A pipeline ``p`` with a ledger and tables that are written by hand."""

    root: Path
    sink: list[Row] = field(default_factory=list)
    quarantine: list[Row] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)
    partition_by: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.home = Home(str(self.root))
        self.url = f"sqlite:///{self.root}/ledger.db"
        self.ledger = Ledger.open(self.url)
        self.file = self.root / "p.yaml"
        self.configure()

    def configure(self, **keys: Any) -> None:
        self.file.write_text(
            yaml.safe_dump(
                {
                    "pipeline": "p",
                    "source": {"kafka": {"topics": ["t"]}},
                    "decode": {"json": {"schema": "id BIGINT"}},
                    "sink": {"delta": {"path": "table"}},
                    **keys,
                }
            )
        )

    def commit(self, run: str, *accounts: RangeAccount, epoch: int = 1, **also: Any) -> None:
        """Record a batch, as the driver does when the sink holds it."""
        name = f"sluice:p:{epoch or 'redriven'}"
        batch = self.ends[name] = self.ends.get(name, -1) + 1
        with self.ledger.acquire("p", run) as lease:
            kind = "redrive" if epoch == REDRIVEN else "live"
            ranges = [a.range for a in accounts]
            self.ledger.run_planned(lease, kind=kind, recovery="replay", epoch=epoch, ranges=ranges, topic_ids={})
            self.ledger.batch_committed(lease, epoch=epoch, batch=batch, accounts=accounts, **also)
            self.ledger.run_closed(lease, state="done")

    def hand_over(self, positions: Mapping[int, int]) -> None:
        """Close the epoch in the sink, and open the next one."""
        epoch = self.ledger.epoch("p").number
        self.ends[f"sluice:p:{epoch}"] += 1
        with self.ledger.acquire("p", "h") as lease:
            at = {"t": dict(positions)}
            self.ledger.epoch_opened(lease, epoch=epoch + 1, route=Route.LOG, positions=at)

    def execute(self, statement: str) -> None:
        """Change the ledger behind everybody's back."""
        engine = sa.create_engine(self.url)
        with engine.begin() as connection:
            connection.execute(sa.text(statement))
        engine.dispose()

    def write(self) -> None:
        """Write both tables, in a few files, in no order."""
        for path, found in ((self.path, self.sink), (f"{self.path}_quarantine", self.quarantine)):
            mixed = random.Random(1).sample(found, len(found))
            for n, part in enumerate((mixed[::3], mixed[1::3], mixed[2::3])):
                self.append(part, self.ends if n == 2 else {}, path)

    @property
    def path(self) -> str:
        return f"{self.root}/table"

    def append(self, found: Iterable[Row], ends: Mapping[str, int], path: str | None = None, **note: str) -> None:
        """Write rows in one commit."""
        columns = list(zip(*((1, *row) for row in found), strict=True)) or [[]] * len(SCHEMA)
        properties = CommitProperties(
            custom_metadata=note, app_transactions=[Transaction(name, batch, None) for name, batch in ends.items()]
        )
        data = pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
        write_deltalake(
            path or self.path, data, mode="append", partition_by=self.partition_by, commit_properties=properties
        )

    def deep(self) -> AuditReport:
        return deep_audit(self.ledger, load(self.file), self.home)

    def found(self) -> list[str]:
        """Write the tables; return what a deep audit finds wrong."""
        self.write()
        return self.deep().problems


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "_PAUSE", 0)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture(scope="session")
def told(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Everything that can lawfully happen to an offset, in two partitions and two epochs."""
    place = Place(tmp_path_factory.mktemp("told"))
    place.commit("a", split(0, 10, written=7, quarantined=2, absent=1), split(0, 5, 1))
    place.hand_over({0: 10, 1: 5})
    place.commit("b", split(10, 20, written=5, lost=5), split(5, 8, 1), epoch=2, lost=[lost(15, 20)])
    place.commit("c", split(16, 19, written=1, quarantined=1, absent=1), epoch=REDRIVEN, redriven="lost")
    place.commit("d", split(4, 5), split(17, 18), epoch=REDRIVEN, redriven="quarantined")
    place.sink = [
        *rows("a", 0, 1, 2, 5, 6, 7, 8), *rows("b", *range(10, 15)), *rows("c", 16), *rows("d", 4, 17),
        *rows("a", *range(5), partition=1), *rows("b", 5, 6, 7, partition=1),
    ]  # fmt: skip
    place.quarantine = rows("a", 3)
    return place


@pytest.fixture
def story(told: Place, tmp_path: Path) -> Place:
    """The same, to plant wrongs in; its tables are not written yet."""
    for file in told.root.glob("ledger.db*"):
        shutil.copy(file, tmp_path)
    return Place(tmp_path, list(told.sink), list(told.quarantine), dict(told.ends))


def without(found: list[Row], *offsets: int, partition: int = 0) -> list[Row]:
    left = [row for row in found if row[1] != partition or row[2] not in offsets]
    assert len(left) == len(found) - len(offsets)
    return left


# --- what is right -----------------------------------------------------------------------------------------------


def test_what_is_right_is_found_right(story: Place) -> None:
    story.write()
    report = story.deep()
    assert report.problems == audit(story.ledger, "p").problems == []
    assert report.partitions == audit(story.ledger, "p").partitions == [
        dict(topic="t", partition=0, start=0, end=20, planned=20, written=15, filtered=0, quarantined=1, absent=2,
             lost=2, redriven=5, open=2),
        dict(topic="t", partition=1, start=0, end=8, planned=8, written=8, filtered=0, quarantined=0, absent=0,
             lost=0, redriven=0, open=0),
    ]  # fmt: skip
    assert [(row["start"], row["end"], row["lost_by"], row["reason"]) for row in report.lost] == [
        (15, 16, "b", "poison"), (19, 20, "b", "poison"),
    ]  # fmt: skip
    assert report.unproved == []
    assert {name: table["rows"] for name, table in report.tables.items()} == {"sink": 23, "quarantine": 1}


def test_a_pipeline_that_never_ran_is_right(place: Place) -> None:
    assert place.deep().balanced
    assert audit(place.ledger, "p").as_dict() == {
        "pipeline": "p", "balanced": True, "partitions": [], "lost": [], "problems": []
    }  # fmt: skip


@pytest.mark.parametrize("columns", [["_topic", "_partition"], ["_partition"], ["_run"]])
def test_partitioned_tables_are_read_right(story: Place, columns: list[str]) -> None:
    story.partition_by = columns
    assert story.found() == []
    story.append(rows("a", 5), {})
    assert story.deep().problems == ["t-0 [5, 6) stands more than once in the sink"]


def test_tables_that_another_tool_rewrote_are_read_right(story: Place) -> None:
    story.write()
    table = DeltaTable(story.path)
    table.optimize.compact()
    assert story.deep().problems == []
    table.optimize.z_order(["_offset"])
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    table.create_checkpoint()
    assert story.deep().problems == []
    table.delete("_partition = 1 AND _offset = 2")
    assert "t-1 [2, 3) is missing: it was written or quarantined, and is in neither table" in (story.deep().problems)


def test_a_pipeline_without_a_quarantine_is_judged_as_one_with_an_empty_one(place: Place) -> None:
    place.commit("a", split(0, 3))
    place.append(rows("a", 0, 1, 2), place.ends)
    assert place.deep().problems == []
    DeltaTable(place.path).delete("_offset = 1")
    assert place.deep().problems == [
        "t-0 [1, 2) is missing: it was written or quarantined, and is in neither table",
        "of t-0 [0, 3) the ledger counts 3 offsets as written, the sink holds 2",
    ]


def test_a_filter_may_drop_any_offsets_of_its_range(place: Place) -> None:
    place.configure(rows="filter")
    place.commit("a", split(0, 10, written=3, filtered=7))
    place.sink = rows("a", 2, 3, 9)
    assert place.found() == []
    place.append(rows("a", 4), {})
    assert place.deep().problems == ["of t-0 [0, 10) the ledger counts 3 offsets as written, the sink holds 4"]


# --- what is wrong in the tables ---------------------------------------------------------------------------------

IN_THE_TABLES: dict[str, tuple[Callable[[Place], Any], list[str]]] = {
    "a doubled row": (
        lambda p: p.sink.extend(rows("a", 5)),
        ["t-0 [5, 6) stands more than once in the sink"],
    ),
    "rows that stand three times": (
        lambda p: p.sink.extend(rows("b", 10, 11, 11, 10)),
        ["t-0 [10, 12) stands more than once in the sink"],
    ),
    "a doubled row of the quarantine": (
        lambda p: p.quarantine.extend(rows("a", 3)),
        ["t-0 [3, 4) stands more than once in the quarantine"],
    ),
    "rows behind the position": (
        lambda p: p.sink.extend(rows("b", 20, 21, 30)),
        ["t-0 [20, 22), t-0 [30, 31) is in the sink, but no account covers it"],
    ),
    "rows of strange partitions": (
        lambda p: p.quarantine.extend([("t", 7, 0, "a"), ("other", 0, 4, "a")]),
        [
            "other-0 [4, 5) is in the quarantine, but no account covers it",
            "t-7 [0, 1) is in the quarantine, but no account covers it",
        ],
    ),
    "rows without an offset": (
        lambda p: p.sink.extend([("t", 0, None, "a"), (None, 0, 3, "a"), ("t", None, 3, "a")]),
        ["3 rows of the sink have no offset"],
    ),
    "a missing row": (
        lambda p: p.__setattr__("sink", without(p.sink, 6, partition=1)),
        [
            "t-1 [6, 7) is missing: it was written or quarantined, and is in neither table",
            "of t-1 [5, 8) the ledger counts 3 offsets as written, the sink holds 2",
        ],
    ),
    "a missing row where others are absent": (
        lambda p: p.__setattr__("sink", without(p.sink, 5)),
        ["of t-0 [0, 10) the ledger counts 7 offsets as written, the sink holds 6"],
    ),
    "a missing row that was redriven": (
        lambda p: p.__setattr__("sink", without(p.sink, 16, 4)),
        [
            "t-0 [4, 5) is missing: it was written or quarantined, and is in neither table",
            "of t-0 [16, 19) the ledger counts 1 offsets as written, the sink holds 0",
            "of t-0 [4, 5) the ledger counts 1 offsets as written, the sink holds 0",
        ],
    ),
    "a missing record of the quarantine": (
        lambda p: p.quarantine.clear(),
        ["of t-0 [0, 10) the ledger counts 1 offsets as quarantined, the quarantine holds 0"],
    ),
    "a redriven record that is still in the quarantine": (
        lambda p: p.quarantine.extend(rows("c", 17)),
        [
            "t-0 [17, 18) is in the sink and in the quarantine",
            "t-0 [17, 18) is in the quarantine, by another run than the ledger names",
            "of t-0 [17, 18) the ledger counts 0 offsets as quarantined, the quarantine holds 1",
        ],
    ),
    "an offset in sink and quarantine": (
        lambda p: p.quarantine.extend(rows("a", 8)),
        [
            "t-0 [8, 9) is in the sink and in the quarantine",
            "of t-0 [0, 10) the ledger counts 1 offsets as quarantined, the quarantine holds 2",
        ],
    ),
    "a row of an absent offset": (
        lambda p: p.sink.extend(rows("a", 9)),
        ["of t-0 [0, 10) the ledger counts 7 offsets as written, the sink holds 8"],
    ),
    "a row inside an open lost range": (
        lambda p: p.sink.extend(rows("b", 19)),
        ["t-0 [19, 20) is in the sink, but is open as lost"],
    ),
    "a refused record inside an open lost range": (
        lambda p: p.quarantine.extend(rows("b", 15)),
        ["t-0 [15, 16) is in the quarantine, but is open as lost"],
    ),
    "rows of another run": (
        lambda p: p.__setattr__("sink", [*without(p.sink, 11, 12), *rows("a", 11), *rows("nobody", 12)]),
        ["t-0 [11, 13) is in the sink, by another run than the ledger names"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("stretch", [1 << 28, 7])
@pytest.mark.parametrize("wrong", IN_THE_TABLES)
def test_a_wrong_in_the_tables_is_named_by_its_range(
    story: Place, monkeypatch: pytest.MonkeyPatch, wrong: str, stretch: int
) -> None:
    monkeypatch.setattr(deep, "_STRETCH", stretch)
    monkeypatch.setattr(sieve, "_BLOCK", 4 if stretch == 7 else 1 << 22)
    plant, problems = IN_THE_TABLES[wrong]
    plant(story)
    assert sorted(story.found()) == sorted(problems)


def test_a_gap_in_the_accounts_that_has_rows_is_named_twice_over(place: Place) -> None:
    place.commit("a", split(0, 5))
    place.commit("b", split(8, 9))
    place.sink = [*rows("a", *range(5)), *rows("b", 6, 8)]
    assert place.found() == [
        "a gap between t-0 [0, 5) and t-0 [8, 9)", "t-0 [6, 7) is in the sink, but no account covers it",
    ]  # fmt: skip


def test_very_many_wrongs_are_counted(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sieve, "_BLOCK", 512)
    place.commit("a", split(0, 4000, written=2000, absent=2000))
    place.sink = [*rows("a", *range(0, 4000, 2)) * 2, *rows("a", *range(5000, 6040))]
    found = place.found()
    assert found[0] == "t-0 [0, 1) stands more than once in the sink"
    assert found[1000] == "what stands more than once in the sink: 1,000 more"
    assert found[1001] == "1,040 rows of the sink lie within t-0 [5000, 6040), but no account covers them"
    assert len(found) == 1002


def test_long_work_tells_how_far_it_is(logged: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deep, "_EVERY", -1)
    told: list[str] = []
    deep_audit(logged.ledger, load(logged.file), logged.home, told.append)
    assert "sink: 23 rows read" in told
    assert told[-1] == "write-ahead log: 2 of 2 segments checked"


def test_random_tables_are_judged_as_a_slow_oracle_judges_them(place: Place) -> None:
    """Many partitions, each with a history of its own; some have a row too few, too many, or in the wrong place."""
    rng = random.Random(5)
    ends = {partition: rng.randint(0, 5) for partition in range(300)}
    wrong = set()
    for run in ("a", "b", "c"):
        accounts = []
        for partition, start in ends.items():
            ends[partition] = end = start + rng.randint(0, 12)
            parts: Counter[str] = Counter()
            for offset in range(start, end):
                part = rng.choice(["written", "written", "quarantined", "absent", "filtered"])
                parts[part] += 1
                fits = {"written": [1, 0], "quarantined": [0, 1]}.get(part, [0, 0])
                there = rng.choices([fits, [0, 0], [1, 0], [0, 1], [1, 1], [2, 0], [0, 2]], [400, 1, 1, 1, 1, 1, 1])[0]
                wrong |= {partition} if there != fits else set()
                for table, copies in zip((place.sink, place.quarantine), there, strict=True):
                    table += rows(run, *[offset] * copies, partition=partition)
            if parts:
                accounts.append(split(start, end, partition, **parts))
        place.commit(run, *accounts)
    found = place.found()
    assert {partition for partition in ends if any(f"t-{partition} " in problem for problem in found)} == wrong
    assert 20 < len(wrong) < 100


def test_rows_many_allows_any_number_of_rows_by_one_run(place: Place) -> None:
    place.configure(rows="many")
    place.commit("a", split(0, 3, written=2, filtered=1))
    place.commit("b", split(3, 5))
    place.sink = [*rows("a", 0, 0, 0, 2), *rows("b", 3, 4, 4)]
    assert place.found() == []
    assert "rows: many" in place.deep().unproved[0]
    place.append(rows("again", 2), {})
    assert place.deep().problems == ["t-0 [2, 3) is in the sink, by another run than the ledger names"]


def test_rows_aggregate_is_proved_as_far_as_it_goes(place: Place) -> None:
    place.configure(rows="aggregate")
    place.commit("a", split(0, 5, written=4, quarantined=1))
    place.sink = [(None, None, None, "a")] * 2
    place.quarantine = rows("a", 3)
    assert place.found() == []
    report = place.deep()
    assert "rows of the sink carry no offsets" in report.unproved[0]
    place.append([(None, None, None, "nobody")], {})
    place.append(rows("a", 4), {}, f"{place.path}_quarantine")
    assert place.deep().problems == [
        "1 rows of the sink are by run 'nobody', for which there is no account",
        "of t-0 [0, 5) the ledger counts 1 offsets as quarantined, the quarantine holds 2",
    ]


# --- ledger and tables of different moments ----------------------------------------------------------------------


def test_a_table_that_is_not_there_is_one_problem(story: Place) -> None:
    assert sorted(story.deep().problems) == [
        *(f"the ledger has batch {batch} of {what}, but there is no table at {story.path}: it was removed or rolled "
          "back" for batch, what in ((0, "epoch 2"), (1, "epoch 1"), (1, "what was redriven"))),
        f"there is no quarantine at {story.path}_quarantine, where records of t-0 [0, 10) were put",
    ]  # fmt: skip


def test_a_table_that_was_taken_back_is_named(story: Place) -> None:
    story.write()
    story.commit("e", split(20, 22), epoch=2)
    assert story.deep().problems == [
        f"the ledger has batch 1 of epoch 2, but the table ends with batch 0 at {story.path}: "
        "it was removed or rolled back",
        "t-0 [20, 22) is missing: it was written or quarantined, and is in neither table",
        "of t-0 [20, 22) the ledger counts 2 offsets as written, the sink holds 0",
    ]


def test_a_batch_that_the_ledger_does_not_know_yet_is_one_problem(story: Place) -> None:
    story.write()
    for path, app_id in ((story.path, "sluice:p:2"), (f"{story.path}_quarantine", "sluice:p:2:quarantine")):
        note = json.dumps({"app_id": app_id, "version": 1, "run": "e"})
        story.append(rows("e", 20, 21) if path == story.path else rows("e", 22), {app_id: 1}, path, sluice=note)
    (problem,) = story.deep().problems
    assert problem.startswith(f"the sink {story.path} holds batch 1 of epoch 2, the ledger ends with batch 0")


def test_a_first_batch_that_the_ledger_does_not_know_yet_is_one_problem(place: Place) -> None:
    note = json.dumps({"app_id": "sluice:p:1", "version": 0, "run": "a"})
    place.append(rows("a", 0, 1), {"sluice:p:1": 0}, sluice=note)
    (problem,) = place.deep().problems
    assert "holds batch 0 of epoch 1, the ledger ends with batch -1" in problem


def test_a_driver_that_commits_meanwhile_is_waited_for(story: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    story.write()
    story.append(rows("e", 20, 21), {"sluice:p:2": 1})
    monkeypatch.setattr(snapshot, "sleep", lambda _: story.commit("e", split(20, 22), epoch=2))
    report = story.deep()
    assert report.problems == []
    assert report.partitions[0]["end"] == 22


def test_a_table_that_cannot_be_read_is_an_error_and_no_finding(story: Place) -> None:
    story.write()
    for file in Path(story.path).glob("*.parquet"):
        file.unlink()
    with pytest.raises(SinkError, match=r"the sink .* cannot be read"):
        story.deep()


def test_a_sink_without_offsets_is_named(story: Place) -> None:
    story.write()
    write_deltalake(story.path, pa.table({"id": [1]}), mode="overwrite", schema_mode="overwrite")
    assert f"the sink {story.path} has no column _topic, _partition, _offset, _run" in story.deep().problems


# --- what is wrong in the ledger ---------------------------------------------------------------------------------


def redrive(story: Place, run: str, *accounts: RangeAccount, of: str) -> None:
    story.commit(run, *accounts, epoch=REDRIVEN, redriven=of)


IN_THE_LEDGER: dict[str, tuple[Callable[[Place], Any], list[str]]] = {
    "an account that does not add up": (
        lambda p: p.execute("UPDATE sluice_account SET written = 6 WHERE run = 'a' AND partition = 0"),
        [
            "the account of t-0 [0, 10) does not balance: 10 planned, "
            "{'written': 6, 'filtered': 0, 'quarantined': 2, 'absent': 1, 'lost': 0}"
        ],
    ),
    "a gap": (
        lambda p: p.commit("e", split(21, 23), epoch=2),
        ["a gap between t-0 [10, 20) and t-0 [21, 23)"],
    ),
    "an overlap": (
        lambda p: p.commit("e", split(7, 9, 1), epoch=2),
        ["an overlap between t-1 [5, 8) and t-1 [7, 9)"],
    ),
    "an overlap within a longer range": (
        lambda p: [p.commit("e", split(12, 13), epoch=2), p.commit("f", split(20, 21), epoch=2)],
        ["an overlap between t-0 [10, 20) and t-0 [12, 13)"],
    ),
    "an epoch that begins elsewhere": (
        lambda p: p.hand_over({0: 20, 1: 9}),
        ["epoch 3 begins at offset 9 of t-1, where no range ends"],
    ),
    "a loss that no account counts": (
        lambda p: p.commit("e", split(20, 22), epoch=2, lost=[lost(21, 22)]),
        ["the account of t-0 [20, 22) counts 0 offsets as lost, recorded as lost there: t-0 [21, 22)"],
    ),
    "a loss that is not recorded": (
        lambda p: p.commit("e", split(20, 26, written=1, lost=5), epoch=2, lost=[lost(20, 22), lost(24, 26)]),
        [
            "the account of t-0 [20, 26) counts 5 offsets as lost, recorded as lost there: t-0 [20, 22), t-0 [24, 26)"
        ],
    ),
    "a loss outside of all accounts": (
        lambda p: p.commit("e", split(20, 22, lost=2), epoch=2, lost=[lost(20, 25)]),
        ["t-0 [22, 25) is recorded as lost, but no account covers it"],
    ),
    "a loss that is recorded twice": (
        lambda p: [
            p.commit("e", split(20, 22, lost=2), epoch=2, lost=[lost(20, 22)]),
            p.commit("f", split(22, 23), epoch=2, lost=[lost(21, 22)]),
        ],
        ["t-0 [21, 22) is recorded as lost twice"],
    ),
    "a loss that was redriven twice": (
        lambda p: redrive(p, "e", split(15, 17), of="lost"),
        ["t-0 [16, 17) was redriven twice, as lost"],
    ),
    "something redriven that was never lost": (
        lambda p: redrive(p, "e", split(14, 16), split(3, 4, 1), of="lost"),
        [
            "t-0 [14, 15) was redriven as lost, but was never lost",
            "t-1 [3, 4) was redriven as lost, but was never lost",
        ],
    ),
    "a redriven loss that was never closed": (
        lambda p: p.execute("UPDATE sluice_lost SET state = 'open' WHERE state = 'redriven'"),
        [
            "t-0 [16, 19) was redriven, but is open as lost",
            "t-0 [17, 18) was redriven from the quarantine, but was never in it",
        ],
    ),
    "a loss closed without a trace": (
        lambda p: p.execute("UPDATE sluice_lost SET state = 'redriven' WHERE start = 19"),
        ["t-0 [19, 20) is closed as redriven, but no account covers it"],
    ),
    "a redriven loss that is lost again": (
        lambda p: redrive(p, "e", split(15, 16, lost=1), of="lost"),
        ["the account of t-0 [15, 16) counts 1 redriven offsets as lost again"],
    ),
    "a refused record that was redriven twice": (
        lambda p: redrive(p, "e", split(4, 5), of="quarantined"),
        ["t-0 [4, 5) was redriven twice, from the quarantine"],
    ),
    "more redriven than was refused": (
        lambda p: redrive(p, "e", split(5, 7), split(2, 3, 1), of="quarantined"),
        [
            "t-0 [4, 7) was redriven from the quarantine, 3 offsets, but only 2 of t-0 [0, 10) were quarantined",
            "t-1 [2, 3) was redriven from the quarantine, 1 offsets, but only 0 of t-1 [0, 5) were quarantined",
        ],
    ),
    "more redriven than was refused when redriving": (
        lambda p: redrive(p, "e", split(18, 19), of="quarantined"),
        ["t-0 [17, 19) was redriven from the quarantine, 2 offsets, but only 1 of t-0 [16, 19) were quarantined"],
    ),
    "something redriven from the quarantine that was never there": (
        lambda p: redrive(p, "e", split(19, 20), split(25, 26), of="quarantined"),
        [
            "t-0 [19, 20) was redriven from the quarantine, but was never in it",
            "t-0 [25, 26) was redriven from the quarantine, but was never in it",
            "t-0 [19, 20) was redriven from the quarantine, 1 offsets, but only 0 of t-0 [10, 20) were quarantined",
        ],
    ),
    "something redriven of which nobody knows what it was": (
        lambda p: redrive(p, "e", split(19, 20), of="spilt"),
        ["t-0 [19, 20) was redriven, but the ledger does not say what it was before"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("wrong", IN_THE_LEDGER)
def test_a_wrong_in_the_ledger_is_named_by_its_range(story: Place, wrong: str) -> None:
    plant, problems = IN_THE_LEDGER[wrong]
    plant(story)
    found = audit(story.ledger, "p")
    assert (found.problems, found.balanced) == (problems, False)
    story.write()
    assert set(problems) <= set(story.deep().problems)


def test_what_was_redriven_is_what_it_became(place: Place) -> None:
    place.commit("a", split(0, 100, lost=100), lost=[lost(0, 100)])
    place.commit("b", split(0, 60, written=40, quarantined=20), epoch=REDRIVEN, redriven="lost")
    place.commit("c", split(30, 35, filtered=5), split(36, 37), epoch=REDRIVEN, redriven="quarantined")
    report = audit(place.ledger, "p")
    assert report.problems == []
    assert report.partitions == [
        dict(topic="t", partition=0, start=0, end=100, planned=100, written=41, filtered=5, quarantined=14, absent=0,
             lost=40, redriven=66, open=40)
    ]  # fmt: skip


def test_covers_count_and_cut_as_sets_do() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        ranges = [span(a, a + rng.randint(0, 6)) for a in rng.choices(range(16), k=rng.randint(0, 6))]
        start = rng.randint(0, 16)
        asked = span(start, start + rng.randint(0, 12))
        inside = {o for r in ranges for o in range(r.start, r.end)} & set(range(asked.start, asked.end))
        cover = Cover(ranges)
        assert cover.length(asked.start, asked.end) == len(inside)
        assert {o for r in cover.cut(asked) for o in range(r.start, r.end)} == inside
        assert {o for r in cover.holes(asked) for o in range(r.start, r.end)} == (
            set(range(asked.start, asked.end)) - inside
        )


# --- the write-ahead log -----------------------------------------------------------------------------------------

LOG_SCHEMA = pa.schema(
    [("value", pa.binary()), ("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()),
     ("timestamp", pa.timestamp("us", "UTC"))]
)  # fmt: skip


@pytest.fixture
def logged(story: Place) -> Place:
    """The same story, with a write-ahead log of its second epoch: two segments, sealed by one batch."""
    import fsspec

    root, folder = story.home.log("p"), "batches/e2-000000-0a1b2c3d"
    DeltaTable.create(root, Schema.from_arrow(LOG_SCHEMA))
    ranges, paths = [span(10, 20), span(5, 8, 1)], []
    for number, item in enumerate(ranges):
        offsets = list(range(item.start, item.end))
        values = [random.Random(o).randbytes(400) for o in offsets]
        columns = [values, ["t"] * len(offsets), [item.partition] * len(offsets), offsets, [o * 10**6 for o in offsets]]
        data = pa.table([pa.array(c, f.type) for c, f in zip(columns, LOG_SCHEMA, strict=True)], schema=LOG_SCHEMA)
        paths.append(f"{folder}/part-{number}.parquet")
        Path(root, folder).mkdir(parents=True, exist_ok=True)
        pq.write_table(data, f"{root}/{paths[-1]}", write_page_checksum=True)
    segments = spread([inspect(fsspec.filesystem("file"), root, path) for path in paths], ranges)
    Path(root, folder, SEAL).write_text(seal_text(segments))
    added = [
        AddAction(
            s.path, s.length, {}, 0, True,
            json.dumps({
                "numRecords": s.records, "nullCount": {},
                "minValues": {"topic": "t", "partition": s.range.partition, "offset": s.range.start},
                "maxValues": {"topic": "t", "partition": s.range.partition, "offset": s.range.end - 1},
            }),
        )
        for s in segments
    ]  # fmt: skip
    table = DeltaTable(root)
    sealed = CommitProperties(app_transactions=[Transaction("sluice:p:2:log", 0, None)])
    table.create_write_transaction(added, "append", table.schema(), commit_properties=sealed)
    with story.ledger.acquire("p", "b") as lease:
        story.ledger.segment_sealed(lease, epoch=2, batch=0, segments=[s.as_dict() for s in segments])
    story.write()
    return story


def segment(logged: Place, number: int) -> Path:
    (found,) = Path(logged.home.log("p")).rglob(f"part-{number}.parquet")
    return found


def test_a_whole_log_is_found_whole(logged: Place) -> None:
    report = logged.deep()
    assert report.problems == []
    assert report.tables["log"] == {"path": logged.home.log("p"), "segments": 2, "records": 13}


def garble(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 3] ^= 1
    file.write_bytes(raw)


@pytest.mark.parametrize(
    ("damage", "how"),
    [
        (garble, "is garbled"),
        (lambda f: f.write_bytes(f.read_bytes()[:-9]), "is truncated"),
        (lambda f: f.unlink(), "is missing"),
    ],
)
def test_a_damaged_segment_is_named(logged: Place, damage: Callable[[Path], Any], how: str) -> None:
    damage(segment(logged, 0))
    (problem,) = logged.deep().problems
    assert problem.startswith("segment batches/e2-000000-0a1b2c3d/part-0.parquet of t-0 [10, 20) " + how)


def test_a_damaged_seal_is_named(logged: Place) -> None:
    (seal,) = Path(logged.home.log("p")).rglob(SEAL)
    seal.write_text("{")
    (problem,) = logged.deep().problems
    assert f"batches/e2-000000-0a1b2c3d/{SEAL} is damaged" in problem


def test_a_log_that_was_removed_is_named(logged: Place) -> None:
    Path(logged.home.log("p")).rename(logged.root / "elsewhere")
    assert logged.deep().problems == [
        f"the ledger has batch 0 of epoch 2 sealed, the write-ahead log {logged.home.log('p')} ends with batch -1: "
        "it was removed or rolled back"
    ]


# --- the command -------------------------------------------------------------------------------------------------


@pytest.fixture
def command(story: Place, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setenv("SLUICE_HOME", str(story.root))
    monkeypatch.delenv("SLUICE_LEDGER_URL", raising=False)
    return lambda *arguments: CliRunner().invoke(app, ["audit", *arguments])


def test_the_command_tells_people_what_is_open(story: Place, command: Callable[..., Any]) -> None:
    for argument in ("p", str(story.file)):
        done = command(argument)
        assert done.exit_code == 0
        assert "lost: t-0 [15, 16) by run b: poison; offset 15 has key None, value 'x'" in done.output
        assert f"2 offsets are lost: sluice redrive {argument}" in done.output
        assert done.stderr == "balanced\n"


def test_the_command_tells_programs_everything(story: Place, command: Callable[..., Any]) -> None:
    story.sink += rows("a", 5)
    story.write()
    done = command("--deep", str(story.file), "--json")
    assert done.exit_code == 1
    report = json.loads(done.stdout)
    assert (report["balanced"], report["problems"]) == (False, ["t-0 [5, 6) stands more than once in the sink"])
    assert report["lost"][0]["reason"] == "poison"
    assert report["tables"]["sink"]["rows"] == 24
    told = command("--deep", str(story.file))
    assert told.exit_code == 1
    assert "problem: t-0 [5, 6) stands more than once in the sink" in told.output
    assert told.stderr.endswith("NOT balanced\n")


def test_with_a_broken_ledger_the_tables_are_not_proved(story: Place, command: Callable[..., Any]) -> None:
    story.execute("UPDATE sluice_account SET written = 0 WHERE run = 'a'")
    report = json.loads(command("--deep", str(story.file), "--json").stdout)
    assert not report["balanced"]
    assert report["unproved"] == ["the tables were not compared: an account of the ledger does not add up"]


def test_a_name_that_nobody_knows_is_not_found_balanced(story: Place, command: Callable[..., Any]) -> None:
    done = command("misspelt")
    assert isinstance(done.exception, ConfigError)
