"""Opening a ledger's database: versions, other processes, URLs, languages, locks, file systems."""

from __future__ import annotations

import importlib
import logging
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from tests.fixtures.postgres import binaries, new_database, server
from tests.unit.ledger.conftest import derived, played, run, split

from sluice.errors import ConfigError, LeaseHeldError, SluiceError
from sluice.facts import FACTS
from sluice.ledger import Ledger, events, schema, store
from sluice.ledger.projection import PAGE
from sluice.ledger.store import LedgerError, network_of, open_engine, reading

PASSWORD, VERSION = "hunter2", f"UPDATE {schema.VERSION_TABLE} SET version_num = '{{}}'"
RECORDED = Path(__file__).parents[2] / "fixtures" / "recorded" / "ledger_82227d8.sql"


def execute(ledger: Ledger, *statements: str) -> None:
    """Change a database behind its ledger's back."""
    with ledger._engine.begin() as connection:
        for statement in statements:
            connection.execute(sa.text(statement))


def test_ledger_of_the_first_version_is_migrated_with_its_history(each_ledger: Ledger, ledger_url: str) -> None:
    run(each_ledger, "r", split(0, 6))
    before = derived(each_ledger)
    first = importlib.import_module("sluice.ledger.migrations.versions.v0001_first")
    gone = [table.name for table in schema.DERIVED] + ["sluice_event", "sluice_lease"]
    execute(each_ledger, "CREATE TABLE kept AS SELECT * FROM sluice_event", *(f"DROP TABLE {name}" for name in gone))
    with each_ledger._engine.begin() as connection, Operations.context(MigrationContext.configure(connection)):
        first.upgrade()
    execute(each_ledger, "INSERT INTO sluice_event SELECT * FROM kept", "DROP TABLE kept", VERSION.format("0001"))
    assert derived(Ledger.open(ledger_url)) == before


def test_ledger_that_an_earlier_version_recorded_has_the_same_tables(tmp_path: Path) -> None:
    """It has each type of event of that version, and the tables that it had derived from them."""
    database = tmp_path / "ledger.db"
    with sqlite3.connect(database) as connection:
        connection.executescript(RECORDED.read_text())
        recorded = {kind for (kind,) in connection.execute("SELECT DISTINCT type FROM sluice_event")}
    known = {kind.__name__ for kind in events.Event.__subclasses__() + events.BatchEvent.__subclasses__()}
    assert recorded == (known | {fact.event for fact in FACTS}) - {"BatchEvent", "FactRecorded", "PipelineForgotten"}
    before = derived(Ledger(sa.create_engine(f"sqlite:///{database}")))
    ledger = Ledger.open(f"sqlite:///{database}")
    assert derived(ledger) == before
    account = ledger.runs.account("p", "live-2")
    assert (account["dedupe"], account["processor"]["fired_to"]) == ({"duplicate": 3, "late": 1, "late_by": 400}, 900)
    assert ledger.runs.account("p", "live-1")["rescued"] == {"records": 2, "fields": {"x": 2}}


def test_ledger_migration_that_was_killed_keeps_earlier_versions_out(each_ledger: Ledger, ledger_url: str) -> None:
    idle = {"at": "2026-01-01T00:00:00.000+00:00", "type": "Idle", "pipeline": "p", "run": "r", "payload": {}}
    with each_ledger._engine.begin() as connection:
        connection.execute(schema.event.insert(), [idle] * (2 * PAGE))
    run(each_ledger, "r", split(0, 6))
    before = derived(each_ledger)
    indexes = (f"DROP INDEX sluice_{name}" for name in ("event_type", "batch_news", "account_ends"))
    execute(each_ledger, VERSION.format("0005"), *indexes, "ALTER TABLE sluice_account DROP COLUMN closed")
    migrate = [
        sys.executable,
        "-c",
        "import sys; from sluice.ledger import Ledger; Ledger.open(sys.argv[1])",
        ledger_url,
    ]
    died = subprocess.run(migrate, env={**os.environ, "SLUICE_KILL_AT": "events-applied:2"}, start_new_session=True)
    assert died.returncode == -signal.SIGKILL
    with each_ledger._engine.begin() as connection:
        version = connection.execute(sa.text(f"SELECT version_num FROM {schema.VERSION_TABLE}")).scalar()
    assert version == f"{schema.HEAD}:{2 * PAGE}"
    with each_ledger._engine.connect() as connection, pytest.raises(ConfigError, match=version):
        store._upgrade(connection)  # as an earlier version does, which knows no such version
    with ThreadPoolExecutor(2) as pool:
        assert [derived(ledger) for ledger in pool.map(Ledger.open, [ledger_url] * 2)] == [before] * 2


