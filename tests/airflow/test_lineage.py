"""Lineage: the events that OpenLineage's provider sends of a run, by its file transport, and their data sets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.airflow.conftest import SECRET, FakeSpark

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]

DAG_FILE = """\
from airflow.sdk import DAG
from sluice_airflow.operators.bounded_run import BoundedRunOperator
from sluice_airflow.operators.validate import ValidateOperator

with DAG("lineage", schedule=None, default_args={{"retries": 0, "spark_binary": {binary!r}}}):
    BoundedRunOperator(task_id="ingest", pipeline={file!r}) >> ValidateOperator(task_id="validate", pipeline={file!r})
"""

JUDGEMENT = {
    "results": [
        {"expectation": "expect_column_values_to_not_be_null", "column": "carrier", "success": False,
         "severity": "critical"},
        {"expectation": "expect_table_row_count_to_be_between", "column": None, "success": True, "severity": "warning"},
    ],
    "excesses": [{"limit": "max_quarantined", "verdict": "failed", "why": "98 of 100 records are in quarantine"}],
}  # fmt: skip


def sent(file: Path, spark: FakeSpark, folder: Path) -> dict[str, dict[str, Any]]:
    """Run the DAG in a process of its own, where Airflow loads the provider; return the last event of each task."""
    events = folder / "events.json"
    (folder / "dags").mkdir()
    (folder / "dags" / "lineage.py").write_text(DAG_FILE.format(binary=spark.binary, file=str(file)))
    transport = {"type": "file", "log_file_path": str(events), "append": True}
    settings = {
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags"),
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport),
    }
    command = [sys.executable, "-m", "airflow", "dags", "test", "lineage"]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, timeout=300)
    assert events.exists(), done.stdout[-4000:] + done.stderr[-4000:]
    assert SECRET not in events.read_text()
    found = [json.loads(line) for line in events.read_text().splitlines()]
    return {event["job"]["name"]: event for event in found if event["eventType"] in ("COMPLETE", "FAIL")}


@pytest.mark.long
def test_lineage_of_a_run_has_its_offsets_its_table_and_each_expectation(
    pipeline_file: Any, spark: FakeSpark, home: Path, tmp_path: Path
) -> None:
    for _ in range(3):
        write_deltalake(str(home / "demo"), pa.table({"a": [1]}), mode="append")
    spark.plan("run", written=[5, 7], verdict="failed", judgement=JUDGEMENT)
    events = sent(pipeline_file(), spark, tmp_path)
    ingest, validate = events["lineage.ingest"], events["lineage.validate"]
    assert (ingest["eventType"], validate["eventType"]) == ("COMPLETE", "FAIL")

    (topic,), (table,) = ingest["inputs"], ingest["outputs"]
    assert (topic["namespace"], topic["name"]) == ("kafka://broker:9092", "demo")
    assert topic["inputFacets"]["sluice_ranges"]["ranges"] == [{"partition": 0, "start": 0, "end": 12}]
    assert (table["namespace"], table["name"]) == ("file", str(home / "demo"))
    assert table["facets"]["version"]["datasetVersion"] == "2"
    assert table["outputFacets"]["outputStatistics"]["rowCount"] == 12
    account = ingest["run"]["facets"]["sluice_run"]
    assert (account["planned"], account["written"], account["lost"], account["recovery"]) == (12, 12, 0, "replay")

    (judged,) = validate["inputs"]
    assert (judged["namespace"], judged["name"]) == (table["namespace"], table["name"])
    found = judged["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert [(a["assertion"], a.get("column"), a["success"], a["severity"]) for a in found] == [
        ("expect_column_values_to_not_be_null", "carrier", False, "error"),
        ("expect_table_row_count_to_be_between", None, True, "warn"),
        ("max_quarantined", None, False, "error"),
    ]


def test_lineage_names_the_data_set_of_each_sink_by_its_server(
    pipeline_file: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sluice.pipeline import load
    from sluice_airflow.lineage import _sink

    connection = {"conn_type": "postgres", "host": "db", "login": "me", "password": SECRET, "schema": "shop"}
    monkeypatch.setenv("AIRFLOW_CONN_POSTGRES_DEFAULT", json.dumps(connection))
    kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": "k1:9092,k2:9092"}}
    monkeypatch.setenv("AIRFLOW_CONN_OTHER", json.dumps(kafka))
    file = pipeline_file()
    text = file.read_text()
    for sink, namespace, name in (
        ("{files: {path: /data/demo}}", "file", "/data/demo"),
        ("{kafka: {topic: demo, connection: other}}", "kafka://k1:9092", "demo"),
        ("{postgres: {table: demo}}", "postgres://db:5432", "shop.public.demo"),
        ("{iceberg: {table: lake.demo}}", "x-sluice://iceberg", "lake.demo (iceberg_default)"),
    ):
        file.write_text(text.replace("{delta: {path: demo}}", sink))
        assert _sink(load(file)) == {"namespace": namespace, "name": name}


def test_lineage_of_a_run_that_is_not_planned_names_its_topic_and_each_of_its_sinks(
    pipeline_file: Any, home: Path
) -> None:
    from sluice.pipeline import load
    from sluice_airflow.lineage import of_ingest

    further = (
        "{files: {path: out}}, {foreach: {python: 'collections:Counter'}}, {iceberg: {table: lake.demo}}, {console: {}}"
    )
    file = pipeline_file(more=f"\nalso: [{further}]\n")
    found = of_ingest(load(file), "unknown")
    assert [topic.name for topic in found.inputs] == ["demo"]
    assert "sluice_run" not in found.run_facets
    assert [(output.namespace, output.name) for output in found.outputs] == [
        ("file", str(home / "demo")),
        ("file", str(home / "out")),
        ("x-sluice://foreach", "collections:Counter"),
        ("x-sluice://iceberg", "lake.demo (iceberg_default)"),
        ("x-sluice://console", "the driver's log"),
    ]


def test_lineage_of_a_run_without_records_names_the_cluster_that_it_asked(
    pipeline_file: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sluice.ledger import Ledger
    from sluice.ledger.events import EpochOpened
    from sluice.pipeline import load
    from sluice.recovery import Route
    from sluice_airflow.lineage import of_ingest

    for name in ("one", "two"):
        kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": f"{name}:9092"}}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(kafka))
    file = pipeline_file()
    source = "{kafka: {clusters: [one, two], topics: [demo], origin_header: o}}"
    file.write_text(
        "\n".join(f"source: {source}" if line.startswith("source:") else line for line in file.read_text().splitlines())
    )
    pipeline, ledger = load(file), Ledger.open()
    asked = [of_ingest(pipeline, "none").inputs[0].namespace]
    with ledger.acquire(pipeline.name, "moved") as lease:
        ledger.record(lease, EpochOpened(epoch=2, lineage=Route.DIRECT, positions={"two:demo": {0: 0}}))
    asked.append(of_ingest(pipeline, "none").inputs[0].namespace)
    assert asked == ["kafka://one:9092", "kafka://two:9092"]
