"""Several sinks of one pipeline: whatever dies, each has each record once, and all end with the same batch."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import ConfigResource, ConfigResourceType
from tests.chaos import test_dedupe as dedupe
from tests.chaos import test_windows as windows
from tests.chaos.test_interval import at, days, feed_days
from tests.fixtures.folder import FolderSandbox
from tests.fixtures.runs import Offset
from tests.fixtures.stream import StreamSandbox, origin

from sluice.run.decision import accept

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

POINTS = ("also-staged", "before-sink-commit", "sink-committed", "quarantine-committed", "also-committed",
          "also-committed:2", "batch-recorded")  # fmt: skip


@dataclass
class AlsoSandbox(StreamSandbox):
    """A sandbox that writes to a table, and also to a topic and to a folder of files."""

    def configure(self, *, kafka: Mapping[str, Any] | None = None, **keys: Any) -> None:
        """Write the pipeline file anew."""
        usual = {"sink": {"delta": {"path": "table"}}, "also": [self.into(), {"files": {"path": "out"}}]}
        super().configure(kafka=kafka, **{**usual, **keys})

    def sink(self) -> Counter[Offset]:
        """What the table holds."""
        return self.offsets("table")

    def quarantine(self) -> Counter[Offset]:
        """What the quarantine holds."""
        return self.offsets("table_quarantine")

    @property
    def out(self) -> Path:
        """The folder of files."""
        return self.home / "out"

    def in_topic(self) -> Counter[Offset]:
        """What the topic holds."""
        return StreamSandbox.sink(self)

    def in_files(self) -> Counter[Offset]:
        """What the folder holds."""
        return FolderSandbox.sink(self)  # type: ignore[arg-type]

    named, all_rows, lines = FolderSandbox.named, FolderSandbox.all_rows, FolderSandbox.lines

    def assert_together(self) -> None:
        """The account is exact, and each sink has the same rows."""
        self.assert_exact()
        assert self.in_topic() == self.in_files() == self.sink()
        assert self.held_up() == []


@pytest.fixture
def into_three(sending: Callable[[type[AlsoSandbox]], AlsoSandbox]) -> AlsoSandbox:
    """A pipeline into a table, a topic and a folder."""
    return sending(AlsoSandbox)


def _as_text(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a window as text: JSON has its times as such."""
    at = [row[name] if isinstance(row[name], str) else row[name].isoformat() for name in ("window_start", "window_end")]
    return (*(text[:19] for text in at), *(str(row[name]) for name in ("k", "n", "total")))


def reset(sandbox: AlsoSandbox) -> None:
    done = sandbox.cli("reset", str(sandbox.file), "--reason", "it stays without these rows")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("recovery", "points"),
    [
        ("replay", ("also-staged", "also-committed")),
        pytest.param("replay", POINTS, marks=pytest.mark.long),
        pytest.param("wal", ("sealed", *POINTS), marks=pytest.mark.long),
        pytest.param("hot", POINTS, marks=pytest.mark.long),
        pytest.param("ignore_range", POINTS, marks=pytest.mark.long),
        pytest.param("ignore_batch", POINTS, marks=pytest.mark.long),
    ],
)
def test_kills_neither_lose_nor_double(into_three: AlsoSandbox, recovery: str, points: tuple[str, ...]) -> None:
    sandbox = into_three
    sandbox.configure(recovery=recovery, quality={"max_quarantined": "100%"})
    for point in points:
        sandbox.feed(8, bad_every=3)
        sandbox.run("killed", kill_at=point)
        every = (sandbox.sink(), sandbox.in_topic(), sandbox.in_files())
        assert set(sum(every, Counter())) == set(every[0]), "what is anywhere is in the table"
        assert all(set(held.values()) <= {1} for held in every)
    sandbox.run("killed")
    sandbox.assert_together()
    assert sandbox.staged() <= {name for name in sandbox.staged() if "-e1-" in name}


