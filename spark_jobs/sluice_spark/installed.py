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

_PYSPARK = Path("python", "lib", "pyspark.zip")
_PY4J = re.compile(r"py4j-(.+)-src\.zip")


def prefer_installed(path: list[str]) -> None:
    """Remove zip files from a module path, in place, if what is installed further down is the same.

    It is the same if the zip file of PySpark is part of that installation, and if py4j has the zip file's version.
    Spark of another folder (``SPARK_HOME``) stays in front.
    """
    rest = [entry for entry in path if not entry.endswith(".zip")]
    for entry in map(Path, [entry for entry in path if entry.endswith(".zip")]):
        if entry.parts[-3:] == _PYSPARK.parts:
            same = _folder("pyspark", rest) == entry.parents[2]
        else:
            py4j, named = _folder("py4j", rest), _PY4J.fullmatch(entry.name)
            same = bool(py4j and named and (py4j.parent / f"py4j-{named[1]}.dist-info").is_dir())
        if same:
            path.remove(str(entry))


def _folder(package: str, path: list[str]) -> Path | None:
    found = PathFinder.find_spec(package, path)
    return Path(found.origin).parent if found is not None and found.origin is not None else None
