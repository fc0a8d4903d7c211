"""YAML as people write it: each mistake is one message, and no other file is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.errors import ConfigError
from sluice.pipeline import load, load_all
from sluice.pipeline.yaml_file import YamlError, read

GOOD = """
pipeline: {name}
source: {{kafka: {{topics: [{name}]}}}}
decode: {{json: {{schema: "a INT"}}}}
sink: {{delta: {{path: {name}}}}}
"""


def test_what_is_no_date_is_refused_with_its_line_and_other_files_stay(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(GOOD.format(name="bad") + "airflow: {start_date: 2024-02-30}\n")
    (tmp_path / "good.yaml").write_text(GOOD.format(name="good"))
    with pytest.raises(ConfigError, match=r"line 6: airflow.start_date: .*date"):
        load(bad)
    found = {path.stem: spec for path, spec in load_all(tmp_path)}
    assert found["good"].name == "good"  # type: ignore[union-attr]
    assert isinstance(found["bad"], ConfigError)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"a: 1\nb: gr\xfc\xdfe\n", "line 2: this is not UTF-8"),
        (b"a: 0b_\n", "not YAML"),
        (b"a: [1\n", "not YAML"),
        (b"a: 1\na: 2\n", "line 2: a: this key appears twice"),
    ],
)
def test_what_cannot_be_read_is_one_message(tmp_path: Path, text: bytes, says: str) -> None:
    file = tmp_path / "p.yaml"
    file.write_bytes(text)
    with pytest.raises(YamlError, match=says):
        read(file)


@pytest.mark.parametrize("wrong", ["2 hours", "-1d", "1h30m", "-5", "PT2H"])
def test_a_duration_has_one_spelling(tmp_path: Path, wrong: str) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(GOOD.format(name="p") + f"wal: {{keep: {wrong}}}\n")
    with pytest.raises(ConfigError, match=r"wal\.keep.*not a duration: write 30s, 15m, 2h or 7d"):
        load(file)