def test_a_batch_that_one_sink_lacks_comes_there_first(into_three: AlsoSandbox) -> None:
    """What the transform makes of its records by now does not matter: they are the rows that the table has."""
    sandbox = into_three
    sandbox.feed(5)
    sandbox.run("died", kill_at="sink-committed")
    held = sandbox.sink()
    assert len(held) == 5
    assert not sandbox.in_topic()
    sandbox.configure(
        transform={"sql": "SELECT id, 'other' AS name, _topic, _partition, _offset, _timestamp FROM source"}
    )
    sandbox.run("next")
    sandbox.assert_together()
    assert {json.loads(r.value)["name"] for r in sandbox.sent()} == {f"name {n}" for n in range(5)}
    assert sandbox.account("died")["written"] == 5


@pytest.mark.long
def test_staged_rows_that_are_gone_are_not_passed_over(into_three: AlsoSandbox) -> None:
    sandbox = into_three
    sandbox.feed(5)
    sandbox.run("died", kill_at="sink-committed")
    staged = sandbox.home / "staged"
    shutil.move(staged, sandbox.home / "aside")
    said = sandbox.run("next", expect=41).message
    assert "of the 5 rows that were staged for it" in said
    assert not sandbox.in_topic()
    shutil.move(sandbox.home / "aside", staged)
    sandbox.run("next")
    sandbox.assert_together()
    sandbox.feed(5)
    sandbox.run("died again", kill_at="sink-committed")
    shutil.rmtree(staged)
    sandbox.feed(2)
    assert "sluice reset" in sandbox.run("next", expect=41).message
    reset(sandbox)
    sandbox.run("without")
    sandbox.assert_exact()
    assert sandbox.in_files() == sandbox.sink()
    assert sum((sandbox.sink() - sandbox.in_topic()).values()) == 5


@pytest.mark.long
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"kafka": {"headers": ["name"]}}, {"kafka": {"headers": ["id"]}}),
        pytest.param({"delta": {"path": "second"}}, {"delta": {"path": "./second"}}, marks=pytest.mark.long),
        pytest.param(
            {"delta": {"path": "second"}}, {"delta": {"path": "second", "partition_by": ["name"]}},
            marks=pytest.mark.long,
        ),
    ],
)  # fmt: skip
def test_what_was_staged_for_a_sink_is_not_committed_by_other_settings(
    into_three: AlsoSandbox, before: dict[str, Any], after: dict[str, Any]
) -> None:
    sandbox = into_three
    of_topic = [sandbox.into(**keys["kafka"]) if "kafka" in keys else keys for keys in (before, after)]
    sandbox.configure(also=[of_topic[0]])
    sandbox.feed(5)
    sandbox.run("died", kill_at="sink-committed")
    sandbox.configure(also=[of_topic[1]])
    said = sandbox.run("next", expect=10).message
    assert "name it in also as it was" in said
    sandbox.configure(also=[of_topic[0]])
    sandbox.run("next")
    assert (sandbox.in_topic() or sandbox.offsets("second")) == sandbox.sink()
    sandbox.assert_exact()


@pytest.mark.long
def test_a_row_that_a_further_sink_never_takes_does_not_stop_the_pipeline_for_good(into_three: AlsoSandbox) -> None:
    sandbox = into_three
    sandbox.configure(also=[sandbox.into(), {"files": {"path": "out"}}])
    limits = {"max.message.bytes": "2000"}
    with sandbox.topics._admin() as admin:
        admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, sandbox.target, configs=limits)])
    sandbox.produce([(0, b"k", json.dumps({"id": 77, "name": "x" * 5000}).encode())])
    for run in ("first", "again"):
        assert "go on without this batch there: sluice reset" in sandbox.run(run, expect=30).message
    reset(sandbox)
    sandbox.feed(4)
    sandbox.run("goes on")
    sandbox.assert_exact()
    assert sandbox.in_files() == sandbox.sink()
    assert sum((sandbox.sink() - sandbox.in_topic()).values()) == 1


