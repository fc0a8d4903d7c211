"""Patterns of topic names: what is refused, and what matches."""

from __future__ import annotations

import pytest

from sluice.sources.kafka.pattern import matches, problem_of


@pytest.mark.parametrize(
    "pattern",
    ["orders(", "*orders", "[z-a]", "(?!x).*", r"(a)\1", "(?>a)b", "a*+", "(a{1001})", r"a\Z", "(?x)a b", "a)|(b",
     "(a{1000}){1000}"],
)  # fmt: skip
def test_what_re2_does_not_take_is_refused_in_its_words(pattern: str) -> None:
    assert "is not a regular expression of RE2" in str(problem_of(pattern))


def test_a_pattern_matches_whole_names() -> None:
    names = ["orders.a", "orders-a", "my.orders.a", "orders.a.b", "ORDERS.A"]
    assert matches(r"orders\..*", names) == ["orders.a", "orders.a.b"]
    assert matches("orders.a|my.*", names) == ["orders.a", "orders-a", "my.orders.a"]
    assert matches(r"(?i)orders\.a$", names) == ["orders.a", "ORDERS.A"]
    assert matches("x", []) == []


def test_no_pattern_takes_long() -> None:
    """Python's own engine would not come back from this one."""
    assert problem_of("(a+)+b") is None
    assert matches("(a+)+b", ["a" * 249]) == []
