"""Which fields the look at a run's records finds that the schema does not have."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tests.fixtures.pipelines import modelled

from sluice.decoders.config import JsonDecode
from sluice.ranges import OffsetRange
from sluice_spark.batch.unknown_fields import UnknownFields, told_of

CONFIG = JsonDecode(schema="id BIGINT, o STRUCT<a: INT>")


def test_unknown_fields_are_counted_by_name_in_a_sample() -> None:
    some = [b'{"id": 1}', b'{"id": 2, "x": 1, "y": null}', b'{"x": {"id": 1}}', None, b"[1]", b"no", b'{"o": {"b": 1}}']
    found = told_of(CONFIG, some) or ""
    assert "in 2 of 7 records that were looked at: «x (2), y (1)»." in found
    assert told_of(CONFIG, [b'{"id": 1}', b"null"]) is None
    assert told_of(CONFIG, []) is None


def test_unknown_fields_are_few_in_a_message_however_many_there_are() -> None:
    wide = json.dumps({f"{'long' * 100}{n}": n for n in range(3000)}).encode()
    found = told_of(CONFIG, [wide] * 5000) or ""
    assert "in 1,000 of 1,000 records" in found
    assert len(found) < 1000


class Source:
    """Records that workers can read, or cannot."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def inputs(self, ranges: list[OffsetRange]) -> Any:
        if self.error is not None:
            raise self.error
        return [(self, ranges)]

    def opened(self) -> AbstractContextManager[Any]:
        return nullcontext(self)

    def read(self, span: OffsetRange) -> Any:
        return [self]

    def values(self) -> list[bytes]:
        return [b'{"x": 1}']


def test_look_at_unknown_fields_waits_for_records_and_is_told_once() -> None:
    spec = modelled()
    unknown, ranges = UnknownFields(spec), [OffsetRange("t", 0, 0, 1)]
    unknown.look(Source(), [])
    assert unknown.told() is None, "a batch without records is not the first one"
    unknown.look(Source(), ranges)
    assert "«x (1)»" in (unknown.told() or "")
    unknown.look(Source(), ranges)
    assert unknown.told() is None
    failing = UnknownFields(spec)
    failing.look(Source(ValueError("no broker")), ranges)
    assert failing.told() is None, "a look that fails does not fail the batch"