@pytest.mark.long
def test_a_sink_that_was_restored_or_swapped_behind_a_redrive_is_noticed(into_three: AlsoSandbox) -> None:
    sandbox = into_three
    keys = {"recovery": "ignore_range", "transform": {"python": "poison:dying"}, "quarantine": {"delta": {"path": "q"}}}
    sandbox.configure(also=[{"files": {"path": "out"}}], **keys)
    sandbox.feed(6)
    sandbox.run("live", POISON_IDS="1,4")
    sandbox.run("again", redriven="lost", POISON_IDS="4")
    newest = max(sandbox.out.glob("_sluice/*.json"))
    newest.rename(sandbox.home / newest.name)
    for run, of in (("live again", None), ("again too", "lost")):
        assert "restored to an earlier state" in sandbox.run(run, redriven=of, expect=41).message
    sandbox.configure(sink={"files": {"path": "out"}}, also=[{"delta": {"path": "table"}}], **keys)
    assert "restored to an earlier state" in sandbox.run("swapped", redriven="lost", expect=41).message
    sandbox.configure(also=[{"files": {"path": "out"}}], **keys)
    reset(sandbox)
    sandbox.feed(3)
    sandbox.run("goes on")
    sandbox.run("the last", redriven="lost")
    assert sum((sandbox.sink() - sandbox.in_files()).values()) == 1
    assert sandbox.sink() == sandbox.on_broker()


def test_a_sink_that_is_added_gets_what_comes_and_one_that_was_rolled_back_is_noticed(into_three: AlsoSandbox) -> None:
    sandbox = into_three
    sandbox.configure(also=[])
    sandbox.feed(5)
    sandbox.run("alone")
    sandbox.configure()
    before = len(sandbox.sink())
    sandbox.feed(5)
    assert "gets rows from this run on" in sandbox.run("together").stderr
    sandbox.assert_exact()
    assert sandbox.in_topic() == sandbox.in_files()
    assert sum((sandbox.sink() - sandbox.in_files()).values()) == before
    newest = max(file for file in sandbox.out.glob("_sluice/*.json"))
    newest.rename(sandbox.home / newest.name)
    sandbox.feed(3)
    said = sandbox.run("restored", expect=41).message
    assert "one of them was restored to an earlier state" in said
    (sandbox.home / newest.name).rename(newest)
    sandbox.run("restored")
    sandbox.assert_exact()
    assert sandbox.in_topic() == sandbox.in_files()


@pytest.mark.parametrize(
    ("sink", "same"),
    [({"delta": {"path": "table"}}, True), ({"delta": {"path": "table", "partition_by": ["name"]}}, False)],
)
def test_files_that_fit_as_they_are_are_copied(into_three: AlsoSandbox, sink: dict[str, Any], same: bool) -> None:
    sandbox = into_three
    sandbox.configure(sink=sink, also=[{"files": {"path": "out"}}])
    sandbox.feed(6)
    sandbox.run("r")
    sandbox.assert_exact()
    assert sandbox.in_files() == sandbox.sink()
    table = sandbox.table()
    assert table is not None
    there = {Path(path).read_bytes() for path in table.file_uris()}
    assert ({(sandbox.out / name).read_bytes() for name in sandbox.named()} == there) is same


def test_the_topic_has_the_rows_of_a_partition_in_order(into_three: AlsoSandbox) -> None:
    sandbox = into_three
    sandbox.configure(
        kafka={"max_records_per_batch": 1000},
        sink={"delta": {"path": "table", "partition_by": ["rest"]}},  # so its files have the rows in another order
        also=[sandbox.into(key=None, partition="part"), {"files": {"path": "out"}}],
        decode={"json": {"schema": "id BIGINT"}},
        transform={"sql": "SELECT id, 0 AS part, id % 7 AS rest, _topic, _partition, _offset, _timestamp FROM source"},
    )
    sandbox.produce([(0, b"k", b'{"id": %d}' % n) for n in range(200)])
    sandbox.run("r")
    offsets = [origin(record)[2] for record in sandbox.sent()]
    assert offsets == list(range(200))
    sandbox.assert_together()


