"""What a pipeline file may say of row rules."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sluice.pipeline.model import model_for
from sluice.rules.config import SqlRule

SPEC: dict[str, Any] = {
    "pipeline": "p", "source": {"kafka": {"topics": ["t"]}}, "decode": {"text": {}}, "sink": {"delta": {"path": "p"}},
}  # fmt: skip


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
def test_a_condition_that_may_give_two_answers_is_refused(passes: str) -> None:
    with pytest.raises(ValidationError, match="a function of one record"):
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
def test_other_conditions_are_taken(passes: str) -> None:
    assert SqlRule(passes=passes).passes == passes


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ([{"name": "a", "sql": {"passes": "x"}}, {"name": "a", "sql": {"passes": "y"}}], "'a' appears twice"),
        ([{"name": "a"}], "exactly one of: sql, not_null"),
        ([{"name": "a", "sql": {"passes": "x"}, "not_null": {"columns": ["x"]}}], "exactly one of: sql, not_null"),
        ([{"name": "A b", "sql": {"passes": "x"}}], "use a-z, 0-9 and _"),
        ([{"name": "a", "not_null": {"columns": []}}], "at least 1 item"),
        ([{"name": "a", "qsl": {"passes": "x"}}], "qsl"),
        (None, "valid tuple"),
        ("x > 1", "valid tuple"),
    ],
)
def test_a_mistake_is_refused(rules: Any, told: str) -> None:
    spec = SPEC | {"rules": rules}
    with pytest.raises(ValidationError, match=told):
        model_for(spec).model_validate(spec)
