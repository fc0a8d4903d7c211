"""The section ``tables``: what the transform can join, and what is refused when the file is read."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.fixtures.specs import GOOD, write

from sluice.errors import ConfigError
from sluice.pipeline import Pipeline, load

JOIN = 'transform: {sql: "SELECT s.*, c.name FROM source s LEFT JOIN carriers c USING (id)"}\n'
TABLES = "tables: {carriers: {delta: {path: carriers%s}}}\n"


def with_tables(folder: Path, more: str = "", *, transform: str = JOIN, tables: str = TABLES) -> Pipeline:
    return load(write(folder, GOOD + transform + (tables % more if "%s" in tables else tables)))


def test_a_table_has_a_path_and_perhaps_a_version_or_a_time(tmp_path: Path) -> None:
    plain = with_tables(tmp_path).tables["carriers"].delta
    assert (plain.path, plain.version, plain.timestamp) == ("carriers", None, None)
    assert with_tables(tmp_path, ", version: 3").tables["carriers"].delta.version == 3
    timed = with_tables(tmp_path, ', timestamp: "2026-01-01T12:00:00Z"').tables["carriers"].delta
    assert timed.timestamp == datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert load(write(tmp_path, GOOD)).tables == {}


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (", version: 3, timestamp: 2026-01-01T12:00:00Z", "version and timestamp each name a version"),
        (", version: -1", r"tables\.carriers\.delta\.version: must be at least 0"),
        (", timestamp: 2026-01-01T12:00:00", "timezone"),
        (", verson: 3", "did you mean 'version'"),
    ],
)
def test_a_version_is_named_once_and_without_doubt(tmp_path: Path, more: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        with_tables(tmp_path, more)


@pytest.mark.parametrize(
    ("name", "told"),
    [("source", "is the name of the batch's own records"), ("Carriers", "use a-z"), ("'a-b'", "use a-z")],
)
def test_sql_can_call_it_by_its_name(tmp_path: Path, name: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        with_tables(tmp_path, tables=f"tables: {{{name}: {{delta: {{path: c}}}}}}\n")


@pytest.mark.parametrize(
    ("transform", "more", "told"),
    [
        ("", "", "tables: no transform reads carriers"),
        ('transform: {arrow: "tests.fixtures.specs:write"}\n', "", "tables: transform.arrow gets the records alone"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, transform: str, more: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        with_tables(tmp_path, transform=transform + more)


def test_rows_are_made_otherwise_by_another_version_only(tmp_path: Path) -> None:
    """What somebody accepted of a batch that waits was made of these."""
    assert with_tables(tmp_path).making != with_tables(tmp_path, ", version: 3").making
    without = load(write(tmp_path, GOOD))
    assert without.making == without._digest({"decode", "rules", "transform"})
