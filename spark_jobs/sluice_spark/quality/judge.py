"""Judges what a run wrote with Great Expectations, in the run's own Spark application."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sluice.errors import ConfigError
from sluice.home import Home
from sluice.spec import Pipeline
from sluice_spark.log import logger
from sluice_spark.quality.data_docs import build, prune
from sluice_spark.quality.judgement import ExpectationResult, Judgement
from sluice_spark.sinks.delta import DeltaSink

__all__ = ["Judge"]

_EXAMPLES = 10


class Judge:
    """Runs the pipeline's suite on the rows of a run, and its table-level part on the whole table.

    An expectation is table-level when its ``meta`` says ``{"scope": "table"}``. The number of rows is always checked
    against what the run is known to have written, so that an empty or cut slice cannot pass for a good one.

    Raises
    ------
    ConfigError
        When the suite is not one.
    """

    def __init__(self, pipeline: Pipeline, home: Home, run: str) -> None:
        self._pipeline = pipeline
        self._home = home
        self._run = run
        self._suite = _read_suite(pipeline)
        self._import: threading.Thread | None = None

    def warm_up(self) -> None:
        """Import Great Expectations in the background: seconds that Spark's own start can hide."""
        if self._suite is not None:
            self._import = threading.Thread(target=_import, name="sluice-import", daemon=True)
            self._import.start()

    def judge(self, spark: SparkSession, sink: DeltaSink, runs: Sequence[str]) -> Judgement:
        """Judge the rows of ``runs``.

        Returns
        -------
        Judgement
            With ``error`` set when judging itself failed. Nothing is raised: the data is committed by now.
        """
        began = time.monotonic()
        if self._import is not None:
            self._import.join()
        waited = time.monotonic() - began
        suite = self._suite or {"name": "none", "expectations": []}
        try:
            rows, count = sink.rows_of(spark, runs)
            # the whole table is looked at only when an expectation asks for it: Spark asks for each file's status
            scopes = {"slice": lambda: rows, "table": lambda: sink.rows(spark)}
            judgement = self._validate(suite, scopes, count, runs)
        except Exception as error:
            logger.exception("judging failed")
            return Judgement(suite["name"], 0, error=f"{type(error).__name__}: {error}"[:2000], runs=tuple(runs))
        for broken in (r for r in judgement.results if not r.success):
            logger.warning("%s", broken)
        seconds = time.monotonic() - began
        logger.info(
            "verdict %s: %d expectations on %s rows in %.1f s (%.1f s of it waiting for the import)",
            judgement.verdict, len(judgement.results), f"{judgement.rows:,}", seconds, waited,
        )  # fmt: skip
        return judgement

    def _validate(
        self, suite: dict[str, Any], scopes: Mapping[str, Callable[[], DataFrame]], rows: int, runs: Sequence[str]
    ) -> Judgement:
        folder = f"{self._home.data_docs}/{self._pipeline.name}"
        os.makedirs(folder, exist_ok=True)
        with open(f"{folder}/.lock", "w") as lock:  # intervals are judged beside each other, in one context
            fcntl.flock(lock, fcntl.LOCK_EX)
            return self._validate_alone(suite, scopes, rows, runs, folder)

    def _validate_alone(
        self,
        suite: dict[str, Any],
        scopes: Mapping[str, Callable[[], DataFrame]],
        rows: int,
        runs: Sequence[str],
        folder: str,
    ) -> Judgement:
        import great_expectations as gx

        prune(Path(folder))
        context = gx.get_context(mode="file", project_root_dir=folder)
        context.variables.progress_bars = {"globally": False}
        right_count = {"type": "expect_table_row_count_to_equal", "kwargs": {"value": rows}, "severity": "critical"}
        split: dict[str, list[dict[str, Any]]] = {"slice": [right_count], "table": []}
        for item in suite["expectations"]:
            split[_scope(item)].append(item)
        results: list[ExpectationResult] = []
        pages: list[Any] = []
        for scope, expectations in split.items():
            if not expectations:
                continue
            frame = scopes[scope]()
            # Counts first: fetching examples is a Spark job for each expectation, needed only when one fails.
            found = self._evaluate(context, scope, frame, expectations, pages, examples=0)
            if not all(r.success for r in found):
                found = self._evaluate(context, scope, frame, expectations, pages, examples=_EXAMPLES)
            results += found
        index = build(context, Path(folder), pages)
        return Judgement(suite["name"], rows, tuple(results), data_docs=index, runs=tuple(runs))

    def _evaluate(
        self,
        context: Any,
        scope: str,
        frame: DataFrame,
        expectations: list[dict[str, Any]],
        pages: list[Any],
        *,
        examples: int,
    ) -> list[ExpectationResult]:
        """Evaluate expectations; add to ``pages`` what Data Docs have to show anew."""
        from great_expectations import Checkpoint, ExpectationSuite, ValidationDefinition
        from great_expectations.core.run_identifier import RunIdentifier
        from great_expectations.data_context.types.resource_identifiers import ExpectationSuiteIdentifier

        name = f"{self._pipeline.name}-{scope}"
        source = context.data_sources.add_or_update_spark(name, persist=False)
        batch = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe(name)
        stored = context.suites.add_or_update(ExpectationSuite(name=name, expectations=expectations))
        definition = context.validation_definitions.add_or_update(
            ValidationDefinition(name=name, data=batch, suite=stored)
        )
        checkpoint = context.checkpoints.add_or_update(
            Checkpoint(
                name=name,
                validation_definitions=[definition],
                result_format={"result_format": "SUMMARY", "partial_unexpected_count": examples},
            )
        )
        outcome = checkpoint.run(
            batch_parameters={"dataframe": frame}, run_id=RunIdentifier(run_name=self._run.replace("/", "_"))
        )
        pages += [ExpectationSuiteIdentifier(name), *outcome.run_results]
        return [_result(r, scope) for v in outcome.run_results.values() for r in v.results]


