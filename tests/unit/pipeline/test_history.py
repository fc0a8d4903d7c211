"""``quality.history``."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sluice.pipeline.history import History
from sluice.pipeline.quality import Quality


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({}, "it expects nothing"),
        ({"columns": {"a": []}}, "a has no figure"),
        ({"volume": True, "at_least": 21}, "at_least: 21 is more than the runs: 20"),
        ({"volume": True, "deviations": 0}, "greater than 0"),
        ({"columns": {"a": ["median"]}}, "'nulls', 'min', 'max', 'mean' or 'distinct'"),
        ({"freshness": 2}, "duration without a unit"),
    ],
)
def test_what_means_nothing_is_refused(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        History(**keys)


def test_columns_are_read_back_for_figures_that_no_footer_has() -> None:
    quality = Quality(profiled=["x"], history={"columns": {"a": ["nulls", "max"], "b": ["mean"], "x": ["distinct"]}})
    assert quality.measured == ("x", "b")


def test_of_masked_columns_only_nulls_can_be_judged() -> None:
    assert Quality(masked=["pin"], history={"columns": {"PIN": ["nulls"]}}).history
    for wrong in ({"columns": {"PIN": ["nulls", "max"]}}, {"columns": {"pin.a": ["mean"]}}):
        with pytest.raises(ValidationError, match="is masked"):
            Quality(masked=["pin"], history=wrong)
