"""The settings of the driver's log: what they silence is there by that name."""

from __future__ import annotations

import re
from pathlib import Path
from zipfile import ZipFile

import pyspark

from sluice.shipped import shipped


def test_each_logger_that_is_silenced_is_a_class_of_spark() -> None:
    """A class that Spark has moved is silenced no more, without a word."""
    settings = Path(shipped("include/spark-log4j2.properties")).read_text()
    names = set(re.findall(r"^logger\.\w+\.name = (org\.apache\.spark\.(?!sql\.kafka010)\S+)$", settings, re.MULTILINE))
    assert len(names) > 3
    wanted = {f"{name.replace('.', '/')}{end}" for name in names for end in (".class", "$.class")}
    found = set[str]()
    for jar in (Path(pyspark.__file__).parent / "jars").glob("spark-*.jar"):
        with ZipFile(jar) as file:
            found |= wanted & set(file.namelist())
    assert {re.sub(r"\$?\.class$", "", name).replace("/", ".") for name in found} == names
