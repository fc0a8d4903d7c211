"""What a run's log leaves out."""

from __future__ import annotations

import logging

import pytest
from pyspark.errors import PySparkException

from sluice_spark.engine.logs import logger, set_up


def test_the_stack_of_each_failed_query_is_no_line_of_the_log(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Context:
        def contextType(self) -> object:
            return type("Kind", (), {"name": "SQL"})

    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", logger.propagate)
    set_up()
    failed = PySparkException("Division by zero", errorClass=None, contexts=[Context()])  # type: ignore[list-item]
    failed._log_exception()
    logger.info("told")
    said = capfd.readouterr().err
    assert "Division" not in said
    assert "sluice: told" in said
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.WARNING)
