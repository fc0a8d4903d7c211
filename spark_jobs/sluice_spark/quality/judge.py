"""Validates what a run wrote with Great Expectations, in the run's Spark application."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sluice.errors import ConfigError, described
from sluice.home import Home
from sluice.ledger import Ledger
from sluice.pipeline import Pipeline
from sluice.pipeline.suite import Suite, missing_columns
from sluice.ranges import Counts
from sluice.run.circuit_breaker import FAILED
from sluice.run.verdict import accepted_faults, faults, worse
from sluice_spark.engine.failures import no_file_system
from sluice_spark.engine.logs import logger
from sluice_spark.quality.data_docs import build, prune
from sluice_spark.quality.evidence import evidence_of, fails_on, hide, hush, look, short, shows
from sluice_spark.quality.gx_project import open_project, problems_of, raised, remember, remembered, warm_up
from sluice_spark.quality.history import with_past
from sluice_spark.quality.judgement import ExpectationResult, Judgement
from sluice_spark.quality.limits import Excess, excesses
from sluice_spark.quality.shuffle import few_shares
from sluice_spark.sinks.base import ReadableSink

__all__ = ["Judge"]

_OF_SETS = "expect_column_distinct_values_to_"
"""Expectations whose missing values are those of the set; of the others, rows without a value."""


class Judge:
    """Evaluates the pipeline's suite on the rows of a run, and its table-level part on the whole table.

    An expectation is table-level if its ``meta`` is ``{"scope": "table"}``. The row count is always compared with what
    the run wrote, so that an empty or incomplete slice cannot pass. Either every expectation of the suite is evaluated,
    or the verdict is ``error``.

    Raises
    ------
    ConfigError
        If the suite's file is invalid, as far as that can be found without Great Expectations.
    """

    def __init__(self, pipeline: Pipeline, home: Home, run_id: str) -> None:
        self._pipeline = pipeline
        self._home = home
        self._run = run_id
        self._suite = Suite.of(pipeline)
        self._import: threading.Thread | None = None

    def warm_up(self) -> None:
        """Import Great Expectations in the background, while Spark starts."""
        if self._suite is not None:
            self._import = warm_up()

    def check(self) -> None:
        """Refuse a suite unless Great Expectations can build every expectation.

        The check waits for the import, so it runs once per suite and version of Great Expectations; the home records
        accepted suites.

        Raises
        ------
        ConfigError
            With every mistake.
        """
        folder = self._folder
        unread = self._suite.out_of_reach(self._pipeline) if self._suite is not None else []
        if self._suite is not None and unread:
            raise self._suite.refuse(unread)
        if self._suite is None or remembered(self._suite, folder):
            return
        if self._import is not None:
            self._import.join()
        problems = problems_of(self._suite)
        if problems:
            raise self._suite.refuse(problems)
        remember(self._suite, folder)

    def check_columns(self, columns: Sequence[str]) -> None:
        """Refuse a suite, or another key of ``quality``, that names a column that the sink's rows do not have.

        Raises
        ------
        ConfigError
            With each such column and the most similar existing one.
        """
        for key, wrong in missing_columns(self._pipeline.quality, columns):
            raise ConfigError(
                f"quality.{key}: {wrong}",
                state="nothing was read or written",
                next_step=f"correct quality.{key}: a name that matches no column does nothing",
            )
        problems = self._suite.unknown_columns(columns) if self._suite is not None else []
        if self._suite is not None and problems:
            raise self._suite.refuse(problems)

    def settle(
        self, ledger: Ledger, open_session: Callable[[], SparkSession], sink: ReadableSink, runs: Sequence[str]
    ) -> Judgement:
        """Validate these runs: their rows, and how many of their records were refused or lost.

        If nothing was written, there is no slice to validate and no session is opened. If an interval only removed
        rows, the table-level expectations are evaluated. What a user accepted before it was published only warns,
        unless more is wrong.

        Returns
        -------
        Judgement
            With ``error`` set if the validation itself failed. Only errors of the ledger are raised.
        """
        name = self._pipeline.name
        counts = sum((a.counts for run in runs for a in ledger.offsets.accounts(name, run, standing=True)), Counts())
        exceeded = tuple(excesses(self._pipeline.quality, counts))
        for excess in exceeded:
            logger.warning("%s: %s", excess.verdict, excess)
        wrote = counts.written > 0
        told = [ledger.runs.account(name, run) for run in runs]
        # a run may write rows of records that earlier runs read
        wrote = wrote or any(isinstance(each, dict) and each.get("rows") for a in told for each in a.values())
        changed = wrote or any(account.get("replaced") for account in told)
        readable = self._pipeline.sink.kind.readable
        if changed and readable:
            try:
                judgement = self.judge(open_session(), sink, runs, wrote=wrote)
            except Exception as error:
                logger.exception("judging failed")
                judgement = self._error(error, runs)
        else:
            judgement = Judgement(self.name, 0, runs=tuple(runs), wrote=wrote)
        hidden = (
            self._pipeline.aggregates or self._pipeline.sink.config.keyed
        )  # records need not have a row of their own
        if readable and wrote and not judgement.rows and judgement.error is None and not hidden:
            gone = f"the sink holds none of the {counts.written:,} records that were written: all were deleted since"
            judgement = replace(judgement, error=gone)
        judgement = with_past(replace(judgement, excesses=exceeded), self._pipeline, ledger, runs)
        if judgement.verdict in FAILED:
            known = accepted_faults(ledger.verdicts.settled_of(name, runs))
            if known and not worse(known, faults(judgement.as_dict())):
                why = "before its batch was published, a user accepted what is wrong with it"
                judgement = judgement.accepted(Excess("accepted", "warned", why))
        logger.info("verdict %s", judgement.verdict)
        return judgement

    def idle(self, ledger: Ledger, run_id: str) -> Judgement:
        """Judge a run that found nothing new: whether its table is fresh."""
        return with_past(
            Judgement(self.name, 0, runs=(run_id,), wrote=False), self._pipeline, ledger, [run_id], of=["freshness"]
        )

    def judge(self, spark: SparkSession, sink: ReadableSink, runs: Sequence[str], *, wrote: bool = True) -> Judgement:
        """Validate the rows of ``runs``.

        Parameters
        ----------
        wrote
            Whether they wrote any; if not, only table-level expectations are evaluated.

        Returns
        -------
        Judgement
            With ``error`` set if the validation itself failed. Nothing is raised: the data is already committed.
        """

        def slices() -> tuple[dict[str, Callable[[], DataFrame]], int]:
            rows, count = sink.rows_of(spark, runs)
            # the whole table is opened only if an expectation needs it, because Spark requests each file's status
            return {"slice": lambda: rows, "table": lambda: sink.rows(spark)}, count

        return self._judged(slices, runs, wrote=wrote)

    def inspect(self, rows: Callable[[], DataFrame], count: int, counts: Counts) -> Judgement:
        """Validate the rows of a batch that is not committed yet, and its limits.

        Parameters
        ----------
        rows
            Returns the staged rows; called if there are any.
        count
            How many they are.
        counts
            The split of the batch's offsets.

        Returns
        -------
        Judgement
            With ``error`` set if the validation itself failed. Nothing is raised.
        """
        exceeded = tuple(excesses(self._pipeline.quality, counts))
        for excess in exceeded:
            logger.warning("%s: %s", excess.verdict, excess)
        judgement = Judgement(self.name, 0, runs=(self._run,), wrote=False)
        if count:
            judgement = self._judged(lambda: ({"slice": rows}, count), [self._run], wrote=True)
        return replace(judgement, excesses=exceeded)

    def _judged(
        self,
        slices: Callable[[], tuple[Mapping[str, Callable[[], DataFrame]], int]],
        runs: Sequence[str],
        *,
        wrote: bool,
    ) -> Judgement:
        began = time.monotonic()
        if self._import is not None:
            self._import.join()
        waited = time.monotonic() - began
        try:
            scopes, count = slices()
            judgement = self._validate(scopes, count, runs, wrote=wrote)
        except Exception as error:
            if (told := no_file_system(error)) is None:
                logger.exception("judging failed")
            else:
                logger.error("judging failed: %s", told)
            return self._error(told or error, runs)
        for broken in (r for r in judgement.results if not r.success):
            logger.warning("%s", broken)
        seconds = time.monotonic() - began
        logger.info(
            "judged %s: %d expectations, and the number of rows (%s), in %.1f s (%.1f s of it waiting for the import)",
            judgement.verdict, len(judgement.results) - 1, f"{judgement.rows:,}", seconds, waited,
        )  # fmt: skip
        return judgement

    @property
    def name(self) -> str:
        """The name of the suite; ``none`` without one."""
        return self._suite.name if self._suite is not None else "none"

    @property
    def _folder(self) -> Path:
        return Path(self._home.data_docs) / self._pipeline.name

    def _error(self, error: Exception, runs: Sequence[str]) -> Judgement:
        return Judgement(self.name, 0, error=described(error)[:2000], runs=tuple(runs))

    def _validate(
        self, scopes: Mapping[str, Callable[[], DataFrame]], rows: int, runs: Sequence[str], *, wrote: bool
    ) -> Judgement:
        folder = self._folder
        os.makedirs(folder, exist_ok=True)
        with open(folder / ".lock", "w") as lock:  # intervals may be validated concurrently, in one context
            fcntl.flock(lock, fcntl.LOCK_EX)
            return self._validate_alone(scopes, rows, runs, folder, wrote=wrote)

    def _validate_alone(
        self,
        scopes: Mapping[str, Callable[[], DataFrame]],
        rows: int,
        runs: Sequence[str],
        folder: Path,
        *,
        wrote: bool,
    ) -> Judgement:
        prune(folder)
        context = open_project(folder)
        right_count = {"type": "expect_table_row_count_to_equal", "kwargs": {"value": rows}, "severity": "critical"}
        split: dict[str, list[dict[str, Any]]] = {"slice": [right_count], "table": []}
        for item in self._suite.expectations if self._suite is not None else ():
            split[_scope(item)].append(item)
        if not wrote:
            split["slice"] = [right_count]
        results: list[ExpectationResult] = []
        pages: list[Any] = []
        for scope, expectations in split.items():
            if not expectations:
                continue
            frame = scopes[scope]()
            with few_shares(frame.sparkSession, rows) if scope == "slice" else nullcontext():
                results += self._evaluate(context, scope, frame, expectations, pages)
        try:
            index = build(context, folder, pages)
        except Exception:  # the results are valid without their pages
            logger.exception("Data Docs could not be built")
            index = None
        return Judgement(self.name, rows, tuple(results), data_docs=index, runs=tuple(runs), wrote=wrote)

    def _evaluate(
        self,
        context: Any,
        scope: str,
        frame: DataFrame,
        expectations: list[dict[str, Any]],
        pages: list[Any],
    ) -> list[ExpectationResult]:
        """Evaluate expectations; add the pages that Data Docs must render again to ``pages``.

        Counts come first: the rows that break an expectation cost Spark jobs, and are looked at only if there are any.
        """
        from great_expectations import Checkpoint, ExpectationSuite, ValidationDefinition
        from great_expectations.core.run_identifier import RunIdentifier
        from great_expectations.data_context.types.resource_identifiers import ExpectationSuiteIdentifier

        name = f"{self._pipeline.name}-{scope}"
        source = context.data_sources.add_or_update_spark(name, persist=False)
        batch = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe(name)
        suite = ExpectationSuite(name=name, expectations=expectations)
        # it drops expectations that it cannot build, with only a line in its log
        _all_of(expectations, [e.expectation_type for e in suite.expectations], "built")
        stored = context.suites.add_or_update(suite)
        definition = context.validation_definitions.add_or_update(
            ValidationDefinition(name=name, data=batch, suite=stored)
        )
        checkpoint = context.checkpoints.add_or_update(
            Checkpoint(
                name=name,
                validation_definitions=[definition],
                result_format={"result_format": "SUMMARY", "partial_unexpected_count": 0},
            )
        )
        outcome = checkpoint.run(
            batch_parameters={"dataframe": frame}, run_id=RunIdentifier(run_name=self._run.replace("/", "_"))
        )
        pages += [ExpectationSuiteIdentifier(name), *outcome.run_results]
        rows = batch.get_batch({"dataframe": frame})
        for page, found in outcome.run_results.items():
            if self._explain(found.results, rows, frame.columns):
                self._store(context.validation_results_store, page, found)
        results = [_result(r, scope) for v in outcome.run_results.values() for r in v.results]
        _all_of(expectations, [r.expectation for r in results], "evaluated")
        return results

    def _store(self, store: Any, page: Any, found: Any) -> None:
        """Replace what is stored for Data Docs; what may show masked values does not stay."""
        try:
            store.set(page, found)
        except Exception:
            logger.exception("Data Docs lack what broke the expectations")
            if self._pipeline.quality.masked:
                store.remove_key(page)

    def _explain(self, results: Sequence[Any], rows: Any, columns: Sequence[str]) -> bool:
        """Add to each failed result what its rows show, and take masked values out; return whether any was changed."""
        changed, masked = False, self._pipeline.quality.masked
        for result in results:
            if raised(result) and len(results) > 1:  # one query answers several, and all of them get its error
                alone = rows.validate(result.expectation_config.to_domain_obj(), result_format="SUMMARY")
                result.success, result.result, changed = alone.success, alone.result, True
                result.exception_info = alone.exception_info
            kwargs = result.expectation_config.kwargs
            hidden = shows(kwargs, masked)
            if not result.success and not raised(result):
                found = self._looked(rows, result, columns, hidden=hidden or fails_on(kwargs, masked))
                if found is not None:
                    result.result, changed = found, True
            if hidden:
                result.result, changed = hide(result.result or {}), True
            if raised(result) and (hidden or fails_on(kwargs, masked)):
                result.exception_info, changed = hush(result.exception_info), True
        return changed

    def _looked(self, rows: Any, result: Any, columns: Sequence[str], *, hidden: bool) -> Any | None:
        """Return a failed result with its rows; None if they cannot be looked at. What was counted counts."""
        try:
            found = look(rows, result, columns)
            evidence_of(found.result or {})
        except Exception as error:
            what = type(error).__name__ if hidden else described(error)
            logger.warning("what broke %s is not shown: %s", result.expectation_config.type, what[:2000])
            return None
        return None if found.success or raised(found) else found.result


def _all_of(asked: Sequence[Mapping[str, Any]], done: Sequence[str], what: str) -> None:
    missing = Counter(item["type"] for item in asked) - Counter(done)
    if missing:
        names = ", ".join(sorted(missing.elements()))
        raise RuntimeError(f"{missing.total()} of {len(asked)} expectations were not {what}: {names}")


def _scope(expectation: dict[str, Any]) -> str:
    return "table" if (expectation.get("meta") or {}).get("scope") == "table" else "slice"


def _result(result: Any, scope: str) -> ExpectationResult:
    config, detail = result.expectation_config, result.result or {}
    errors = raised(result)
    of = [config.kwargs[key] for key in ("column", "column_A", "column_B") if config.kwargs.get(key)]
    columns = ", ".join([*of, *config.kwargs.get("column_list", [])]) or None
    severity = getattr(config.severity, "value", config.severity) or "critical"
    return ExpectationResult(
        expectation=config.type,
        column=columns,
        severity=str(severity),
        success=bool(result.success),
        observed=short(detail.get("observed_value")),
        unexpected_count=_whole(detail.get("unexpected_count")),
        unexpected_percent=_finite(detail.get("unexpected_percent")),
        missing_count=_whole(detail.get("missing_count")) if config.type.startswith(_OF_SETS) else None,
        **evidence_of(detail),
        exception=errors[0][:500] if errors else None,
        scope=scope,
        arguments=_digest(config.kwargs),
        expected=_expected(config.kwargs),
    )


def _expected(kwargs: Mapping[str, Any]) -> str | None:
    """Return an expectation's bounds in words; None if its name says all."""
    given = {k: v for k, v in kwargs.items() if v not in (None, False, [], {}) and k not in _NO_BOUNDS}
    low, high = (_short(kwargs.get(key)) for key in ("min_value", "max_value"))
    above = f"{'more than' if given.pop('strict_min', False) else 'at least'} {low}"
    below = f"{'less than' if given.pop('strict_max', False) else 'at most'} {high}"
    said = [above] if high is None else [below] if low is None else [f"{above} and {below}"]
    if above.startswith("at least") and below.startswith("at most") and None not in (low, high):
        said = [f"between {low} and {high}"]
    rest = {k: v for k, v in given.items() if k not in ("min_value", "max_value")}
    listed = (f"{k} {', '.join(map(str, v)) if isinstance(v, list | tuple) else v}"[:200] for k, v in rest.items())
    return "; ".join([*(said if (low, high) != (None, None) else []), *listed]) or None


def _short(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


_NO_BOUNDS = {"batch_id", "column", "column_A", "column_B", "column_list"}
"""Arguments that the name of a result has."""


def _digest(kwargs: Mapping[str, Any]) -> str:
    given = {key: value for key, value in kwargs.items() if key != "batch_id"}
    return hashlib.sha256(json.dumps(given, sort_keys=True, default=str).encode()).hexdigest()[:8]


def _finite(value: Any) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None


def _whole(value: Any) -> int | None:
    found = _finite(value)
    return None if found is None else int(found)
