"""What databases do not take, or take otherwise: text, languages, locks, file systems."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.fixtures.postgres import binaries, new_database, server

from sluice.errors import ConfigError
from sluice.ledger import Holder, Ledger, schema, store
from sluice.ledger.store import network_of, open_engine, reading
from sluice.pipeline import load
from sluice.text import LONGEST_RUN, run_of_interval, storable

# --- text ----------------------------------------------------------------------------------------------------------

NASTY = "a\0b\ud800c\udcffd"


def plan(ledger: Ledger, run: str, reason: str | None = None) -> None:
    with ledger.acquire("p", run) as lease:
        ledger.run_planned(
            lease, kind="live", recovery="replay", epoch=1, ranges=[], topic_ids={}, reason=reason,
        )  # fmt: skip
        ledger.degraded(lease, f"a note {NASTY}")
        ledger.run_closed(lease, state="failed", error={"what": NASTY, "frames": [NASTY, (NASTY,)]})


def test_text_that_no_database_stores_is_stored_with_escapes(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    plan(ledger, "r", NASTY)
    row = ledger.run("p", "r")
    assert row is not None
    told = r"a\x00b\ud800c\udcffd"
    assert (row.reason, row.error) == (told, {"what": told, "frames": [told, [told]]})
    assert row.notes == [f"a note {told}"]
    ledger.rebuild()
    assert ledger.run("p", "r") == row


@pytest.mark.parametrize("run", ["", "r" * 251, "a\0b", "a\ud800", "a\nb"])
def test_an_id_that_cannot_be_one_is_refused_before_anything_is_written(ledger_url: str, run: str) -> None:
    ledger = Ledger.open(ledger_url)
    with pytest.raises(ConfigError, match="the run id") as caught:
        ledger.acquire("p", run)
    str(caught.value).encode()
    assert ledger.events("p") == []


def test_the_longest_id_is_one_like_any_other_and_so_is_its_intervals(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    longest = "ü" * LONGEST_RUN
    of_interval = run_of_interval(longest)
    for run in (longest, of_interval):
        plan(ledger, run)
    assert {row.run for row in ledger.runs("p")} == {longest, of_interval}


def test_the_id_of_an_intervals_run_is_the_same_for_the_same_and_another_for_another() -> None:
    assert run_of_interval("manual__2026") == "manual__2026__interval"
    first, second = (run_of_interval("x" * 249 + end) for end in "ab")
    assert first == run_of_interval("x" * 249 + "a") != second
    assert len(first) == len(second) == LONGEST_RUN
    assert first.endswith("__interval")
    assert run_of_interval("x" * 240) == "x" * 240 + "__interval"


def test_a_question_with_such_text_is_a_users_mistake(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    with pytest.raises(ConfigError, match="a character that no database can store"):
        ledger.run("p", "\ud800")
    if "postgresql" in ledger_url:
        with pytest.raises(ConfigError, match="a character that no database can store"):
            ledger.run("p", "a\0b")


def test_ordinary_values_are_stored_as_they_are() -> None:
    value = {"a": [1, 2.5, None, True, "ü\n\t\\x00"], "b": {"c": "😀"}}
    assert storable(value) == value


def test_a_pipelines_name_has_no_line_break(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(
        'pipeline: "abc\\n"\nsource: {kafka: {topics: [t]}}\ndecode: {json: {schema: "id BIGINT"}}\n'
        "sink: {delta: {path: t}}\n"
    )
    with pytest.raises(ConfigError, match="beginning with a letter"):
        load(str(file))


# --- locks ---------------------------------------------------------------------------------------------------------


def test_a_reader_neither_waits_for_a_writer_nor_keeps_one_waiting(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db?timeout=0"
    ledger = Ledger.open(url)
    plan(ledger, "before")
    writer = open_engine(url)
    with writer.begin() as connection:
        connection.execute(schema.run.update().values(state="unseen"))
        other = Ledger.open(url)  # opening is reading, too
        assert [row.state for row in other.runs("p")] == ["failed"]
        assert other.running("p") is None
    engine = open_engine(url)
    with reading(engine) as connection:
        connection.execute(sa.select(schema.run)).all()
        plan(ledger, "beside")
    assert len(ledger.runs("p")) == 2


# --- languages -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def german_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a PostgreSQL server that speaks German."""
    programs = binaries()
    if programs is None:
        pytest.skip("no PostgreSQL server binaries here: apt-get install postgresql")
    if shutil.which("localedef") is None or not Path("/usr/share/i18n/locales/de_DE").exists():
        pytest.skip("no locales to be made here: apt-get install locales")
    if not list(Path("/usr/share/locale/de/LC_MESSAGES").glob("postgres-*.mo")):
        pytest.skip("PostgreSQL has no German messages here")
    folder = Path("/tmp") / f"sluice-locale-{os.getpid()}"  # the server runs as another user
    folder.mkdir()
    subprocess.run(["localedef", "-i", "de_DE", "-f", "UTF-8", str(folder / "de_DE.UTF-8")], check=True)
    os.environ["LOCPATH"] = str(folder)
    try:
        with server(programs) as running:
            engine = sa.create_engine(f"{running.url}/postgres", isolation_level="AUTOCOMMIT")
            with engine.connect() as connection:
                connection.execute(sa.text("ALTER SYSTEM SET lc_messages = 'de_DE.UTF-8'"))
                connection.execute(sa.text("SELECT pg_reload_conf()"))
            engine.dispose()
            yield running.url
    finally:
        del os.environ["LOCPATH"]
        shutil.rmtree(folder)


