"""The key ``source.jdbc``: what cannot be meant is refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from sluice.sources.jdbc.config import JdbcSource

GOOD: dict[str, Any] = {"table": "orders", "key": "id"}


def test_the_stream_is_the_table() -> None:
    source = JdbcSource.model_validate(GOOD | {"lag": "5m"})
    assert (source.streams, source.needs, source.lag) == (["public.orders"], "postgres_default", timedelta(minutes=5))
    assert source.shown == "public.orders (postgres_default)"


def test_a_query_may_end_as_in_a_shell() -> None:
    source = JdbcSource.model_validate({"query": " select id\nFROM orders ;\n", "key": "id"})
    assert (source.query, source.streams) == ("select id\nFROM orders", ["query"])
    JdbcSource.model_validate({"query": "WITH a AS (SELECT 1 AS id) SELECT * FROM a", "key": "id"})


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"query": "SELECT 1"}, "exactly one of: table, query"),
        ({"table": None}, "exactly one of: table, query"),
        ({"table": "a.b.c"}, "SCHEMA.TABLE"),
        ({"table": "o" * 64}, "63 bytes"),
        ({"table": None, "query": "DELETE FROM orders"}, "begins with SELECT or WITH"),
        ({"key": ""}, "at least 1 character"),
        ({"unique": []}, "at least 1 item"),
        ({"unique": ["a", "a"]}, "stands twice"),
        ({"starting_offsets": "latest"}, "earliest"),
    ],
)
def test_refused(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        JdbcSource.model_validate(GOOD | keys)
