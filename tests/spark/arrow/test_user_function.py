"""Functions of Arrow tables as transforms: the same rows on both paths, and none that no record has."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.inside import MODULES
from tests.fixtures.runs import Sandbox, good
from tests.fixtures.specs import GOOD, write

from sluice.errors import ConfigError
from sluice.pipeline import load
from sluice_spark.arrow import shares

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(MODULES))


@pytest.fixture(params=["driver", "workers", "spark"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the function is called."""
    if request.param == "workers":
        monkeypatch.setattr(shares, "_HERE", 0)
    return "spark" if request.param == "spark" else "auto"


def configure(sandbox: Sandbox, function: str, engine: str, **keys: Any) -> None:
    """Write a pipeline file with a function as its transform."""
    sandbox.configure(
        transform={"arrow": f"tables:{function}"}, engine=engine, kafka={"max_records_per_batch": 100},
        quality={"max_quarantined": 1}, **keys,
    )  # fmt: skip


def written_by(sandbox: Sandbox) -> set[str]:
    """Return which path wrote the table's files."""
    table = sandbox.table()
    return {"spark" if "-c000" in uri else "arrow" for uri in table.file_uris()}


def test_arrow_function_may_add_columns_and_leave_out_rows(sandbox: Sandbox, engine: str) -> None:
    configure(sandbox, "shorter", engine, rows="filter")
    sandbox.feed(40, bad_every=10)
    said = sandbox.run("r").stderr
    rows = sandbox.rows()
    assert written_by(sandbox) == {"spark" if engine == "spark" else "arrow"}, said
    assert set(rows.column("size").to_pylist()) == {6, 7}
    kept = Counter(o for o in sandbox.produced if o[2] % 4 != 3)
    bad = Counter(o for n, o in enumerate(sandbox.produced) if n % 10 == 0)
    assert sandbox.sink() == kept - bad
    account = sandbox.account("r")
    assert (account["written"], account["quarantined"]) == (sum((kept - bad).values()), 4)
    assert account["filtered"] == 40 - 4 - account["written"]


@pytest.mark.long
def test_arrow_function_may_return_many_rows_if_the_file_says_so(sandbox: Sandbox) -> None:
    configure(sandbox, "twice", "auto", rows="many")
    sandbox.feed(30)
    sandbox.run("r")
    assert sandbox.sink() == Counter(sandbox.produced) + Counter(sandbox.produced[::2])
    assert sandbox.account("r")["written"] == 30


@pytest.mark.parametrize(
    ("function", "code", "named"),
    [
        ("twice", 10, "rows"),
        ("moved", 10, "metadata"),
        ("moody", 1, "columns"),
        ("ending", 1, "exit(3)"),
        ("nothing", 10, "NoneType"),
    ],
)
def test_arrow_function_with_odd_results_ends_the_run(sandbox: Sandbox, function: str, code: int, named: str) -> None:
    configure(sandbox, function, "auto")
    sandbox.feed(30)
    assert named in sandbox.run("r", expect=code).message
    assert sandbox.table() is None


@pytest.mark.parametrize(("function", "way"), [("large", "arrow"), ("old", "spark")])
def test_arrow_function_has_types_of_spark_which_writes_old_days(sandbox: Sandbox, function: str, way: str) -> None:
    configure(sandbox, function, "auto")
    sandbox.produce([(0, None, good(n)) for n in range(5)])
    sandbox.run("r")
    sandbox.assert_exact()
    rows = sandbox.rows()
    assert sorted(rows.column("name").to_pylist()) == [f"name {n}" for n in range(5)]
    assert written_by(sandbox) == {way}


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"transform": {"arrow": "tables:gone"}}, "gone"),
        ({"transform": {"arrow": "tables:twice"}, "rows": "aggregate"}, "rows: aggregate"),
    ],
)
def test_arrow_function_that_is_gone_or_aggregates_is_refused(tmp_path: Path, keys: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load(write(tmp_path, GOOD + "".join(f"{key}: {json.dumps(value)}\n" for key, value in keys.items())))