def test_a_server_that_speaks_another_language_is_opened_and_migrated(german_server: str) -> None:
    url = new_database(german_server)
    with pytest.raises(sa.exc.ProgrammingError, match="existiert nicht"), sa.create_engine(url).connect() as connection:
        connection.execute(sa.text("SELECT * FROM nowhere"))
    plan(Ledger.open(url), "r")
    assert [row.run for row in Ledger.open(url).runs("p")] == ["r"]


# --- file systems --------------------------------------------------------------------------------------------------

MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
tmpfs /tmp tmpfs rw 0 0
server:/export /mnt/nfs nfs4 rw 0 0
//server/share /mnt/with\\040space cifs rw 0 0
share /mnt/nfs/local ext4 rw 0 0
host /mnt/host 9p rw 0 0
s3fs /mnt/bucket fuse.s3fs rw 0 0
fs /mnt/ceph ceph rw 0 0
mds@tcp:/fs /mnt/lustre lustre rw 0 0
gluster:/v /mnt/gluster fuse.glusterfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/ledger.db", None), ("/tmp/ledger.db", None), ("/mnt/nfs/home/ledger.db", "nfs4"),
        ("/mnt/nfs/local/ledger.db", None), ("/mnt/nfsother/ledger.db", None), ("/mnt/with space/l.db", "cifs"),
        ("/mnt/host/l.db", "9p"), ("/mnt/bucket/l.db", "fuse.s3fs"), ("/mnt/ceph/l.db", "ceph"),
        ("/mnt/lustre/l.db", "lustre"), ("/mnt/gluster/l.db", "fuse.glusterfs"),
    ],
)  # fmt: skip
def test_file_systems_of_the_network_are_known_by_their_types(path: str, kind: str | None) -> None:
    assert network_of(Path(path), MOUNTS) == kind


def test_a_ledger_file_on_the_network_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings() -> list[str]:  # Alembic says more, once another test has let it
        return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]

    Ledger.open(f"sqlite:///{tmp_path}/here.db")
    assert not warnings()
    monkeypatch.setattr(store, "network_of", lambda _: "nfs4")
    for _ in range(2):
        Ledger.open(f"sqlite:///{tmp_path}/there.db")
    (told,) = warnings()  # once for each file
    assert "network file system (nfs4)" in told
    assert "more than one host" in told
    assert "PostgreSQL" in told


def _held_by(ledger: Ledger, holder: Holder) -> None:
    with ledger._engine.begin() as connection:
        connection.execute(schema.lease.update().values(holder=asdict(holder), expires=2**40))


@pytest.mark.parametrize("network", ["nfs4", None])
def test_two_machines_do_not_write_one_file_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: str | None
) -> None:
    monkeypatch.setattr("sluice.ledger.lease.network_of", lambda _: network)
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    with ledger.acquire("other", "r"):
        pass
    elsewhere = replace(Holder.me("theirs"), host="elsewhere", boot="another")
    _held_by(ledger, elsewhere)
    if network is None:  # a container of this machine, say, before it was recreated
        with ledger.acquire("p", "mine"):
            return
    with pytest.raises(ConfigError, match="elsewhere writes it now") as caught:
        ledger.acquire("p", "mine")
    assert "PostgreSQL" in caught.value.next_step
    _held_by(ledger, replace(elsewhere, host=socket.gethostname()))
    with ledger.acquire("p", "mine"):
        pass
