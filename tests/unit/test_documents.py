"""Links, examples and matrices of the documents, pins of packages, and the layout of the tests."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.fixtures.pipelines import modelled

from sluice.errors import ConfigError
from sluice.launch import jars
from sluice.pipeline import load
from sluice.pipeline.suite import Suite
from sluice.recovery import Recovery
from sluice.run import redrive_plan, reset_plan, retraction
from sluice.shipped import CHECKOUT

ROOT = Path(str(CHECKOUT))
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
OWN = "## A pipeline of your own, in ten minutes"


def anchors(file: Path) -> set[str]:
    """Return the anchors that GitHub makes of a document's headings."""
    found: list[str] = []
    for heading in re.findall(r"(?m)^#+ (.+)$", re.sub(r"(?ms)^```.*?^```", "", file.read_text())):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
    return set(found)


@pytest.mark.parametrize("file", DOCUMENTS, ids=[str(file.relative_to(ROOT)) for file in DOCUMENTS])
def test_document_links_lead_somewhere(file: Path) -> None:
    text = re.sub(r"(?ms)^```.*?^```", "", file.read_text())
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    lost = []
    for link in (link for link in links if not re.match(r"[a-z]+:", link)):  # those are of other hosts
        path, _, anchor = link.partition("#")
        target = (file.parent / path).resolve() if path else file
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert lost == []


def test_document_is_linked_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [file.name for file in (ROOT / "docs").glob("*.md") if f"(docs/{file.name}" not in readme] == []


def test_readme_pipeline_is_valid(tmp_path: Path) -> None:
    section = (ROOT / "README.md").read_text().partition(OWN)[2].partition("\n## ")[0]
    blocks = re.findall(r"(?ms)^```(\w+)\n(.*?)^```", section)
    shell, pipeline, suite, *_, lagging = (text for language, text in blocks if language != "bash" or "<<'PY'" in text)
    compile(shell.partition("<<'PY'\n")[2].partition("\nPY\n")[0], "send_orders.py", "exec")
    for folder in ("pipelines", "expectations"):
        (tmp_path / folder).mkdir()
    file = tmp_path / "pipelines" / "orders.yaml"
    (tmp_path / "expectations" / "orders.json").write_text(suite)
    last = pipeline.splitlines()[-1]
    for text in (pipeline, pipeline.replace(last, lagging)):
        file.write_text(text)
        assert len(Suite.of(load(file)).expectations) == 3
    assert load(file).schedule == "on_lag"


SOURCES = {
    "`kafka`, topics": ("kafka", ""),
    "`kafka`, `pattern`": ("kafka", "source.kafka: {pattern: t.*}"),
    "`kafka`, `clusters`": ("clusters", ""),
    "`file`, `json`, `csv`, `text`": ("files", ""),
    "`file`, `parquet`": ("files", "source.file.format: parquet"),
    "`file`, `avro`": ("files", "source.file.format: avro"),
    "`jdbc`, by a time": ("jdbc", "source.jdbc.key: at"),
    "`jdbc`, by a number": ("jdbc", ""),
    "`queue`, Redis Streams": ("queue", ""),
    "`queue`, NATS JetStream": ("queue", "source.queue.kind: nats_jetstream"),
    "`rate`": ("rate", ""),
    "`socket`": ("socket", ""),
}
SINKS = {
    "`delta`": ("kafka", ""),
    "`delta`, `upsert`": ("delta-upsert", ""),
    "`iceberg`": ("kafka", "sink: {iceberg: {table: a.t}}"),
    "`files`": ("files-sink", ""),
    "`postgres`": ("kafka", "sink: {postgres: {table: public.t}}"),
    "`postgres`, `upsert`": ("postgres-upsert", ""),
    "`kafka`": ("kafka-sink", ""),
    "`foreach`": ("foreach-sink", ""),
    "`console`": ("kafka", "sink: {console: {}}"),
}
"""By the first cell of a row: a base of pipeline files, and its changes."""