def _import() -> None:
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    logging.getLogger("great_expectations").setLevel(logging.ERROR)
    import great_expectations
    import great_expectations.expectations  # noqa: F401


def _scope(expectation: dict[str, Any]) -> str:
    return "table" if (expectation.get("meta") or {}).get("scope") == "table" else "slice"


def _read_suite(pipeline: Pipeline) -> dict[str, Any] | None:
    file = pipeline.suite_file
    if file is None:
        return None
    try:
        suite = json.loads(file.read_text())
        for item in suite["expectations"]:
            if not isinstance(item["type"], str) or not isinstance(item["kwargs"], dict):
                raise TypeError("an expectation needs type and kwargs")
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ConfigError(
            f"{file.name} is not a Great Expectations suite: {type(error).__name__}: {error}",
            state="nothing was read or written",
            next_step='write {"name": …, "expectations": [{"type": …, "kwargs": {…}, "severity": "critical"}]}',
        ) from None
    suite.setdefault("name", file.stem)
    return dict(suite)


def _result(result: Any, scope: str) -> ExpectationResult:
    config, detail = result.expectation_config, result.result or {}
    raised = [e["exception_message"] for e in _exceptions(result.exception_info) if e.get("raised_exception")]
    columns = config.kwargs.get("column") or ", ".join(config.kwargs.get("column_list", [])) or None
    severity = getattr(config.severity, "value", config.severity) or "critical"
    return ExpectationResult(
        expectation=config.type,
        column=columns,
        severity=str(severity),
        success=bool(result.success),
        observed=_plain(detail.get("observed_value")),
        unexpected_count=detail.get("unexpected_count"),
        unexpected_percent=detail.get("unexpected_percent"),
        examples=[_plain(v) for v in (detail.get("partial_unexpected_list") or [])[:_EXAMPLES]],
        exception=str(raised[0])[:500] if raised else None,
        scope=scope,
    )


def _exceptions(info: Any) -> list[dict[str, Any]]:
    if not info:
        return []
    return [info] if "raised_exception" in info else [v for v in info.values() if isinstance(v, dict)]


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(v) for v in value]
    return str(value)
