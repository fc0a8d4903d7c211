"""What becomes of partitions whose fetch brought no answer, or an error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kafka import errors

from sluice.sources.kafka.requests import _harvest
from sluice.sources.state import FirstUnread

WANTED = {("t", 0): 5}


def answer(error: type[Any] | None) -> list[Any]:
    part = SimpleNamespace(
        partition_index=0, error_code=error.errno if error else 0, records=b"", aborted_transactions=None
    )
    return [SimpleNamespace(responses=[SimpleNamespace(topic="t", partitions=[part])])]


@pytest.mark.parametrize(
    ("answers", "again"),
    [
        ([], True),
        (answer(errors.NotLeaderForPartitionError), True),
        (answer(errors.TopicAuthorizationFailedError), False),
        (answer(errors.OffsetOutOfRangeError), False),
        (answer(None), True),
    ],
    ids=["no answer", "another leader", "no right", "removed", "nothing yet"],
)
def test_a_partition_is_asked_again_until_there_is_an_answer_that_is_final(answers: list[Any], again: bool) -> None:
    found: dict[tuple[str, int], FirstUnread] = {}
    assert _harvest(answers, WANTED, {("t", 0): 9}, "read_uncommitted", found) == (WANTED if again else {})
    assert found == {}
