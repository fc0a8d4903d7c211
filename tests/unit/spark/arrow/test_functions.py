"""How an expression is named that keeps a pipeline from the Arrow path."""

from __future__ import annotations

import sqlglot

from sluice_spark.arrow.functions import _shown


def test_a_long_expression_is_cut_where_it_says_so() -> None:
    assert _shown(sqlglot.parse_one("TRY_CAST(a AS INT)", read="spark")) == "TRY_CAST(a AS INT)"
    long = _shown(sqlglot.parse_one(f"concat({', '.join(['amount'] * 20)})", read="spark"))
    assert (len(long), long[-1]) == (61, "…")
