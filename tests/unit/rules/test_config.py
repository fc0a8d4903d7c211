"""Conditions of row rules: only functions of one record are taken."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from pydantic import ValidationError

from sluice.rules.config import SqlRule


@pytest.mark.parametrize(
    ("passes", "taken"),
    [
        ("rand() > 0.5", False),
        ("_timestamp > now() - INTERVAL 7 DAYS", False),
        ("_timestamp > CURRENT_TIMESTAMP", False),
        ("day = current_date()", False),
        ("row_number() OVER (PARTITION BY id ORDER BY _offset) = 1", False),
        ("id IN (SELECT id FROM known)", False),
        ("EXISTS (SELECT 1)", False),
        ("uuid() <> ''", False),
        ("at > unix_timestamp( )", False),
        ("brand = 'x' AND overall > 1", True),
        ("name <> 'now()' -- rand() was here", True),
        ("`select` IS NOT NULL", True),
        ("nowhere > 1 AND selected", True),
        ("uuid IS NOT NULL AND now > 1 AND over <> 2", True),
        ("unix_timestamp(at, 'yyyy') > 0", True),
        ("exists(items, i -> i > 1)", True),
        ("action IN ('select', \"over\")", True),
    ],
)
def test_sql_rule_takes_a_condition_of_one_record_and_refuses_one_with_two_answers(passes: str, taken: bool) -> None:
    with nullcontext() if taken else pytest.raises(ValidationError):
        assert SqlRule(passes=passes).passes == passes