def test_ledger_is_not_migrated_while_an_earlier_version_writes_it(each_ledger: Ledger, ledger_url: str) -> None:
    with each_ledger.acquire("p", "old"):
        execute(each_ledger, VERSION.format("0005"))
        with pytest.raises(LeaseHeldError, match="'old' of 'p'"):
            Ledger.open(ledger_url)


def test_ledger_migrations_make_the_tables_of_the_schema(ledger_url: str) -> None:
    with open_engine(ledger_url).connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": schema.VERSION_TABLE})
        assert compare_metadata(context, schema.metadata) == []
        assert context.get_current_revision() == schema.HEAD


def test_ledger_is_created_by_several_threads_at_once(ledger_url: str) -> None:
    barrier = threading.Barrier(4)
    with ThreadPoolExecutor(4) as pool:
        opened = pool.map(lambda _: Ledger.open(ledger_url) if barrier.wait() >= 0 else None, range(4))
        assert [ledger.runs.newest() for ledger in opened] == [[]] * 4


def test_ledger_that_another_process_creates_is_opened(ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    look = sa.inspect

    def late(connection: sa.Connection) -> sa.Inspector:
        monkeypatch.undo()
        Ledger.open(ledger_url)
        return look(connection)

    monkeypatch.setattr("sluice.ledger.store.sa.inspect", late)
    assert Ledger.open(ledger_url).runs.newest() == []


def test_postgres_connection_has_a_timeout_unless_the_url_has_one() -> None:
    with mock.patch.object(sa, "create_engine", wraps=sa.create_engine) as create:
        for query in ("", "?connect_timeout=3"):
            with pytest.raises(LedgerError):
                Ledger.open(f"postgresql+psycopg2://user@127.0.0.1:1/none{query}")
    assert [call.kwargs["connect_args"] for call in create.call_args_list] == [{"connect_timeout": 10}, {}]


@pytest.mark.parametrize("version", ["9999", "9999:5"])
def test_ledger_of_a_newer_version_is_refused(ledger: Ledger, sqlite_url: str, version: str) -> None:
    execute(ledger, VERSION.format(version))
    with pytest.raises(ConfigError, match="9999"):
        Ledger.open(sqlite_url)


def test_ledger_of_a_silent_database_is_named_without_its_password() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        with pytest.raises(LedgerError, match="127") as caught:
            Ledger.open(f"postgresql+psycopg2://sluice:{PASSWORD}@127.0.0.1:{probe.getsockname()[1]}/ledger")
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "url",
    [
        "{} is no url",
        "postgres://u:{}@h/l",
        "postgresql+nosuch://u:{}@h/l",
        "mysql+nosuch://u:{}@h/l",
        "postgresql://u:{}@h:x/d",
        "postgresql://u:{}@b:c@h/d",
        "postgresql+psycopg2://u:two@{}@127.0.0.1:1/d",
    ],
)
def test_ledger_url_that_cannot_be_used_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Ledger.open(url.format(PASSWORD))
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


def test_ledger_that_breaks_in_use_is_a_typed_error(ledger: Ledger) -> None:
    execute(ledger, "DROP TABLE sluice_event")
    with pytest.raises(LedgerError):
        run(ledger, "r")
    assert ledger.runs.find("p", "r") is None


