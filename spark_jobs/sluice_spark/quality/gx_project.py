"""Imports Great Expectations, opens a pipeline's project of it, and builds a suite before a run reads anything."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import json
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from sluice.pipeline.suite import Suite, nearest, place

__all__ = [
    "import_gx", "open_project", "problems_of", "raised", "remember", "remembered", "unevaluated", "warm_up",
]  # fmt: skip

_STAMP = "suite.checked"
_EXTREMES = ("expect_column_max_to_be_between", "expect_column_min_to_be_between")


def import_gx() -> None:
    """Import Great Expectations without its log output; takes seconds."""
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    logging.getLogger("great_expectations").setLevel(logging.ERROR)
    _import_later()

    import sluice_spark.quality.quantiles  # noqa: F401


class _Later(ModuleType):
    """Stands for a module, and imports it when something of it is used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


def _import_later() -> None:
    """Let ``from scipy import stats`` give a :class:`_Later`: few expectations use it, and it takes two seconds.

    Who imports ``scipy.stats`` itself gets the module, in any thread.
    """
    if "scipy.stats" not in sys.modules and importlib.util.find_spec("scipy") is not None:
        import scipy  # type: ignore[import-untyped]

        scipy.stats = _Later("scipy.stats")


def open_project(folder: Path) -> Any:
    """Open the project of Great Expectations in a folder; make it if it is not there.

    Great Expectations reads the project's file of variables each time that it looks at one of its own settings, some
    70 times per judgement. While that file has no variable but the id that Great Expectations made up for its
    statistics, which are off, the project does without it.
    """
    import_gx()
    import great_expectations as gx

    context = gx.get_context(mode="file", project_root_dir=str(folder))
    context.variables.progress_bars = {"globally": False}
    variables = context.variables.config_variables_file_path
    if variables and not _has_variables(Path(context.root_directory) / variables):
        context.variables.config_variables_file_path = None
        context.variables.save()
    return context


def _has_variables(file: Path) -> bool:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return False
    except (OSError, UnicodeDecodeError):
        return True  # its own message is Great Expectations' to tell
    return any(line.strip() and not line.lstrip().startswith(("#", "instance_id:")) for line in lines)


def warm_up() -> threading.Thread:
    """Import Great Expectations in the background, while Spark starts."""
    thread = threading.Thread(target=import_gx, name="sluice-import", daemon=True)
    thread.start()
    return thread


def problems_of(suite: Suite) -> list[str]:
    """Return a message for each expectation that cannot be judged.

    It is of an unknown type, has wrong arguments or a bound that is compared with nothing, or Great Expectations has no
    implementation of it for Spark.
    """
    import_gx()
    from great_expectations.exceptions import ExpectationNotFoundError
    from great_expectations.expectations.registry import (
        get_expectation_impl,
        list_registered_expectation_implementations,
    )

    lines = []
    for number, item in enumerate(suite.expectations, start=1):
        try:
            configured(item).to_domain_obj()
            lines += [f"{place(number, item)}: {text}" for text in _unjudged(item, get_expectation_impl(item["type"]))]
        except ExpectationNotFoundError:
            known = sorted(list_registered_expectation_implementations())
            hint = nearest(item["type"], known, "the known types are")
            lines.append(f"expectation {number}: there is no expectation {item['type']!r}; {hint}")
        except Exception as error:
            model = get_expectation_impl(item["type"])
            arguments = list(dict.fromkeys((*model.domain_keys, *model.success_keys)))
            lines += [f"{place(number, item)}: {text}" for text in _told(error, arguments)]
    return lines