@pytest.mark.long
def test_redrives_go_to_each_sink_and_what_replaces_is_refused(into_three: AlsoSandbox) -> None:
    sandbox = into_three
    sandbox.configure(recovery="ignore_range", transform={"python": "poison:dying"})
    sandbox.feed(5)
    sandbox.run("live", POISON_IDS="3")
    assert sandbox.total("lost") == 1
    sandbox.run("again", redriven="lost", kill_at="sink-committed")
    sandbox.run("again", redriven="lost", kill_at="also-committed")
    sandbox.run("again", redriven="lost")
    assert sandbox.sink() == sandbox.in_topic() == sandbox.in_files() == sandbox.on_broker()
    sandbox.assert_balanced()
    sandbox.configure(quality={"max_quarantined": "100%"})
    sandbox.produce([(0, b"k", b'{"id": "x"}')])
    sandbox.run("refused")
    assert len(sandbox.quarantine()) == 1
    sandbox.configure(decode={"json": {"schema": "id STRING, name STRING"}}, sink={"delta": {"path": "table"}},
                      transform={"sql": "SELECT try_cast(id AS BIGINT) AS id, name, _topic, _partition, _offset, "
                                        "_timestamp FROM source"})  # fmt: skip
    sandbox.run("let in", redriven="quarantined", kill_at="sink-committed")
    sandbox.run("let in", redriven="quarantined")
    assert not sandbox.quarantine()
    assert sandbox.sink() == sandbox.in_topic() == sandbox.in_files() == sandbox.on_broker()
    sandbox.assert_balanced()
    name = sandbox.name
    for arguments, told in (
        (("run", name, "--start", "2026-01-01T00:00Z", "--end", "2026-01-02T00:00Z"), "also[0].kafka cannot replace"),
        (("retract", name, "live", "--reason", "x"), "also[0].kafka does not take single rows back"),
        (("reset", name, "--truncate", "--from", "earliest", "--reason", "x"), "does not take such rows back"),
    ):
        said = sandbox.cli(*[sandbox.file.as_posix() if part == name else part for part in arguments])
        assert said.returncode == 10, said.stderr
        assert told in " ".join(said.stderr.split())


@pytest.mark.long
@pytest.mark.parametrize(
    "points",
    [
        ("sink-committed",),
        pytest.param(
            ("also-staged", "before-sink-commit", "sink-committed", "also-committed", "batch-recorded"),
            marks=pytest.mark.long,
        ),
    ],
)
def test_an_interval_replaces_rows_in_each_sink_and_fills_one_that_was_added(
    into_three: AlsoSandbox, points: tuple[str, ...]
) -> None:
    sandbox = into_three
    allowed = {"quality": {"max_quarantined": "100%"}}
    sandbox.configure(also=[], **allowed)
    feed_days(sandbox, 3, 6)
    sandbox.produce([(0, b"k", b"{", at(4))])
    sandbox.run("live")
    again = {"sql": "SELECT id, 'again' AS name, _topic, _partition, _offset, _timestamp FROM source"}
    sandbox.configure(also=[{"files": {"path": "out"}}], transform=again, **allowed)
    for number, point in enumerate(points):
        sandbox.run(f"interval {number}", interval=days(3, 5), kill_at=point)
    sandbox.run("interval", interval=days(3, 6))
    sandbox.assert_exact()
    assert sandbox.in_files() == sandbox.sink()
    assert {row["name"] for row in sandbox.lines()} == {"again"}


@pytest.mark.long
@pytest.mark.parametrize("point", ["sink-committed", "also-committed"])
def test_a_retraction_takes_rows_out_of_each_sink(into_three: AlsoSandbox, point: str) -> None:
    sandbox = into_three
    sandbox.configure(also=[{"files": {"path": "out"}}, {"delta": {"path": "second"}}])
    sandbox.feed(6)
    sandbox.run("right")
    sandbox.feed(5)
    sandbox.run("wrong")
    command = ("retract", str(sandbox.file), "wrong", "--reason", "wrong currency")
    sandbox.cli(*command, SLUICE_KILL_AT=point)
    assert len(sandbox.sink()) == 6
    sandbox.feed(3)
    sandbox.run("next")  # any run finishes what the killed one began
    assert len(sandbox.sink()) == 9
    assert sandbox.sink() == sandbox.in_files() == sandbox.offsets("second")
    sandbox.run("back", redriven="lost")
    assert sandbox.sink() == sandbox.in_files() == sandbox.offsets("second") == sandbox.on_broker()
    sandbox.assert_balanced()


