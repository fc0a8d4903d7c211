"""The keys below ``decode``."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sluice.pipeline.sections import Decode


def refused(config: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        Decode.model_validate({"json": {"schema": "id BIGINT", **config}})
    return str(caught.value)


def test_a_column_for_unknown_fields_has_its_name_alone() -> None:
    assert Decode(json={"schema": "id BIGINT", "rescue": True}).rescues
    assert not Decode(json={"schema": "id BIGINT, _rescued STRING"}).rescues
    assert "the column _rescued is declared already" in refused({"schema": "id BIGINT, _Rescued INT", "rescue": True})
    assert "the column _rescued is declared already" in refused({"key": "_rescued", "rescue": True})
