"""The programs that Spark, and local servers, need on this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from sluice.errors import ConfigError

__all__ = ["check_programs", "java"]


OLDEST = 17
"""The oldest Java with which Spark works."""
_INSTALL = "install a Java 17 runtime (apt-get install openjdk-17-jre-headless) or set JAVA_HOME"


def java() -> str:
    """Return the ``java`` program, from ``JAVA_HOME`` if that is set.

    Raises
    ------
    ConfigError
        If there is none, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    program = shutil.which(f"{home}/bin/java") if home else shutil.which("java")
    if program is None:
        raise ConfigError(
            f"no java in JAVA_HOME={home}" if home else "no java on the PATH",
            state="nothing was started",
            next_step="correct JAVA_HOME, or unset it to take the java of the PATH"
            if home and shutil.which("java")
            else _INSTALL,
        )
    if (version := _version(program)) is not None and version < OLDEST:
        raise ConfigError(
            f"{program} is Java {version}, and Spark needs {OLDEST} or newer",
            state="nothing was started",
            next_step=_INSTALL,
        )
    return program


def _version(program: str) -> int | None:
    """Return the main version of a ``java``, by the file beside it that says so, else by asking; None if unknown."""
    try:
        text = Path(os.path.realpath(program)).parents[1].joinpath("release").read_text(encoding="utf-8")
    except OSError:
        asked = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
        text = asked.stderr + asked.stdout
    found = re.search(r"version \"(?:1\.)?(\d+)|JAVA_VERSION=\"(?:1\.)?(\d+)", text)
    return None if found is None else int(found[1] or found[2])


def check_programs(spark_home: str) -> None:
    """Refuse to start Spark without its scripts or without Java: the scripts' own words name neither variable.

    Raises
    ------
    ConfigError
        With what is missing, and the variable that should name it.
    """
    if not Path(spark_home, "bin", "spark-class").exists():
        raise ConfigError(
            f"no Spark in SPARK_HOME={spark_home}: there is no bin/spark-class",
            state="nothing was started",
            next_step="correct SPARK_HOME, or unset it to take the installed pyspark",
        )
    settings = Path(os.environ.get("SPARK_CONF_DIR") or f"{spark_home}/conf", "spark-env.sh")
    if not settings.exists():  # which may name Java
        java()
