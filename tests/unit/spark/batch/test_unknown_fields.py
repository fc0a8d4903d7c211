"""Which fields the look at a run's records finds that the schema does not have."""

from __future__ import annotations

import json

from sluice.decoders.config import JsonDecode
from sluice_spark.batch.unknown_fields import told_of

CONFIG = JsonDecode(schema="id BIGINT, o STRUCT<a: INT>")


def test_unknown_fields_are_counted_by_name_in_a_sample() -> None:
    values = [
        b'{"id": 1}',
        b'{"id": 2, "x": 1, "y": null}',
        b'{"x": {"id": 1}}',
        None,
        b"[1]",
        b"no",
        b'{"o": {"b": 1}}',
    ]
    found = told_of(CONFIG, values)
    assert found is not None
    assert "in 2 of 7 records that were looked at: «x (2), y (1)»." in found
    assert told_of(CONFIG, [b'{"id": 1}', b"null"]) is None
    assert told_of(CONFIG, []) is None


def test_unknown_fields_are_few_in_a_message_however_many_there_are() -> None:
    wide = json.dumps({f"{'long' * 100}{n}": n for n in range(3000)}).encode()
    found = told_of(CONFIG, [wide] * 5000)
    assert found is not None
    assert "in 1,000 of 1,000 records" in found
    assert len(found) < 1000
