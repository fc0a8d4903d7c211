"""The programs that Spark needs, and what is said of those that do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.errors import ConfigError
from sluice.launch.programs import java


@pytest.mark.parametrize("says", ["release", "program"])
@pytest.mark.parametrize(
    ("version", "main"), [("1.8.0_392", 8), ("11.0.2", 11), ("17.0.19", None), ("21", None), ("x", None)]
)
def test_java_that_is_too_old_is_refused_with_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, version: str, main: int | None
) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2020-01-01' >&2\n")
    program.chmod(0o755)
    if says == "release":
        program.write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    if main is None:
        assert java() == str(program)
        return
    with pytest.raises(ConfigError, match=f"is Java {main}, and Spark needs 17"):
        java()
