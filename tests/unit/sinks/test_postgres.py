"""What a PostgreSQL sink with ``tombstone: delete`` is refused for when the file is loaded, with the way out."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sluice.pipeline import Pipeline

UPSERT = {"table": "t", "mode": "upsert", "key": ["id"]}
JSON = {"schema": "name STRING, at BIGINT", "key": "id", "tombstone": "delete"}


def loaded(sink: dict[str, Any], decode: dict[str, Any], **more: Any) -> Pipeline:
    source = {"kafka": {"topics": ["t"]}}
    return Pipeline.model_validate({"pipeline": "p", "source": source, "decode": decode, "sink": sink} | more)


def test_tombstones_delete_where_a_key_finds_rows() -> None:
    assert loaded({"postgres": UPSERT}, {"json": JSON}).decode.deletes
    assert loaded({"postgres": UPSERT | {"sequence": "_timestamp"}}, {"avro": JSON}).decode.deletes
    given = {"transform": {"sql": "SELECT *, coalesce(at, 0) AS seq FROM source"}}
    assert loaded({"postgres": UPSERT | {"sequence": "seq"}}, {"json": JSON}, **given).decode.deletes
    assert not loaded({"postgres": UPSERT}, {"json": JSON | {"tombstone": "row"}}).decode.deletes


@pytest.mark.parametrize(
    ("sink", "decode", "told"),
    [
        ({"delta": {"path": "t"}}, {"json": JSON}, r"sink\.delta has no rows that a key finds again: choose"),
        ({"kafka": {"topic": "x"}}, {"avro": JSON}, r"decode\.avro\.tombstone: delete: sink\.kafka"),
        ({"postgres": {"table": "t"}}, {"json": JSON}, "or sink.postgres with mode: upsert"),
        ({"postgres": UPSERT}, {"json": JSON | {"key": None}}, "needs the record's key.*key: id"),
        ({"postgres": UPSERT}, {"json": JSON | {"schema": "_Deleted INT"}}, "adds a column _deleted: rename"),
        ({"postgres": UPSERT | {"key": ["id", "name"]}}, {"json": JSON}, "'name' of the key is a column of"),
        ({"postgres": UPSERT | {"sequence": "at"}}, {"json": JSON}, r"coalesce\(at, …\) AS at.*or leave sequence out"),
        ({"postgres": UPSERT | {"table": "x" * 49}}, {"json": JSON}, "give the table a shorter name"),
        ({"postgres": UPSERT | {"table": "sluice_deleted_t"}}, {"json": JSON}, "deleted keys: choose another"),
        ({"postgres": UPSERT}, {"csv": {"schema": "name STRING", "key": "id", "tombstone": "delete"}}, "Extra inputs"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(sink: dict[str, Any], decode: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        loaded(sink, decode)
