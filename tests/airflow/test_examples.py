"""The example DAGs of docs/examples: each runs, and docs/airflow.md shows what runs."""

from __future__ import annotations

import importlib
import re
import textwrap
from typing import Any

import pytest
from airflow.sdk import DAG
from tests.airflow.conftest import PROJECT, FakeSpark, states, use

from sluice.lag import Backlog, PartitionLag
from sluice_airflow.provider import get_provider_info

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

EXAMPLES = PROJECT / "docs" / "examples"
PAGE = PROJECT / "docs" / "airflow.md"
_PART = re.compile(r"^ *# \[START (\w+)\]\n(.*?)^ *# \[END \1\]\n", re.MULTILINE | re.DOTALL)


def parts() -> dict[str, str]:
    texts = (file.read_text() for file in sorted(EXAMPLES.glob("*.py")))
    return {name: textwrap.dedent(body) for text in texts for name, body in _PART.findall(text)}


@pytest.fixture
def examples(
    pipeline_file: Any, dags_in: Any, spark: FakeSpark, backlog: Any, monkeypatch: pytest.MonkeyPatch
) -> dict[str, DAG]:
    """All of them, with the two pipelines that they name, the fake spark-submit and a broker that has a little."""
    pipeline_file("refunds")
    monkeypatch.setenv("SLUICE_PIPELINES", str(pipeline_file("orders").parent))
    backlog(Backlog("any", (PartitionLag("any", 0, 0, 0, 200_000),)))
    found: dict[str, DAG] = dags_in(EXAMPLES)
    spark.plan("run", written=[12], verdict="passed")
    return {name: use(spark, dag) for name, dag in found.items()}


NOT_RUN = {
    "example_consumer": "for an event, which test() has none of",
    "example_rename": "for want of a pipeline that had another name: operators/test_maintenance.py",
}


def ended(dag: DAG) -> dict[str, str]:
    return states(dag.test(logical_date=None))


@pytest.mark.long
def test_example_dags_run(examples: dict[str, DAG]) -> None:
    repair = ended(examples.pop("example_repair"))  # first: there is no table behind the runs of the others
    assert repair.pop("redrive") == "skipped", "nothing is lost"
    assert (len(repair), set(repair.values())) == (5, {"success"}), repair
    assert set(ended(examples.pop("example_take_back")).values()) == {"skipped"}, "nothing was asked for, nor is lost"
    assert set(ended(examples.pop("example_begin_again")).values()) == {"skipped"}, "the fake resets nothing"
    others = {name: ended(dag) for name, dag in examples.items() if name not in NOT_RUN}
    assert {name: found for name, found in others.items() if set(found.values()) != {"success"}} == {}


def test_example_consumer_reads_the_ranges_of_events(examples: dict[str, DAG]) -> None:
    from types import SimpleNamespace

    from sluice_airflow.operators.account import asset_of

    events = [SimpleNamespace(extra={"ranges": [["orders", 0, 0, 5]]}), SimpleNamespace(extra={"ranges": []})]
    consume = examples["example_consumer"].get_task("consume").python_callable
    assert consume({asset_of("orders"): events}) == [["orders", 0, 0, 5]]


def test_example_of_the_documentation_is_the_code_that_runs() -> None:
    shown = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert [name for name, text in parts().items() if not any(text in block for block in shown)] == []


def test_example_is_there_for_each_operator_sensor_and_trigger() -> None:
    info, text = get_provider_info(), "\n".join(parts().values())
    modules = [m for kind in ("operators", "sensors", "triggers") for m in info[kind][0]["python-modules"]]
    public = {name: module for module in modules for name in importlib.import_module(module).__all__}
    made = {name for name in public if name.endswith(("Operator", "Sensor"))}
    assert {name for name in made if f"{name}(" not in text} == set()
    # the triggers are arguments of what is made here: KafkaLagTrigger is what the sensor waits by
    assert "lag_asset(" in text
