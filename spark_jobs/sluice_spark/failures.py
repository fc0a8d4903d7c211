"""Turns what Spark throws into a typed error, by asking the broker first and reading the message second."""

from __future__ import annotations

from collections.abc import Callable

from sluice.errors import (
    AuthorizationError,
    CheckpointError,
    OffsetsGoneError,
    SinkError,
    SluiceError,
    SourceUnreachableError,
)

__all__ = ["classify"]

_SAFE = "batches that were committed are in the sink and stay; the open batch is read again, exactly, by the next run"

_SIGNS: tuple[tuple[type[SluiceError], tuple[str, ...], str], ...] = (
    (
        AuthorizationError,
        ("TopicAuthorizationException", "GroupAuthorizationException", "SaslAuthenticationException"),
        "grant READ on topic and group",
    ),
    (
        CheckpointError,
        ("STREAMING_CHECKPOINT", "CHECKPOINT_", "INVALID_OFFSET_LOG", "MALFORMED_LOG", "batch metadata log"),
        "restore the checkpoint from a copy, or move checkpoint and sink away to begin anew",
    ),
    (
        OffsetsGoneError,
        (
            "KAFKA_DATA_LOSS",
            "OffsetOutOfRange",
            "offsets missing",
            "Cannot fetch offset",
            "some data may have been missed",
        ),
        "run again: it names the ranges that are gone",
    ),
    (
        SourceUnreachableError,
        ("TimeoutException", "DisconnectException", "BrokerNotAvailable", "UnknownHostException", "Connection refused"),
        "start the broker; the next run catches up by itself",
    ),
    (
        SinkError,
        ("No space left on device", "Permission denied", "AccessDenied", "FileAlreadyExistsException", "Mkdirs failed"),
        "mend the sink's storage, then run again",
    ),
)


def classify(error: Exception, ask_broker: Callable[[], object]) -> SluiceError:
    """Return the typed error behind a failed query.

    Parameters
    ----------
    ask_broker
        The preflight: raises the typed error when the broker is down or no longer has what was planned.
    """
    if isinstance(error, SluiceError):
        return error
    text = str(error)
    by_sign = next(((kind, hint) for kind, signs, hint in _SIGNS if any(s in text for s in signs)), None)
    if by_sign is None or by_sign[0] is not CheckpointError:
        try:
            ask_broker()
        except SluiceError as found:
            return type(found)(f"{found.what} (while the run was reading)", state=_SAFE, next_step=found.next_step)
    kind, hint = by_sign or (SluiceError, "read the log above; run again when the cause is mended")
    return kind(f"the query failed: {_summary(text)}", state=_SAFE, next_step=hint)


def _summary(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by:")]
    return " / ".join([lines[0] if lines else "no message", *causes[-1:]])[:800]
