"""Durations, locations, texts of times, run ids, counts of unknown fields, and connections without secrets."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from pydantic import TypeAdapter, ValidationError
from tests.fixtures.connections import SASL, SECRET, connection

from sluice import connections
from sluice.connections import Connection, look_up, variable_of
from sluice.errors import ConfigError
from sluice.facts.rescued import NONE, Rescued
from sluice.fields import TablePath, duration
from sluice.sources.kafka import KafkaSettings
from sluice.text import LONGEST_RUN, checked_run, instant, run_of_interval


def test_duration_has_a_unit() -> None:
    found = {text: duration(text).total_seconds() for text in ("30s", "15m", "2 h", "7d")}
    assert found == {"30s": 30, "15m": 900, "2 h": 7200, "7d": 604_800}


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("15min", "15m"), ("15 minutes", "15m"), ("2hrs", "2h"), ("7 days", "7d"), ("2H", "2h"), ("2w", "14d"),
        ("1 week", "7d"), ("1.5h", "90m"), ("0,5 d", "12h"), ("30 sec.", "30s"), ("1.00001s", None), ("soon", None),
        ("5 years", None), ("-5m", None), ("٣ min", None), ("1h30m", None), ("PT2H", None),
    ],
)  # fmt: skip
def test_duration_that_is_misspelt_is_refused_with_the_right_one(text: str, right: str | None) -> None:
    with pytest.raises(ValueError, match="15m") as refused:
        duration(text)
    said = str(refused.value)
    assert said.endswith(f"; did you mean {right}?") if right else "did you mean" not in said


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("s3a://lake/a#b", "has #, which"),
        ("s3a://lake/a%20b?x", "has % and \\?, which"),
        ("s3a://lake//a", "has an empty part"),
        ("s3a://lake/a b/", ""),
        ("/lake/a%24b", "has %24, which delta-rs reads as '\\$'"),
        ("/lake/a#b%//c/", ""),
    ],
)
def test_url_of_a_table_that_is_ambiguous_is_refused(path: str, named: str) -> None:
    place = TypeAdapter(TablePath)
    if named:
        with pytest.raises(ValidationError, match=named):
            place.validate_python(path)
    else:
        assert place.validate_python(path) == (path.rstrip("/") if "://" in path else path)


def test_run_id_of_an_interval_is_unique_and_fits() -> None:
    assert run_of_interval("manual__2026") == "manual__2026__interval"
    first, second = (run_of_interval("x" * 249 + end) for end in "ab")
    assert first == run_of_interval("x" * 249 + "a") != second
    assert len(first) == len(second) == LONGEST_RUN
    for bad in ("", " ", "-x", "a\n", "x" * (LONGEST_RUN + 1)):
        with pytest.raises(ConfigError):
            checked_run(bad)
    assert first.endswith("__interval")
    assert run_of_interval("x" * 240) == "x" * 240 + "__interval"


def test_time_that_python_does_not_have_is_shown_by_its_year() -> None:
    assert instant(1_356_998_400_123_456) == "2013-01-01T00:00:00.123456+00:00"
    assert instant(1_795_590_000_000_000_000) == "the year 58869"
    assert instant(-63_549_000_000_000_000) == "the year -44"


def test_rescued_records_and_fields_add_up() -> None:
    one = Rescued.of([("a", "b"), ("a",)])
    assert one == Rescued(2, {"a": 2, "b": 1})
    assert one | Rescued.of([("b", "c")], [5]) == Rescued(7, {"b": 6, "c": 5, "a": 2})
    assert one | NONE == NONE | one == one
    assert one.as_dict() == {"records": 2, "fields": {"a": 2, "b": 1}}


def test_rescued_fields_stay_few_and_short() -> None:
    found = NONE
    for n in range(200):
        found |= Rescued.of([(f"{n:03}" + "x" * 10_000, "often")])
    assert (found.records, len(found.fields)) == (200, 20)
    assert next(iter(found.fields.items())) == ("often", 200)
    assert max(map(len, found.fields)) == 101


def test_connection_is_read_from_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert variable_of("my_kafka") == "AIRFLOW_CONN_MY_KAFKA"
    whole = {"conn_type": "kafka", "host": "h", "port": "9", "login": "l", "password": SECRET, "extra": SASL}
    for text in (json.dumps(whole), json.dumps({**whole, "extra": json.dumps(SASL)})):
        monkeypatch.setenv("AIRFLOW_CONN_MY_KAFKA", text)
        read = Connection.from_env("my_kafka")
        assert (read.host, read.port, read.login, read.password, read.extra) == ("h", 9, "l", SECRET, SASL)
        monkeypatch.setenv("AIRFLOW_CONN_MY_KAFKA", read.to_json())
        assert Connection.from_env("my_kafka") == read


@pytest.mark.parametrize(
    "text",
    [
        "",
        "kafka://u:hunter2@h:1",
        "[]",
        '"x"',
        '{"port": "hunter2"}',
        '{"port": [1]}',
        '{"extra": "{hunter2"}',
        '{"extra": ["hunter2"]}',
        '{"extra": 5}',
        '{"extra": "[1]"}',
    ],
)
def test_connection_variable_that_is_not_json_is_refused_without_its_secret(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MY_KAFKA", text)
    with pytest.raises(ConfigError, match=r"my_kafka|AIRFLOW_CONN_MY_KAFKA") as caught:
        Connection.from_env("my_kafka")
    assert SECRET not in str(caught.value)


def test_login_in_the_host_of_a_connection_is_refused_before_the_host_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for host in (f"me:{SECRET}@h", f"https://me:{SECRET}@h"):
        kept = Connection("mine", "http", host)
        monkeypatch.setenv("AIRFLOW_CONN_MINE", kept.to_json())
        with pytest.raises(ConfigError, match="has a login in it") as caught:
            look_up("mine")
        monkeypatch.delenv("AIRFLOW_CONN_MINE")
        with monkeypatch.context() as patch:
            patch.setattr(connections, "_stores", lambda kept=kept: [SimpleNamespace(get=lambda _: kept)])
            with pytest.raises(ConfigError, match="has a login in it"):
                look_up("mine")
        assert SECRET not in str(caught.value) + "".join(capsys.readouterr())


def test_connection_shows_no_secret() -> None:
    secret = connection(SASL, password=SECRET)
    settings = KafkaSettings.from_connection(connection(SASL))
    assert SECRET not in f"{secret!r} {secret} {settings!r} {settings}"
    assert "a:1" in repr(settings)
