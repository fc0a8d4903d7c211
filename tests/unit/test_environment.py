"""Installed packages are the pinned ones, and pins fit one another."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, version

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sluice.launch import jars
from sluice.shipped import CHECKOUT


def requirements(file: str = "requirements.txt") -> list[Requirement]:
    lines = (line.split("#")[0].strip() for line in (CHECKOUT / file).read_text().splitlines())
    return [Requirement(line.removesuffix("\\").strip()) for line in lines if line and not line.startswith("-")]


def declared() -> list[Requirement]:
    """Requirements of pyproject.toml, extras included."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    found = [Requirement(line) for lines in lists for line in lines]
    return [requirement for requirement in found if requirement.name != "sluice"]


def jar_versions() -> dict[str, tuple[str, str]]:
    parts = (jar.coordinate.split(":") for jar in jars.locked("spark"))
    return {re.sub(r"_.*", "", artifact): (artifact, number) for _, artifact, number in parts}


def test_every_requirement_is_pinned_to_one_version() -> None:
    found = requirements()
    assert len(found) > 100
    assert [str(r) for r in found if [s.operator for s in r.specifier] != ["=="] or "*" in str(r.specifier)] == []


def test_dependencies_of_the_package_accept_the_pins() -> None:
    pins = {canonicalize_name(r.name): next(iter(r.specifier)).version for r in requirements()}
    asked = {canonicalize_name(r.name): r for r in declared()}
    assert {name: str(r) for name, r in asked.items() if name not in pins or not r.specifier.contains(pins[name])} == {}
    assert asked.keys() == {canonicalize_name(r.name) for r in requirements("requirements.in")}


def test_installed_packages_are_the_pinned_ones() -> None:
    def installed(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    environment = default_environment()
    wanted = [r for r in requirements() if r.marker is None or r.marker.evaluate(environment)]  # type: ignore[arg-type]
    wrong = {r.name: installed(r.name) for r in wanted if not r.specifier.contains(installed(r.name) or "0", True)}
    assert wrong == {}


def test_jars_fit_the_wheels() -> None:
    spark = version("pyspark")
    assert version("pyspark-client") == spark, "they share a folder"
    jar = jar_versions()
    assert jar["spark-sql-kafka-0-10"] == ("spark-sql-kafka-0-10_2.13", spark)
    delta = version("delta-spark")
    assert jar["delta-spark"] == (f"delta-spark_{'.'.join(spark.split('.')[:2])}_2.13", delta)
    assert jar["delta-storage"] == ("delta-storage", delta)
    assert {a.rpartition("_")[2] for a, _ in jar.values() if "_2." in a} == {"2.13"}
