"""Installed PySpark is preferred to the zip files of spark-submit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import py4j
import pyspark
import pytest

from sluice.shipped import CHECKOUT
from sluice_spark.installed import prefer_installed

HOME = Path(pyspark.__file__).parent
ZIPS = [HOME / "python" / "lib" / "pyspark.zip", *(HOME / "python" / "lib").glob("py4j-*-src.zip")]
MAINS = sorted(Path(str(CHECKOUT), "spark_jobs").glob("*.py"))


def folder_with(tmp_path: Path, *packages: str) -> Path:
    for package in packages:
        (tmp_path / package).mkdir(parents=True)
        (tmp_path / package / "__init__.py").touch()
    return tmp_path


def test_installed_pyspark_is_preferred_to_the_zip_files_of_spark_submit() -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, ZIPS))}

    def taken(also: str) -> list[str]:
        asked = f"import {also}pyspark, py4j; print(pyspark.__file__); print(py4j.__file__)"
        done = subprocess.run([sys.executable, "-c", asked], env=env, capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert all(".zip" in file for file in taken(""))  # or there is nothing to prefer any more
    assert taken("sluice_spark, ") == [pyspark.__file__, py4j.__file__]


def test_each_main_imports_sluice_spark_before_pyspark() -> None:
    for main in MAINS:
        first = re.findall(r"(?m)^(?:from|import) (pyspark|py4j|sluice_spark)\b", main.read_text())
        assert first[:1] == ["sluice_spark"], main


def site_with(tmp_path: Path, py4j: str) -> Path:
    site = folder_with(tmp_path / "site", "pyspark", "py4j", f"py4j-{py4j}.dist-info")
    (site / "pyspark" / "python" / "lib").mkdir(parents=True)
    return site


def test_spark_of_another_folder_is_preferred(tmp_path: Path) -> None:
    path = ["/spark/python/lib/pyspark.zip", "/spark/python/lib/py4j-0.10.9.9-src.zip"]
    path.append(str(site_with(tmp_path, "0.10.9.9")))
    before = list(path)
    prefer_installed(path)
    assert path == before


@pytest.mark.parametrize(("installed", "stays"), [("0.10.9.9", False), ("0.10.9.8", True)])
def test_py4j_of_another_version_is_preferred(tmp_path: Path, installed: str, stays: bool) -> None:
    site = site_with(tmp_path, installed)
    py4j = f"{site}/pyspark//python/lib/py4j-0.10.9.9-src.zip"
    path = [f"{site}/pyspark/python/lib/pyspark.zip", py4j, "/others.zip", str(site)]
    prefer_installed(path)
    assert path == [py4j] * stays + ["/others.zip", str(site)]


def test_zip_files_are_kept_where_nothing_is_installed(tmp_path: Path) -> None:
    path = [*map(str, ZIPS), str(tmp_path)]
    before = list(path)
    prefer_installed(path)
    assert path == before
