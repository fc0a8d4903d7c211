"""The key ``source.queue``: what cannot be meant is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from sluice.sources.queue.config import QueueSource

GOOD = {"connection": "redis_default", "kind": "redis_streams", "streams": ["orders:{1}"]}


def test_the_streams_are_those_of_the_file() -> None:
    source = QueueSource.model_validate(GOOD)
    assert (source.streams, source.needs) == (["orders:{1}"], "redis_default")


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"streams": ["a b"]}, "use letters, digits"),
        ({"streams": ["a", "a"]}, "named twice"),
        ({"streams": []}, "at least 1 item"),
        ({"kind": "nats_jetstream", "field": "value"}, "field is for kind: redis_streams"),
        ({"kind": "rabbit"}, "'redis_streams' or 'nats_jetstream'"),
        ({"kind": "rabbit:"}, "'redis_streams' or 'nats_jetstream'"),
        ({"kind": "my.queues:Rabbit", "field": "value"}, "field is for kind: redis_streams"),
    ],
)
def test_refused(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        QueueSource.model_validate(GOOD | keys)
