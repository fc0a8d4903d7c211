"""Made-up rows are the same however they are read; no JVM."""

from __future__ import annotations

import json

from sluice.ranges import OffsetRange
from sluice.sources.rate.source import Clockwork
from sluice_spark.sources.inputs import RECORDS
from sluice_spark.sources.rate import RateInput

CLOCKWORK = Clockwork("x", 1_700_000_000_000_000, 3, 2)


def test_rows_follow_from_their_offsets() -> None:
    with RateInput(CLOCKWORK).opened() as reader:
        chunks = list(reader.read(OffsetRange("rate", 1, 49_999, 100_002)))
    assert [len(c.offsets) for c in chunks] == [50_000, 3]
    first = json.loads(chunks[0].values()[0] or b"")
    assert first == {"value": 99_999, "timestamp": "2023-11-15T07:28:52.666666Z"}
    table = chunks[1].records()
    assert table.schema == RECORDS
    assert table.column("value").to_pylist() == chunks[1].values()
    assert table.column("offset").to_pylist() == [99_999, 100_000, 100_001]
    assert chunks[1].chosen([0, 2]).values() == [chunks[1].values()[0], chunks[1].values()[2]]
    assert chunks[1].keys() == [None] * 3
    assert chunks[1].times.tolist() == [CLOCKWORK.time(n) // 1000 for n in (99_999, 100_000, 100_001)]
