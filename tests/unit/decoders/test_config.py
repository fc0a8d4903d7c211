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


def test_columns_with_headers_have_names_of_their_own() -> None:
    found = Decode(json={"schema": "id BIGINT", "key": "k", "headers": {"a": "x", "b": "x", "c": ""}})
    assert found.headers == {"a": "x", "b": "x", "c": ""}
    assert Decode(bytes={}).headers == {}
    for headers, why in (
        ({"ID": "x"}, "headers: the column 'ID' is declared already"),
        ({"K": "x"}, "headers: the column 'K' is declared already"),
        ({"a": "x", "A": "y"}, "headers: the column 'A' is declared already"),
        ({"_offset": "x"}, "a name that Sluice adds itself"),
        ({"a b": "x"}, "not the name of a column"),
        ({"a": None}, "string"),
    ):
        assert why in refused({"key": "k", "headers": headers})
    assert "the column _rescued is declared already" in refused({"headers": {"_rescued": "x"}, "rescue": True})
