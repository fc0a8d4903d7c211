"""Opening a ledger's database: versions, other processes, URLs, languages, locks, file systems."""

from __future__ import annotations

import importlib
import logging
import os
import shutil
import socket
import subprocess
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from tests.fixtures.postgres import binaries, new_database, server
from tests.unit.ledger.conftest import commit, derived, plan, played, split

from sluice.errors import ConfigError
from sluice.ledger import Ledger, schema, store
from sluice.ledger.store import LedgerError, network_of, open_engine, reading

PASSWORD = "hunter2"


def test_a_ledger_of_the_first_version_is_migrated_with_its_history(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    with ledger.acquire("p", "r") as lease:
        plan(ledger, lease)
        commit(ledger, lease, 0, split(0, 6))
        ledger.run_closed(lease, state="done", seconds=1.0)
    before = derived(ledger_url)
    engine = sa.create_engine(ledger_url)
    first = importlib.import_module("sluice.ledger.migrations.versions.v0001_first")
    with engine.begin() as connection:
        for table in schema.DERIVED:
            connection.execute(sa.text(f"DROP TABLE {table.name}"))
        connection.execute(sa.text("CREATE TABLE kept AS SELECT * FROM sluice_event"))
        for name in ("sluice_event", "sluice_lease"):
            connection.execute(sa.text(f"DROP TABLE {name}"))
        with Operations.context(MigrationContext.configure(connection)):
            first.upgrade()
        connection.execute(sa.text("INSERT INTO sluice_event SELECT * FROM kept"))
        connection.execute(sa.text("DROP TABLE kept"))
        connection.execute(sa.text(f"UPDATE {schema.VERSION_TABLE} SET version_num = '0001'"))
    engine.dispose()
    Ledger.open(ledger_url)
    assert derived(ledger_url) == before


def test_the_migrations_lead_to_the_tables_that_the_code_names(ledger_url: str) -> None:
    with open_engine(ledger_url).connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": schema.VERSION_TABLE})
        assert compare_metadata(context, schema.metadata) == []
        assert context.get_current_revision() == schema.HEAD


def test_several_processes_may_make_the_same_ledger_at_once(ledger_url: str) -> None:
    barrier, failures = threading.Barrier(4), []

    def make() -> None:
        barrier.wait()
        try:
            Ledger.open(ledger_url).runs()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_ledger_that_another_process_makes_meanwhile_is_opened(
    ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = sa.inspect

    def late(connection: sa.Connection) -> sa.Inspector:
        monkeypatch.undo()
        Ledger.open(ledger_url)
        return look(connection)

    monkeypatch.setattr("sluice.ledger.store.sa.inspect", late)
    assert Ledger.open(ledger_url).runs() == []


def test_a_ledger_of_a_newer_version_is_left_alone(ledger_url: str) -> None:
    with open_engine(ledger_url).begin() as connection:
        connection.execute(sa.text(f"UPDATE {schema.VERSION_TABLE} SET version_num = '9999'"))
    with pytest.raises(ConfigError, match="9999"):
        Ledger.open(ledger_url)


def test_a_database_that_does_not_answer_is_named_without_its_password() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        with pytest.raises(LedgerError, match="cannot be opened") as caught:
            Ledger.open(f"postgresql+psycopg2://sluice:{PASSWORD}@127.0.0.1:{port}/ledger")
    assert "127.0.0.1" in caught.value.what
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


def test_a_host_that_accepts_and_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    real = sa.create_engine

    def create(url: sa.engine.URL, **options: Any) -> sa.Engine:
        asked.append(options["connect_args"])
        return real(url, **options)

    monkeypatch.setattr(sa, "create_engine", create)
    for url in ("postgresql+psycopg2://", "postgresql+psycopg2://?connect_timeout=3"):
        where, _, query = url.partition("?")
        with pytest.raises(LedgerError):
            Ledger.open(f"{where}nobody@127.0.0.1:1/none?{query}")
    assert asked == [{"connect_timeout": 10}, {}]


def test_what_is_no_database_url_is_refused_without_being_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        Ledger.open(f"{PASSWORD} is no url")
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("scheme", ["postgres", "postgresql+nosuchdriver", "mysql+nosuch"])
def test_a_driver_that_is_not_there_is_a_mistake_of_the_url(scheme: str) -> None:
    with pytest.raises(ConfigError, match="there is no driver") as caught:
        Ledger.open(f"{scheme}://sluice:{PASSWORD}@127.0.0.1/ledger")
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))


def test_a_ledger_that_breaks_while_it_is_used_is_a_typed_error(tmp_path: Path) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path}/ledger.db")
    lease = ledger.acquire("p", "r")
    with open_engine(f"sqlite:///{tmp_path}/ledger.db").begin() as connection:
        connection.execute(sa.text("DROP TABLE sluice_event"))
    with pytest.raises(LedgerError, match="does not answer"):
        plan(ledger, lease)
    assert ledger.run("p", "r") is None


def test_a_reader_neither_waits_for_a_writer_nor_keeps_one_waiting(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db?timeout=0"
    ledger = Ledger.open(url)
    played(ledger, "before")
    writer = open_engine(url)
    with writer.begin() as connection:
        connection.execute(schema.run.update().values(state="unseen"))
        other = Ledger.open(url)  # opening is reading, too
        assert [row.state for row in other.runs("p")] == ["failed"]
        assert other.running("p") is None
    engine = open_engine(url)
    with reading(engine) as connection:
        connection.execute(sa.select(schema.run)).all()
        played(ledger, "beside")
    assert len(ledger.runs("p")) == 2


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
    played(Ledger.open(url), "r")
    assert [row.run for row in Ledger.open(url).runs("p")] == ["r"]


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


def test_a_home_that_cannot_be_made_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ConfigError, match="cannot be created: Not a directory"):
        Ledger.open(f"sqlite:///{tmp_path}/file/home/ledger.db")
