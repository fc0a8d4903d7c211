"""The key ``source.file``: what cannot be meant is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sluice.sources.files.config import FileSource


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"glob": "/etc/*"}, "a pattern for paths below the folder"),
        ({"glob": "../*"}, "a pattern for paths below the folder"),
        ({"header": True}, "header is for format: csv"),
        ({"archive": "inbox/done"}, "its files would be found again"),
        ({"archive": "./inbox/"}, "its files would be found again"),
        ({"marker": "/x"}, "is not a suffix"),
        ({"format": "parquet", "header": True}, "header is for format: csv"),
        ({"format": "orc"}, "'json', 'csv', 'text', 'parquet' or 'avro'"),
    ],
)
def test_refused(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        FileSource.model_validate({"path": "inbox", "format": "json"} | keys)


@pytest.mark.parametrize(
    ("path", "stream"),
    [("inbox", "inbox"), ("/a/in box/", "in_box"), ("s3://bucket/drop", "drop"), ("/", "files"), ("d'x", "d_x")],
)
def test_the_stream_is_named_for_the_folder(path: str, stream: str) -> None:
    assert FileSource(path=path, format="json").streams == [stream]
