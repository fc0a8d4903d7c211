"""A run, as OpenLineage's events describe it. Imported only by tasks, and only where its provider is installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import attr
from airflow.providers.openlineage.extractors import OperatorLineage
from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.facet_v2 import InputDatasetFacet, OutputDatasetFacet, RunFacet
from openlineage.client.facet_v2 import data_quality_assertions_dataset as quality
from openlineage.client.facet_v2 import dataset_version_dataset as versions
from openlineage.client.facet_v2 import output_statistics_output_dataset as statistics

from sluice.home import Home
from sluice.kinds import kind_of
from sluice.ledger import Ledger, UnknownRunError
from sluice.pipeline import Pipeline, Rows
from sluice.pipeline.sections import Sink
from sluice.ranges import Positions, joined
from sluice.sources.clusters import bare
from sluice_airflow import connections
from sluice_airflow.sink import version_of

__all__ = ["SluiceRangesFacet", "SluiceRunFacet", "of_ingest", "of_validate"]


@attr.define(kw_only=True)
class SluiceRangesFacet(InputDatasetFacet):
    """The offsets of a topic that a run read: ``partition``, ``start`` and ``end`` (exclusive) each."""

    ranges: list[dict[str, int]] = attr.field(factory=list)


@attr.define(kw_only=True)
class SluiceRunFacet(RunFacet):
    """A run's account: ``end - start = written + filtered + quarantined + absent + lost``."""

    run: str
    recovery: str
    planned: int
    written: int
    filtered: int
    quarantined: int
    absent: int
    lost: int
    verdict: str | None = attr.field(default=None)


def of_ingest(pipeline: Pipeline, run_id: str) -> OperatorLineage:
    """Return the streams with the offsets that were read, and the table with its version and the rows written.

    For a run that the ledger does not have, the names alone.
    """
    ledger = Ledger.open()
    try:
        account = ledger.runs.account(pipeline.name, run_id)
    except UnknownRunError:
        account = {}
    ranges = joined(a.range for a in ledger.offsets.accounts(pipeline.name, run_id)) if account else []
    inputs = []
    # of a pattern, and of several clusters, the topics from which something was read
    several = pipeline.origins is not None and ranges
    streams = [] if several else pipeline.source.config.streams
    for stream in streams or sorted({r.topic for r in ranges}):
        read = [{"partition": r.partition, "start": r.start, "end": r.end} for r in ranges if r.topic == stream]
        facets = {"sluice_ranges": SluiceRangesFacet(ranges=read)} if read else {}
        # of a run that read nothing, the cluster that it asked
        positions = {stream: {}} if ranges else ledger.offsets.epoch(pipeline.name).positions
        inputs.append(
            InputDataset(namespace=_source(pipeline, positions), name=_bare(pipeline, stream), inputFacets=facets)
        )
    written: dict[str, OutputDatasetFacet] = {}
    if account and pipeline.rows in (Rows.ONE, Rows.FILTER):  # each written offset is one row
        written["outputStatistics"] = statistics.OutputStatisticsOutputDatasetFacet(rowCount=account["written"])
    outputs = [OutputDataset(**_sink(pipeline), outputFacets=written)]
    outputs += [OutputDataset(**_place(sink), outputFacets=written) for sink in pipeline.also]
    names = [field.name for field in attr.fields(SluiceRunFacet) if field.name in account]
    run_facets = {"sluice_run": SluiceRunFacet(**{name: account[name] for name in names})} if account else {}
    return OperatorLineage(inputs=inputs, outputs=outputs, run_facets=run_facets)


def of_validate(pipeline: Pipeline, judgement: Mapping[str, Any]) -> OperatorLineage:
    """Return the table with one assertion for each expectation of the suite, and for each limit that was exceeded."""
    assertions = [
        quality.Assertion(
            assertion=result["expectation"],
            success=bool(result.get("success")),
            column=result.get("column"),
            severity="error" if result.get("severity", "critical") == "critical" else "warn",
        )
        for result in judgement.get("results") or []
    ]
    for excess in judgement.get("excesses") or []:
        severity = "error" if excess.get("verdict", "failed") == "failed" else "warn"
        assertions.append(quality.Assertion(assertion=excess["limit"], success=False, severity=severity))
    facets = {"dataQualityAssertions": quality.DataQualityAssertionsDatasetFacet(assertions)} if assertions else {}
    return OperatorLineage(inputs=[InputDataset(**_sink(pipeline), inputFacets=facets)])


def _source(pipeline: Pipeline, positions: Positions | None) -> str:
    kafka = pipeline.source.kafka
    if kafka is None:
        return f"x-sluice://{pipeline.source.key}"
    return _cluster(kafka.at(positions).active)


def _bare(pipeline: Pipeline, stream: str) -> str:
    return stream if pipeline.origins is None else bare(stream)


def _cluster(connection: str) -> str:
    with kind_of("sources", "kafka").cluster(connections.get(connection)) as cluster:  # nothing is sent to it
        return f"kafka://{cluster.address}"


def _sink(pipeline: Pipeline) -> dict[str, Any]:
    """Return namespace, name and facets of the sink, by OpenLineage's naming of files, buckets and databases."""
    if not pipeline.sink.kind.delta:
        return _place(pipeline.sink)
    version = version_of(pipeline)
    facets = {} if version is None else {"version": versions.DatasetVersionDatasetFacet(str(version))}
    return {**_place(pipeline.sink), "facets": facets}


def _place(sink: Sink) -> dict[str, Any]:
    if (table := sink.postgres) is not None:
        database = connections.get(table.connection)
        server = f"{database.host}:{database.port or 5432}"
        return {"namespace": f"postgres://{server}", "name": f"{database.schema}.{table.table}"}
    if (topic := sink.kafka) is not None:
        return {"namespace": _cluster(topic.connection), "name": topic.topic}
    if sink.delta is None and sink.files is None:
        return {"namespace": f"x-sluice://{sink.key}", "name": sink.config.shown}
    path = Home.from_env().resolve(sink.config.location)
    if "://" not in path:
        return {"namespace": "file", "name": path}
    url = urlsplit(path)
    return {"namespace": f"{url.scheme}://{url.netloc}", "name": url.path.strip("/")}