def unevaluated(spark: SparkSession, suite: Suite, schema: StructType) -> list[str]:
    """Return a message for each expectation that Spark cannot evaluate on rows of a schema, whatever their values.

    Each is tried on one row without values; for a pattern, with empty texts.
    """
    import great_expectations as gx

    context, lines = gx.get_context(mode="ephemeral"), []
    context.variables.progress_bars = {"globally": False}
    asset = context.data_sources.add_spark("tried", persist=False).add_dataframe_asset("tried")
    batch = asset.add_batch_definition_whole_dataframe("tried")
    for number, item in enumerate(suite.expectations, start=1):
        texts = "" if "regex" in item["type"] else None
        row = [texts if isinstance(field.dataType, StringType) else None for field in schema.fields]
        fields = [StructField(field.name, field.dataType) for field in schema.fields]
        rows = batch.get_batch({"dataframe": spark.createDataFrame([tuple(row)], StructType(fields))})
        result = rows.validate(configured(item).to_domain_obj(), result_format="BOOLEAN_ONLY")
        said = next((found for text in raised(result) if (found := _OF_SPARK.match(text))), None)
        if said is not None:
            lines.append(f"{place(number, item)}: {said[0][:300]}")
    return lines


_OF_SPARK = re.compile(r"\[[A-Z_.]+\] .*|java\.util\.regex\.PatternSyntaxException.*")
"""The first line of an error that Spark has a name for; others may be of a row without values."""


def configured(item: Mapping[str, Any]) -> Any:
    """Return an expectation as Great Expectations' own object."""
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    return ExpectationConfiguration(**item)


def raised(result: Any) -> list[str]:
    """Return the messages of the exceptions that an expectation raised; of one in a task, that of its cause."""
    info = result.exception_info or {}
    found = [info] if "raised_exception" in info else [v for v in info.values() if isinstance(v, dict)]
    texts = (str(e["exception_message"]).strip() for e in found if e.get("raised_exception"))
    return [causes[-1] if (causes := re.findall("Caused by: (.+)", text)) else text for text in texts]


def _unjudged(item: Mapping[str, Any], model: Any) -> Iterator[str]:
    from great_expectations.exceptions import MetricProviderError
    from great_expectations.execution_engine import SparkDFExecutionEngine
    from great_expectations.expectations.registry import get_metric_provider

    if (metric := getattr(model, "map_metric", None)) is not None and not hasattr(model, "_validate_spark"):
        try:
            # it is asked for its class alone
            get_metric_provider(f"{metric}.condition", SparkDFExecutionEngine.__new__(SparkDFExecutionEngine))
        except MetricProviderError:
            yield "Great Expectations cannot judge it on Spark"
    given = item.get("kwargs") or {}
    low, high = given.get("min_value"), given.get("max_value")
    with contextlib.suppress(TypeError):  # Great Expectations itself refuses bounds of two types
        if low is not None and high is not None and low > high:
            yield f"min_value {low} is greater than max_value {high}"
    if item["type"] in _EXTREMES:
        for name in ("min_value", "max_value"):
            with contextlib.suppress(ValueError, TypeError):
                if datetime.fromisoformat(item["kwargs"].get(name)).tzinfo is not None:
                    yield f"{name}: write the time without a zone, in UTC: it is compared with one without a zone"


def remembered(suite: Suite, folder: Path) -> bool:
    """Return whether exactly this suite had no problem with this version of Great Expectations."""
    try:
        return (folder / _STAMP).read_text() == _stamp(suite)
    except (OSError, UnicodeDecodeError):
        return False


def remember(suite: Suite, folder: Path) -> None:
    """Record that a suite has no problem; if that fails, the suite is checked again next time."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _STAMP).write_text(_stamp(suite))


def _stamp(suite: Suite) -> str:
    text = json.dumps([version("great_expectations"), 2, suite.expectations], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _told(error: Exception, arguments: list[str]) -> list[str]:
    errors: Any = getattr(error, "errors", None)
    if not callable(errors):
        return [f"{type(error).__name__}: {error}"]
    by_key: dict[str, list[str]] = {}
    for detail in errors():
        key = ".".join(str(part) for part in detail["loc"] if part != "__root__")
        unknown = f"unknown argument; {nearest(key, arguments, 'its arguments are')}"
        by_key.setdefault(key, []).append(unknown if detail["type"] == "value_error.extra" else detail["msg"])
    return [f"{key}: {', or '.join(dict.fromkeys(told))}" if key else ", ".join(told) for key, told in by_key.items()]
