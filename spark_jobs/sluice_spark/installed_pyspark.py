"""Takes PySpark from where it is installed, with its bytecode, and not from the zip file that spark-submit prefers.

``spark-submit`` and Spark's JVM put ``pyspark.zip`` of Spark's folder in front of the module path. Python keeps no
bytecode beside a zip file, so each driver, daemon and worker would compile all of PySpark that it imports: more than a
second of CPU in each. (``PythonRunner`` and ``PythonUtils.sparkPythonPath`` of Spark 4.2.)
"""

from __future__ import annotations

import re
from importlib.machinery import PathFinder
from pathlib import Path

__all__ = ["prefer_installed"]

_PY4J = re.compile(r"py4j-(.+)-src\.zip")


def prefer_installed(path: list[str]) -> None:
    """Remove zip files from a module path, in place, if what is installed further down is the same.

    It is the same if they are part of the installation of PySpark that is found there; of py4j, if the version of the
    zip file is installed. Those of another folder (``SPARK_HOME``) stay in front.
    """
    rest = [entry for entry in path if not str(entry).endswith(".zip")]
    spark, py4j = _folder("pyspark", rest), _folder("py4j", rest)

    def superfluous(entry: str) -> bool:
        file = Path(entry)
        if spark is None or file.parent != spark / "python" / "lib":
            return False
        named = _PY4J.fullmatch(file.name)
        if named is not None:
            return py4j is not None and (py4j.parent / f"py4j-{named[1]}.dist-info").is_dir()
        return file.name == "pyspark.zip"

    path[:] = [entry for entry in path if not superfluous(entry)]


def _folder(package: str, path: list[str]) -> Path | None:
    found = PathFinder.find_spec(package, path)
    return Path(found.origin).parent if found is not None and found.origin is not None else None
