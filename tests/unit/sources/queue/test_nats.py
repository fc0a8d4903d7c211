"""NATS as a queue, without a server."""

from __future__ import annotations

import pytest

from sluice.connections import Connection
from sluice.errors import SourceUnreachableError
from sluice.sources.queue.nats import JetStream


@pytest.mark.parametrize("several", [False, True])
def test_an_error_names_the_server_without_the_password_in_its_url(several: bool) -> None:
    server = "nats://me:s3cret@127.0.0.1:1"  # nothing listens there
    queue = JetStream(Connection("n", "nats", extra={"servers": [server] if several else server}))
    with pytest.raises(SourceUnreachableError, match=r"NATS \(127\.0\.0\.1:1\) does not answer") as caught:
        queue.state("orders")
    queue.close()
    assert "s3cret" not in str(caught.value)
