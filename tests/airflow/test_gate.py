"""The look at the gate: whose limits it takes, and whose ledger."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.airflow.conftest import behind

from sluice.errors import ConfigError
from sluice.home import Home
from sluice.lag import Backlog, Limits
from sluice.pipeline import load
from sluice_airflow import gate

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


@pytest.mark.parametrize(
    ("instead", "limits"),
    [
        ({}, Limits(10)),
        ({"max_records": "7"}, Limits(7)),
        ({"max_age": "15m"}, Limits(10, timedelta(minutes=15))),
        ({"max_age": 900.0, "match": "all"}, Limits(10, timedelta(minutes=15), match="all")),
        ({"max_retention_share": "0.5"}, Limits(10, max_retention_share=0.5)),
    ],
)
def test_an_argument_stands_in_for_the_files_limit(
    pipeline_file: Callable[..., Path], instead: dict[str, Any], limits: Limits
) -> None:
    assert gate.limits_of(load(pipeline_file()), instead) == limits


@pytest.mark.parametrize("wrong", [{"max_records": -1}, {"max_age": "soon"}, {"match": "some"}, {"max_recrods": 1}])
def test_a_limit_that_is_none_is_a_configuration_error(
    pipeline_file: Callable[..., Path], wrong: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        gate.limits_of(load(pipeline_file()), wrong)


def test_the_look_takes_limits_home_and_ledger_from_their_owners(
    pipeline_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def fake(pipeline: Any, cluster: Any, *, home: Any, ledger: Any, limits: Any) -> Backlog:
        seen.append((pipeline.name, cluster.timeout, home, ledger.epoch("demo").number, limits))
        return behind(1)

    monkeypatch.setattr(gate, "backlog", fake)
    found = gate.look(str(pipeline_file()), object(), limits={"max_records": 3}, timeout=4)  # type: ignore[arg-type]
    assert (found.records, seen) == (1, [("demo", 4, Home.from_env(), 1, Limits(3))])
