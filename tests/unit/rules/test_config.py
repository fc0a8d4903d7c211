"""Conditions of row rules: only functions of one record are taken."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from sluice.rules.config import SqlRule


@pytest.mark.parametrize(
    "passes",
    [
        "rand() > 0.5",
        "_timestamp > now() - INTERVAL 7 DAYS",
        "_timestamp > CURRENT_TIMESTAMP",
        "day = current_date()",
        "row_number() OVER (PARTITION BY id ORDER BY _offset) = 1",
        "id IN (SELECT id FROM known)",
        "EXISTS (SELECT 1)",
        "uuid() <> ''",
        "at > unix_timestamp( )",
    ],
)
def test_sql_rule_refuses_a_condition_with_two_answers(passes: str) -> None:
    with pytest.raises(ValidationError):
        SqlRule(passes=passes)


@pytest.mark.parametrize(
    "passes",
    [
        "brand = 'x' AND overall > 1",
        "name <> 'now()' -- rand() was here",
        "`select` IS NOT NULL",
        "nowhere > 1 AND selected",
        "uuid IS NOT NULL AND now > 1 AND over <> 2",
        "unix_timestamp(at, 'yyyy') > 0",
        "exists(items, i -> i > 1)",
        "action IN ('select', \"over\")",
    ],
)
def test_sql_rule_takes_a_condition_of_one_record(passes: str) -> None:
    assert SqlRule(passes=passes).passes == passes