@pytest.mark.long
def test_a_batch_that_is_held_back_is_in_no_sink(into_three: AlsoSandbox) -> None:
    sandbox = into_three
    limits = {"quality": {"when": "before_commit", "max_quarantined": 1}}
    sandbox.configure(also=[sandbox.into(), {"files": {"path": "out"}}, {"delta": {"path": "second"}}], **limits)
    sandbox.feed(6, bad_every=3)
    sandbox.run("bad", validate=True, expect=50)
    assert (sandbox.sink(), sandbox.in_topic(), sandbox.in_files(), sandbox.offsets("second")) == ({}, {}, {}, {})
    accept(sandbox.ledger, sandbox.name, "bad", reason="known")
    sandbox.run("bad", validate=True)
    sandbox.assert_together()
    assert sandbox.offsets("second") == sandbox.sink()
    for command in ("compact", "vacuum"):
        done = sandbox.cli(command, str(sandbox.file), "--json")
        assert done.returncode == 0, done.stderr
        paths = [row["path"] for row in json.loads(done.stdout)["tables"]]
        assert paths == [str(sandbox.home / path) for path in ("table", "second", "table_quarantine")]
    refused = sandbox.cli("adopt", "another", "--as", str(sandbox.file))
    assert (refused.returncode, "further sinks (also)" in " ".join(refused.stderr.split())) == (10, True)


@pytest.mark.parametrize(
    "points",
    [("sink-committed:2",), (*POINTS, "sink-committed:2", "also-committed:3")],
    ids=["in-the-sink", "every-point"],
)
@pytest.mark.parametrize("recovery", ["replay", "wal"])
@pytest.mark.long  # with a processor, which takes the same way, test_processor.py does so in each run of the suite
def test_windows_are_closed_once_in_each_sink(into_three: AlsoSandbox, recovery: str, points: tuple[str, ...]) -> None:
    sandbox = into_three
    stream = windows.Stream(sandbox, windows.HOURLY, recovery=recovery)
    stream.configure(also=[sandbox.into(key="k"), {"files": {"path": "out"}}])
    for number, point in enumerate(points):
        stream.feed(number * 90, number * 90 + 120, 8, bad=True)
        sandbox.run("killed", kill_at=point)
    sandbox.run("killed")
    stream.feed(0, len(points) * 90 + 200, 6)
    sandbox.run("last")
    expected, *_ = stream.expected()
    assert expected
    assert stream.held() == expected
    of_table = Counter(map(_as_text, sandbox.rows().to_pylist()))  # type: ignore[union-attr]
    assert set(of_table.values()) == {1}
    assert Counter(_as_text(json.loads(record.value)) for record in sandbox.sent()) == of_table
    assert Counter(map(_as_text, sandbox.all_rows())) == of_table
    assert sandbox.held_up() == []
    sandbox.assert_balanced()
    refused = sandbox.cli("run", str(sandbox.file), "--start", "2026-03-01T00:00Z", "--end", "2026-03-02T00:00Z")
    assert "an interval cannot make windows again in several sinks" in " ".join(refused.stderr.split())


@pytest.mark.long
@pytest.mark.parametrize("recovery", ["replay", "wal"])
def test_first_rows_of_a_key_come_into_each_sink(into_three: AlsoSandbox, recovery: str) -> None:
    sandbox = into_three
    stream = dedupe.Stream(sandbox, recovery=recovery)
    stream.configure(also=[sandbox.into(), {"files": {"path": "out"}}])
    for number, point in enumerate(POINTS):
        stream.feed(number * 30, number * 30 + 60, 6, bad=True)
        sandbox.run("killed", kill_at=point)
    sandbox.run("killed")
    stream.feed(0, len(POINTS) * 30 + 90, 6)
    sandbox.run("last")
    assert stream.assert_exact()["duplicate"], "which no sink has"
    assert sandbox.in_topic() == sandbox.in_files() == sandbox.sink()
    assert sandbox.held_up() == []
