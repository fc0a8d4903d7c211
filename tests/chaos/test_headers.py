"""Headers as columns: the same rows on both paths, from the log, and of records that were refused first."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.fixtures.runs import Sandbox

from sluice.local.topics import Record

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.kafka]

NOON = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() * 1000)
GIVEN: list[tuple[list[tuple[str, bytes]], tuple[str | None, str | None] | None]] = [
    ([], (None, None)),
    ([("trace-id", b"a")], ("a", None)),
    ([("trace-id", b"a"), ("o", b"x"), ("trace-id", b"b")], ("b", "x")),
    ([("trace-id", b"a"), ("trace-id", b"")], ("", None)),
    ([("trace-id", b""), ("Trace-Id", b"z"), ("other", b"\xff")], ("", None)),
    ([("o", "é😀".encode()), ("", b"y")], (None, "é😀")),
    ([("o", b"\xff")], None),
    ([("o", b"\xff"), ("o", b"sound")], (None, "sound")),
]
"""Headers, and the columns ``trace`` and ``origin``; None if they refuse the record."""


def configure(sandbox: Sandbox, schema: str = "id BIGINT", **keys: Any) -> None:
    decode = {"json": {"schema": schema, "headers": {"trace": "trace-id", "origin": "o"}}}
    sandbox.configure(decode=decode, quality={"max_quarantined": "100%"}, **keys)


def feed(sandbox: Sandbox) -> None:
    for headers, _ in GIVEN:
        n = len(sandbox.produced)
        sandbox.produce([Record(n % 2, b"k", f'{{"id": {n}}}'.encode(), NOON, headers)])


def rows(sandbox: Sandbox) -> Counter[tuple[int, str | None, str | None]]:
    found = sandbox.rows()
    return Counter() if found is None else Counter((r["id"], r["trace"], r["origin"]) for r in found.to_pylist())


def wanted(count: int) -> Counter[tuple[int, str | None, str | None]]:
    of_each = ((n, GIVEN[n % len(GIVEN)][1]) for n in range(count))
    return Counter((n, *columns) for n, columns in of_each if columns is not None)


@pytest.mark.long
@pytest.mark.parametrize(
    ("recovery", "engine"),
    [
        ("replay", "auto"),
        ("replay", "spark"),
        ("wal", "auto"),
        ("wal", "spark"),
        ("hot", "auto"),
        ("ignore_range", "spark"),
    ],
)
def test_whatever_dies_each_row_has_its_headers(sandbox: Sandbox, recovery: str, engine: str) -> None:
    configure(sandbox, recovery=recovery, engine=engine)
    feed(sandbox)
    sandbox.run("killed", kill_at="sink-committed")
    feed(sandbox)
    sandbox.run("after")
    sandbox.assert_exact()
    assert rows(sandbox) == wanted(16)


@pytest.mark.long
def test_an_interval_and_a_redrive_give_the_same_columns(sandbox: Sandbox) -> None:
    configure(sandbox, schema="id BIGINT, n INT NOT NULL")
    feed(sandbox)
    sandbox.run("refused")
    assert rows(sandbox) == Counter()
    configure(sandbox, schema="id BIGINT, n INT")
    sandbox.run("moved", redriven="quarantined")
    assert rows(sandbox) == wanted(8)
    sandbox.run("again", interval=("2026-03-01", "2026-03-02"))
    assert rows(sandbox) == wanted(8)
    sandbox.assert_balanced()
