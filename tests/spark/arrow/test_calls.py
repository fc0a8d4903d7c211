"""Functions of Arrow tables as transforms: the same rows on both paths, and none that no record has."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.inside import MODULES
from tests.fixtures.runs import Sandbox, good

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
    assert table is not None
    return {"spark" if "-c000" in uri else "arrow" for uri in table.file_uris()}


def test_rows_are_added_to_and_left_out(sandbox: Sandbox, engine: str) -> None:
    configure(sandbox, "shorter", engine, rows="filter")
    sandbox.feed(40, bad_every=10)
    said = sandbox.run("r").stderr
    rows = sandbox.rows()
    assert rows is not None
    assert written_by(sandbox) == {"spark" if engine == "spark" else "arrow"}, said
    assert set(rows.column("size").to_pylist()) == {6, 7}
    kept = Counter(o for o in sandbox.produced if o[2] % 4 != 3)
    bad = Counter(o for n, o in enumerate(sandbox.produced) if n % 10 == 0)
    assert sandbox.sink() == kept - bad
    account = sandbox.account("r")
    assert (account["written"], account["quarantined"]) == (sum((kept - bad).values()), 4)
    assert account["filtered"] == 40 - 4 - account["written"]


def test_rows_may_be_many_if_the_file_says_so(sandbox: Sandbox, engine: str) -> None:
    configure(sandbox, "twice", engine, rows="many")
    sandbox.feed(30)
    sandbox.run("r")
    assert sandbox.sink() == Counter(sandbox.produced) + Counter(sandbox.produced[::2])
    assert sandbox.account("r")["written"] == 30


@pytest.mark.parametrize(
    ("function", "code", "why"),
    [
        ("twice", 10, "the promise about rows is broken"),
        ("moved", 10, "changes metadata columns"),
        ("moody", 1, "transform.arrow returned the columns"),
        ("ending", 1, "transform.arrow called exit(3) instead of returning a table"),
        ("nothing", 10, "transform.arrow returned NoneType, not a pyarrow.Table"),
    ],
)
def test_other_results_are_refused(sandbox: Sandbox, engine: str, function: str, code: int, why: str) -> None:
    configure(sandbox, function, engine)
    sandbox.feed(30)
    refused = sandbox.run("r", expect=code)
    assert why in refused.message
    assert sandbox.table() is None


def test_types_are_those_of_spark(sandbox: Sandbox, engine: str) -> None:
    configure(sandbox, "large", engine)
    sandbox.produce([(0, None, good(n)) for n in range(5)])
    sandbox.run("r")
    sandbox.assert_exact()
    rows = sandbox.rows()
    assert rows is not None
    assert sorted(rows.column("name").to_pylist()) == [f"name {n}" for n in range(5)]


def test_days_that_some_readers_rebase_are_written_by_spark(sandbox: Sandbox, engine: str) -> None:
    configure(sandbox, "old", engine)
    sandbox.produce([(0, None, good(n)) for n in range(5)])
    sandbox.run("r")
    sandbox.assert_exact()
    assert written_by(sandbox) == {"spark"}


def test_a_function_that_is_not_there_and_one_for_aggregates_are_refused(sandbox: Sandbox) -> None:
    for keys, why in (
        ({"transform": {"arrow": "tables:gone"}}, "module 'tables' has no function 'gone'"),
        ({"transform": {"arrow": "tables:twice"}, "rows": "aggregate"}, "rows: aggregate needs a whole batch"),
    ):
        sandbox.configure(**keys)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=why):
            load(Path(sandbox.file))
