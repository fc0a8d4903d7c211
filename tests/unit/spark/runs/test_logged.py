"""What a run says of the write-ahead log when applying failed."""

from __future__ import annotations

from sluice.errors import SinkError, SourceUnreachableError
from sluice_spark.runs.logged import _unapplied


def test_a_sink_and_a_source_that_both_fail_are_both_named() -> None:
    sink = SinkError("the sink cannot be read", state="unchanged", next_step="fix it")
    source = SourceUnreachableError("Kafka does not answer", state="nothing was read", next_step="start it")
    failure = _unapplied(sink, [], 0, 0, source)
    assert failure is sink
    assert "Landing did not finish: Kafka does not answer" in str(sink.state)
    alone = SinkError("the sink cannot be read", state="unchanged", next_step="fix it")
    assert _unapplied(alone, [], 0, 0, None) is alone
    assert alone.state == "unchanged"