def test_sqlite_reader_and_writer_do_not_wait_for_each_other(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db?timeout=0"
    ledger = Ledger.open(url)
    played(ledger, "before")
    with open_engine(url).begin() as connection:
        connection.execute(schema.run.update().values(state="unseen"))
        other = Ledger.open(url)  # opening is reading, too
        assert ([row.state for row in other.runs.newest("p")], other.runs.running("p")) == (["failed"], None)
    with reading(open_engine(url)) as connection:
        connection.execute(sa.select(schema.run)).all()
        played(ledger, "beside")
    assert len(ledger.runs.newest("p")) == 2


@pytest.fixture(scope="module")
def german_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a PostgreSQL server that speaks German."""
    programs, messages = binaries(), list(Path("/usr/share/locale/de/LC_MESSAGES").glob("postgres-*.mo"))
    if programs is None or not messages:
        pytest.skip("no PostgreSQL server with German messages here: apt-get install postgresql")
    if shutil.which("localedef") is None or not Path("/usr/share/i18n/locales/de_DE").exists():
        pytest.skip("no locales to be made here: apt-get install locales")
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


@pytest.mark.long  # a server of its own, in another language
def test_postgres_server_with_german_messages_is_migrated(german_server: str) -> None:
    url = new_database(german_server)
    with pytest.raises(sa.exc.ProgrammingError, match="existiert nicht"), sa.create_engine(url).connect() as connection:
        connection.execute(sa.text("SELECT * FROM nowhere"))
    played(Ledger.open(url), "r")
    assert [row.run for row in Ledger.open(url).runs.newest("p")] == ["r"]


MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
tmpfs /tmp tmpfs rw 0 0
server:/export /mnt/nfs nfs4 rw 0 0
//server/share /mnt/with\\040space cifs rw 0 0
host /mnt/host 9p rw 0 0
s3fs /mnt/bucket fuse.s3fs rw 0 0
"""


def test_ledger_knows_network_file_systems_by_their_types() -> None:
    kinds = {
        "/var": None, "/tmp": None, "/mnt/nfs/home": "nfs4", "/mnt/nfsother": None, "/mnt/with space": "cifs",
        "/mnt/host": "9p", "/mnt/bucket": "fuse.s3fs",
    }  # fmt: skip
    assert {folder: network_of(Path(folder, "ledger.db"), MOUNTS) for folder in kinds} == kinds


def test_ledger_warns_of_a_sqlite_file_on_a_network_once(tmp_path: Path, monkeypatch: Any, caplog: Any) -> None:
    Ledger.open(f"sqlite:///{tmp_path}/here.db")
    monkeypatch.setattr(store, "network_of", lambda _: "nfs4")
    for _ in range(2):
        Ledger.open(f"sqlite:///{tmp_path}/there.db")
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert all(part in warning for part in ("there.db", "nfs4", "PostgreSQL"))


def test_ledger_in_a_home_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ConfigError, match="Not a directory"):
        Ledger.open(f"sqlite:///{tmp_path}/file/home/ledger.db")


@pytest.mark.parametrize("damage", ["garbage", "half", "folder"])
def test_ledger_that_is_damaged_is_to_be_restored(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "ledger.db"
    if damage == "folder":
        file.mkdir()
    else:
        Ledger.open(f"sqlite:///{tmp_path}/sound.db")
        whole = (tmp_path / "sound.db").read_bytes()
        file.write_bytes(b"no database at all" * 99 if damage == "garbage" else whole[:100] + b"\xff" * 8192)
    with pytest.raises(SluiceError) as error:
        Ledger.open(f"sqlite:///{file}")
    assert ("folder" if damage == "folder" else "from a copy") in str(error.value)


def test_ledger_that_is_open_reads_the_copy_that_was_restored_in_its_place(tmp_path: Path) -> None:
    ledger, file = Ledger.open(f"sqlite:///{tmp_path}/a.db"), tmp_path / "a.db"
    run(ledger, "r1")
    with sqlite3.connect(file) as source, sqlite3.connect(tmp_path / "copy.db") as copy:
        source.backup(copy)
    run(ledger, "r2")
    for part in tmp_path.glob("a.db*"):
        part.unlink()
    (tmp_path / "copy.db").rename(file)
    assert [row.run for row in ledger.runs.newest("p")] == ["r1"]


def test_ledger_url_is_shown_without_a_password_in_its_query() -> None:
    assert store.masked("postgresql+psycopg2://u:a@h/d?user=u&password=geheim&sslpassword=g") == (
        "postgresql+psycopg2://u:***@h/d?password=%2A%2A%2A&sslpassword=%2A%2A%2A&user=u"
    )