def matrix(heading: str) -> dict[str, list[str]]:
    section = (ROOT / "docs/sources-and-sinks.md").read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| `")]
    return {row[0]: row[1:] for row in rows}


def allowed(check: Callable[[], Any]) -> bool:
    try:
        check()
    except (ConfigError, ValueError):
        return False
    return True


def test_document_of_sources_names_refusals() -> None:
    documented = matrix("Sources and strategies")
    assert documented.keys() == SOURCES.keys()
    for name, cells in documented.items():
        base, changes = SOURCES[name]
        spec = modelled(changes, base)
        really = [*(spec.refusal(strategy) is None for strategy in Recovery), spec.no_intervals is None]
        assert [cell != "**no**" for cell in cells[:-1]] == really, name


def test_document_of_sinks_names_refusals() -> None:
    documented = matrix("Sinks and kinds of run")
    assert documented.keys() == SINKS.keys()
    for name, (_, *cells, judged, stateful, _) in documented.items():
        base, changes = SINKS[name]
        spec = modelled(changes, base)
        really = [
            spec.no_intervals is None,
            allowed(partial(redrive_plan.possible, spec, quarantined=False)),
            allowed(partial(redrive_plan.possible, spec, quarantined=True)),
            allowed(partial(retraction.possible, spec)),
            allowed(partial(reset_plan.possible, spec, "earliest", truncate=True)),
            allowed(partial(modelled, f"{changes}{', ' if changes else ''}window: $window", base)),
        ]
        assert [cell != "**no**" for cell in (*cells, stateful)] == really, name
        assert spec.sink.kind.whole == (judged != "the staged rows"), name


def test_document_of_sources_and_sinks_names_existing_tests() -> None:
    named = set(re.findall(r"`(test_\w+\.py)`", (ROOT / "docs/sources-and-sinks.md").read_text()))
    assert [name for name in sorted(named) if not (ROOT / "tests/chaos" / name).is_file()] == []


def requirements(file: str = "requirements.txt") -> dict[str, Requirement]:
    lines = (line.split("#")[0].strip() for line in (CHECKOUT / file).read_text().splitlines())
    found = [Requirement(line.removesuffix("\\").strip()) for line in lines if line and not line.startswith("-")]
    return {canonicalize_name(requirement.name): requirement for requirement in found}


def test_requirements_are_pinned_to_one_version_that_the_package_accepts() -> None:
    found = requirements()
    assert len(found) > 100
    assert [str(r) for r in found.values() if not re.fullmatch(r"==[^*,]+", str(r.specifier))] == []
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    asked = {canonicalize_name(r.name): r for r in map(Requirement, lines) if r.name != "sluice"}
    pins = {name: str(r.specifier).removeprefix("==") for name, r in found.items()}
    assert {name: str(r) for name, r in asked.items() if name not in pins or not r.specifier.contains(pins[name])} == {}
    assert asked.keys() == requirements("requirements.in").keys()


def test_requirements_are_installed_as_they_are_pinned() -> None:
    def installed(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return "0"

    environment = default_environment()
    wanted = [r for r in requirements().values() if r.marker is None or r.marker.evaluate(environment)]  # type: ignore[arg-type]
    assert {r.name: installed(r.name) for r in wanted if not r.specifier.contains(installed(r.name), True)} == {}


def test_jars_fit_the_wheels() -> None:
    spark, delta = version("pyspark"), version("delta-spark")
    assert version("pyspark-client") == spark, "they share a folder"
    parts = (jar.coordinate.split(":") for jar in jars.locked("spark"))
    jar = {re.sub(r"_.*", "", artifact): (artifact, number) for _, artifact, number in parts}
    assert jar["spark-sql-kafka-0-10"] == ("spark-sql-kafka-0-10_2.13", spark)
    assert jar["delta-spark"] == (f"delta-spark_{'.'.join(spark.split('.')[:2])}_2.13", delta)
    assert jar["delta-storage"] == ("delta-storage", delta)
    assert {a.rpartition("_")[2] for a, _ in jar.values() if "_2." in a} == {"2.13"}


CORE, SPARK, AIRFLOW, DEMO = (
    ROOT / folder
    for folder in ("include/sluice", "spark_jobs/sluice_spark", "plugins/sluice_airflow", "demo/sluice_demo")
)
MIRRORED = {
    "unit/spark": (SPARK,),  # before "unit", of which it is a part
    **dict.fromkeys(("unit/demo", "spark/demo", "kafka/demo"), (DEMO,)),
    "unit": (CORE,),
    "spark": (SPARK, CORE),
    "kafka": (CORE,),
    "airflow": (AIRFLOW,),
}
"""Below each folder of tests, the packages whose rooms are tested there."""


def test_layout_has_each_test_file_in_the_folder_of_a_room() -> None:
    tests = ROOT / "tests"
    files = [
        file for folder in {name.partition("/")[0] for name in MIRRORED} for file in (tests / folder).rglob("test_*.py")
    ]
    strays = []
    for test in (file.relative_to(tests) for file in files):
        folder = next(folder for folder in MIRRORED if test.is_relative_to(folder))
        if not any((package / test.relative_to(folder).parent).is_dir() for package in MIRRORED[folder]):
            strays.append(str(test))
    assert strays == []


def test_layout_keeps_pyspark_from_a_worker_that_needs_no_jvm() -> None:
    code = (
        "import importlib, sys, tests.conftest as c\n"
        "for name in c.pytest_plugins: importlib.import_module(name)\n"
        "print(*{'pyspark', 'airflow', 'great_expectations', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


RIDDLES = re.compile(
    r"\banew\b|\b(?:[Ss]ome|[Aa]ny|[Nn]o)body\b|\blets? out\b|\b(?:is|are|was|were|be|been) told\b(?! (?:apart|from)\b)"
    r"|(?:^ *|\"\"\"|# |\. |\| )Of (?!course\b)[a-z`]"
)
"""Words that a reader has to guess at; CONTRIBUTING.md has the rules of prose."""


def test_prose_of_product_and_documents_has_no_riddles() -> None:
    files = [f for folder in (CORE, SPARK, AIRFLOW, DEMO) for f in folder.rglob("*.py")]
    files += [f for f in DOCUMENTS if f.name not in ("CHANGELOG.md", "chaos-results.md")]
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in files
        for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), 1)
        if RIDDLES.search(line)
    ]
    assert found == []
