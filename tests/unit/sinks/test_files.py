"""The key ``sink.files``: what is refused when the file is read."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from sluice.sinks.files import FilesSink


@pytest.mark.parametrize(
    ("keys", "told"),
    [({"path": "s3://b/x"}, "choose sink.delta"), ({"path": "x", "format": "csv"}, "parquet"), ({"path": ""}, "path")],
)
def test_what_makes_no_sense_is_refused(keys: dict[str, str], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        FilesSink(**keys)
