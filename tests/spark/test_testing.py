"""``sluice test`` and ``sluice_spark.testing``: what becomes of records that no broker has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from tests.fixtures.specs import write

from sluice.errors import ConfigError
from sluice.home import Home
from sluice.launch.submit import archive_file
from sluice.shipped import CHECKOUT
from sluice_spark.testing import trial

pytestmark = pytest.mark.spark

assert CHECKOUT
WINDOWS = CHECKOUT / "docs" / "examples" / "windows_of_ten_minutes.yaml"
LINES = [
    '{"at": "2026-03-01T12:07:00Z", "line": "cat"}',
    "{",
    '{"at": "2026-03-01T12:30:00Z", "line": "owl"}',
]
CLOSED = [
    {"window_start": f"2026-03-01T12:{start}:00+00:00", "window_end": f"2026-03-01T12:{end}:00+00:00", "word": "cat",
     "count": 1}
    for start, end in (("00", "10"), ("05", "15"))
]  # fmt: skip
REFUSED = {"_refused": {"stream": "said", "offset": 1, "rule": "json"}}
KEYED = """\
pipeline: customers
source: {kafka: {topics: [customers, others]}}
decode: {json: {schema: "name STRING", key: id, tombstone: delete, headers: {by: by}}}
sink: {postgres: {table: customers, mode: upsert, key: [id], sequence: _offset}}
schedule: on_lag
recovery: wal
quality: {suite: suite.json}
"""
SUITE = {
    "expectations": [{"type": "expect_column_values_to_be_in_set", "kwargs": {"column": "name", "value_set": ["Ann"]}}]
}
PROGRAM = dedent("""
    import json, sys
    from sluice_spark.testing import trial
    found = trial(sys.argv[1], json.loads(sys.argv[2]))
    again = trial(sys.argv[1], [])
    print(json.dumps([found.rows, found.failed, again.rows, again.account["verdict"]]))
""")


def started(tmp_path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYSPARK_", "SPARK_"))}
    home = {"SLUICE_HOME": str(tmp_path / "home"), "SLUICE_JVM_ARCHIVE": str(archive_file(Home.from_env()))}
    return subprocess.run(command, env=env | home, capture_output=True, text=True, check=False, cwd=tmp_path)


def test_command_test_says_what_came_out_and_was_not_expected(tmp_path: Path) -> None:
    records, expected = tmp_path / "records.jsonl", tmp_path / "rows.jsonl"
    records.write_text("\n".join(LINES))
    expected.write_text("\n".join(json.dumps(line) for line in [CLOSED[1], REFUSED]))
    sluice = str(Path(sys.executable).with_name("sluice"))
    done = started(tmp_path, sluice, "test", str(WINDOWS), "--records", str(records), "--expect", str(expected))
    assert done.returncode == 1, done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith(("+{", "-{"))] == [
        "+" + json.dumps(CLOSED[0], sort_keys=True)
    ]
    assert not (tmp_path / "home").exists(), "nothing is left of it"


def test_records_of_a_test_have_keys_headers_topics_and_tombstones(tmp_path: Path) -> None:
    def record(value: Any, key: str, **more: Any) -> str:
        return json.dumps({"_record": {"value": value, "key": key, **more}})

    file = write(tmp_path, KEYED)
    (file.parent / "suite.json").write_text(json.dumps(SUITE))
    records = [
        record({"name": "Ann"}, "1", headers={"by": "a"}), record({"name": "Bea"}, "2"), record(None, "2"),
        record({"name": "Cid"}, "3", topic="others"), record({"name": "Ann"}, "1", headers={"by": "b"}),
    ]  # fmt: skip
    done = started(tmp_path, sys.executable, "-c", PROGRAM, str(file), json.dumps(records))
    assert done.returncode == 0, done.stderr
    rows, failed, none, verdict = json.loads(done.stdout.splitlines()[-1])
    assert rows == [
        {"id": "1", "name": "Ann", "by": "b"},
        {"id": "3", "name": "Cid", "by": None},
    ]
    assert (len(failed), none, verdict) == (1, [], "empty")


@pytest.mark.parametrize(
    ("record", "named"),
    [
        ({"value": "x", "kye": "1"}, "record 2 has kye"),
        ({"value": "x", "topic": "u"}, "topic 'u'"),
        ({"value": {"base64": "x"}}, "record 2 cannot be read"),
        ({"value": "x", "timestamp": "noon"}, "'noon'"),
        ({"value": "x", "headers": ["a"]}, "record 2 cannot be read"),
        ("x", "record 2 has _record"),
    ],
)
def test_record_of_a_test_that_is_none_is_named(tmp_path: Path, record: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        trial(write(tmp_path, KEYED.replace("{suite: suite.json}", "{}")), ["{}", json.dumps({"_record": record})])
