"""A test file has the name and the folder of the module that it tests."""

from __future__ import annotations

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
"""Below each folder of tests, the packages whose modules are tested there."""

OF_NO_MODULE = {
    "airflow/test_compose.py": "docker-compose.yaml and what goes with it",
    "airflow/test_compose_stack.py": "the services of docker-compose.yaml as processes",
    "airflow/test_dags.py": "the project's DAG files, and whole runs of one: factory, sensor, triggers and operators",
    "airflow/test_examples.py": "docs/examples, and the page that shows them",
    "airflow/test_failed_runs.py": "what a failed run means to watcher, triggerer and retry policy together",
    "airflow/test_limits.py": "how many drivers run at once: factory, file and environment",
    "airflow/test_on_idle.py": "one key of the file, in sensor, gate and factory",
    "airflow/test_in_browser.py": "the page and a connection's form in a real API server, as a person meets them",
    "airflow/test_telling.py": "what people read, from task logs to durations",
    "airflow/test_timeout.py": "a driver that hangs: operator, hook and factory",
    "airflow/test_wheel.py": "the three packages as one wheel, where there is no checkout",
    "kafka/test_burrow.py": "another program's numbers beside those of a real run",
    "unit/launch/test_log_settings.py": "include/spark-log4j2.properties beside Spark's jars",
    "unit/sources/jdbc/test_traps.py": "what tables, servers and clocks do to source, database and intake together",
    "unit/test_documents.py": "README.md and docs",
    "unit/test_environment.py": "what is installed against what is pinned",
    "unit/test_layout.py": "the tests themselves",
}
"""What spans modules, and why."""


def modules_of(test: str) -> list[Path]:
    """Return where the module of a test file may be."""
    folder = next(folder for folder in MIRRORED if test.startswith(f"{folder}/"))
    below = Path(test).relative_to(folder)
    return [package / below.with_name(below.name.removeprefix("test_")) for package in MIRRORED[folder]]


def test_each_test_file_is_named_for_a_module_and_lies_where_it_lies() -> None:
    tests = ROOT / "tests"
    found = {
        str(file.relative_to(tests))
        for folder in {folder.partition("/")[0] for folder in MIRRORED}
        for file in (tests / folder).rglob("test_*.py")
    }
    astray = {test for test in found - OF_NO_MODULE.keys() if not any(module.is_file() for module in modules_of(test))}
    assert sorted(astray) == [], "name each for its module, or say in OF_NO_MODULE why it has none"
    assert OF_NO_MODULE.keys() <= found, "an exception for a file that is not there"
