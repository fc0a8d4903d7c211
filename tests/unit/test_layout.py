"""Tests lie in the folder of what they cost, and below it in the folder of the room that they test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sluice.shipped import CHECKOUT

ROOT = Path(str(CHECKOUT))
CORE, SPARK, AIRFLOW = (
    ROOT / folder for folder in ("include/sluice", "spark_jobs/sluice_spark", "plugins/sluice_airflow")
)

MIRRORED = {
    "unit/spark": (SPARK,),  # before "unit", of which it is a part
    "unit": (CORE,),
    "spark": (SPARK, CORE),
    "kafka": (CORE,),
    "airflow": (AIRFLOW,),
}
"""Below each folder of tests, the packages whose rooms are tested there."""


def rooms_of(test: Path) -> list[Path]:
    """Return where the room of a test file may be."""
    folder = next(folder for folder in MIRRORED if test.is_relative_to(folder))
    return [package / test.relative_to(folder).parent for package in MIRRORED[folder]]


def test_each_test_file_lies_in_the_folder_of_a_room() -> None:
    tests = ROOT / "tests"
    found = [
        file.relative_to(tests)
        for folder in {folder.partition("/")[0] for folder in MIRRORED}
        for file in (tests / folder).rglob("test_*.py")
    ]
    assert sorted(str(test) for test in found if not any(room.is_dir() for room in rooms_of(test))) == []


def test_a_worker_that_needs_no_jvm_does_not_import_pyspark() -> None:
    code = (
        "import importlib, sys, tests.conftest as c\n"
        "for name in c.pytest_plugins: importlib.import_module(name)\n"
        "print(*{'pyspark', 'airflow', 'great_expectations', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
