"""Patterns of topic names: what is refused, by its place, and what matches."""

from __future__ import annotations

import pytest

from sluice.errors import ConfigError
from sluice.sources.kafka.pattern import matches, problem_of


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        ("orders(", "missing ), unterminated subpattern at position 6"),
        ("*orders", "nothing to repeat at position 0"),
        ("[z-a]", "bad character range z-a at position 1"),
        ("(?!x).*", "look-ahead"),
        (r"(a)\1", "back references"),
        ("(?>a)b", "atomic groups"),
        ("a*+", "possessive"),
        ("(a{1001})", "at most 1000"),
        (r"a\Z", "whole names"),
        ("(?x)a b", "flag"),
    ],
)
def test_what_cannot_be_a_pattern_is_refused_with_its_place(pattern: str, told: str) -> None:
    assert told in str(problem_of(pattern))


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


def test_what_only_re2_refuses_is_a_mistake_too() -> None:
    with pytest.raises(ConfigError, match="not a regular expression of RE2"):
        matches("(a{1000}){1000}", ["a"])
