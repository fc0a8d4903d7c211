"""Code of a user that calls sys.exit does not end the process: a run would end as if it had succeeded."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sluice.errors import ConfigError
from sluice.kinds import imported, not_leaving


@pytest.mark.parametrize("code", [0, 3, "text", None])
def test_code_that_calls_exit_raises_an_error_that_names_the_code(code: object) -> None:
    with pytest.raises(RuntimeError) as raised, not_leaving():
        sys.exit(code)  # type: ignore[arg-type]
    assert repr(code) in str(raised.value)


def test_package_that_calls_exit_when_it_is_imported_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="leaving:Kind"):
        imported("leaving:Kind")
