"""What a broker refuses is told from a broker that does not answer: exit 23, not 20."""

from __future__ import annotations

import logging
from typing import Any

import kafka.admin
import pytest
from kafka.errors import KafkaTimeoutError, SaslAuthenticationFailedError, TopicAuthorizationFailedError

from sluice.errors import AuthorizationError, SourceUnreachableError
from sluice.sources.kafka import Cluster, KafkaSettings, client


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(client, "probe", lambda *_: None)
    return Cluster(KafkaSettings("broker:9092", {"bootstrap.servers": "broker:9092"}), timeout=5)


def _fails(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refuse(**_: Any) -> None:
        raise error

    monkeypatch.setattr(kafka.admin, "KafkaAdminClient", refuse)


@pytest.mark.parametrize("error", [SaslAuthenticationFailedError("no"), TopicAuthorizationFailedError("topic")])
def test_a_refusal_is_typed(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    _fails(monkeypatch, error)
    with pytest.raises(AuthorizationError, match="refused"):
        cluster.snapshot(["topic"])


def test_a_timeout_alone_is_unreachable(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    _fails(monkeypatch, KafkaTimeoutError("Unable to bootstrap"))
    with pytest.raises(SourceUnreachableError):
        cluster.snapshot(["topic"])


@pytest.mark.parametrize(("chosen", "becomes"), [(logging.NOTSET, logging.WARNING), (logging.DEBUG, logging.DEBUG)])
def test_what_the_library_tells_of_each_connection_is_kept_out_of_logs(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, chosen: int, becomes: int
) -> None:
    log = logging.getLogger("kafka")
    monkeypatch.setattr(log, "level", chosen)
    _fails(monkeypatch, KafkaTimeoutError("Unable to bootstrap"))
    with pytest.raises(SourceUnreachableError):
        cluster.snapshot(["topic"])
    assert log.level == becomes
