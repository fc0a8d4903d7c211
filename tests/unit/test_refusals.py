"""What a broker refuses is told from a broker that does not answer: exit 23, not 20."""

from __future__ import annotations

import logging
from typing import Any

import kafka.admin
import pytest
from kafka.errors import KafkaTimeoutError, SaslAuthenticationFailedError, TopicAuthorizationFailedError

from sluice.errors import AuthorizationError, SourceUnreachableError
from sluice.kafka import Cluster, KafkaSettings


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(Cluster, "_probe", lambda self: None)
    return Cluster(KafkaSettings("broker:9092", {"bootstrap.servers": "broker:9092"}), timeout=5)


def _fails(monkeypatch: pytest.MonkeyPatch, error: Exception, said: str = "") -> None:
    def client(**_: Any) -> None:
        if said:
            logging.getLogger("kafka.net.transport").error("<Transport>: Abort (%s)", said)
        raise error

    monkeypatch.setattr(kafka.admin, "KafkaAdminClient", client)


@pytest.mark.parametrize("error", [SaslAuthenticationFailedError("no"), TopicAuthorizationFailedError("topic")])
def test_a_refusal_is_typed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    _fails(monkeypatch, error)
    with pytest.raises(AuthorizationError, match="refused"):
        cluster.snapshot(["topic"])


def test_a_refused_login_that_only_the_log_tells_of_is_typed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    said = (
        "[Error 58] SaslAuthenticationFailedError: SaslAuthenticationFailedError: Authentication failed: bad password"
    )
    _fails(monkeypatch, KafkaTimeoutError("Unable to bootstrap"), said)
    with pytest.raises(AuthorizationError, match="refused: Authentication failed: bad password"):
        cluster.snapshot(["topic"])


def test_a_timeout_alone_is_unreachable(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    _fails(monkeypatch, KafkaTimeoutError("Unable to bootstrap"))
    with pytest.raises(SourceUnreachableError):
        cluster.snapshot(["topic"])
