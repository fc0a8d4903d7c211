"""Modules that pipelines name, imported before their files are checked: none holds up the others for ever."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fixtures.pipelines import modelled

from sluice_spark.runs import checks

ENDLESS = """\
import time
def f(t): return t
while True:
    try:
        time.sleep(0.01)
    except Exception:
        pass
"""


@pytest.mark.parametrize("key", ["transform.python", "transform.arrow"])
def test_check_names_a_module_whose_import_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(checks, "IMPORT_SECONDS", 0.3)
    for name, text in (
        ("never_ends", ENDLESS),
        ("raises_at_once", "def f(t): return t\n1 / 0\n"),
        ("is_sound", "def f(t): return t\n"),
    ):
        (tmp_path / f"{name}.py").write_text(text)
        spec = modelled(f'transform: {{{key.partition(".")[2]}: "{name}:f"}}')
        late = checks._never_imported(spec)
        assert (late is not None) == (name == "never_ends")
        assert late is None or (key in late and "never_ends:f" in late)
