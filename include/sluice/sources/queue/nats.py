"""NATS JetStream: a message's offset is its sequence number in the stream, less one, since NATS counts from 1."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from sluice.connections import Connection
from sluice.errors import AuthorizationError, ConfigError, SourceUnreachableError, described, quoted
from sluice.ranges import OffsetRange
from sluice.sources.queue.base import LostError, Message, StreamState

__all__ = ["JetStream"]

_STATE = "nothing was read or written now; what earlier runs wrote is in the sink"
_STORED = "$JS.ACK."
"""How the reply of a stream's message begins."""
_CHUNK = 5_000
_SILENCE = 30.0
"""Seconds without a message after which a range is given back."""
_NO_STREAM = 10059
T = TypeVar("T")


class JetStream:
    """A connection to NATS; see :class:`~sluice.sources.queue.base.Queue`. Offsets of deleted messages have no record.

    Parameters
    ----------
    connection
        Its host and port, or an extra ``servers``; login and password, or an extra ``token`` or ``credentials``.
    """

    def __init__(self, connection: Connection) -> None:
        extra = connection.extra
        servers = extra.get("servers") or [f"nats://{connection.host or 'localhost'}:{connection.port or 4222}"]
        named = [server.rpartition("@")[2] for server in ([servers] if isinstance(servers, str) else servers)]
        self._where = f"NATS ({', '.join(named)})"  # a URL may have a password before its @
        self._options: dict[str, Any] = {
            "servers": servers,
            "user": connection.login,
            "password": connection.password,
            "token": extra.get("token"),
            "user_credentials": extra.get("credentials"),
            "connect_timeout": 10,
            "allow_reconnect": False,
            "max_reconnect_attempts": 1,  # of the first connection, too
            "reconnect_time_wait": 0.2,
        }
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Any = None
        self._cause: Exception | None = None

    # nats-py is asynchronous; everything here runs in one loop, while a call waits for it
    def _run(self, task: Awaitable[T]) -> T:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(asyncio.ensure_future(task, loop=self._loop))

    async def _connected(self) -> Any:
        async def told(error: Exception) -> None:
            self._cause = error  # of a connection that fails, where what is raised says only that no server is left

        if self._client is None or self._client.is_closed:
            client = _client()
            await client.connect(**self._options, error_cb=told)
            self._client = client
        return self._client

    def _asked(self, subject: str, body: dict[str, Any], stream: str) -> dict[str, Any]:
        """Ask JetStream's API.

        Raises
        ------
        SourceUnreachableError, AuthorizationError, ConfigError
            If it does not answer, refuses, or answers with an error.
        """
        import nats.errors

        async def ask() -> Any:
            client = await self._connected()
            return await client.request(f"$JS.API.{subject}", json.dumps(body).encode(), timeout=10)

        try:
            answer: dict[str, Any] = json.loads(self._run(ask()).data)
        except (nats.errors.Error, OSError, TimeoutError) as error:
            cause = self._cause if isinstance(error, nats.errors.NoServersError) and self._cause else error
            if isinstance(cause, nats.errors.AuthorizationError) or "authorization" in str(cause).lower():
                raise self._refused(cause) from error
            raise SourceUnreachableError(
                f"{self._where} does not answer: {described(cause)}",
                state=_STATE,
                next_step="start it with JetStream (-js), or correct the connection; the next run catches up",
            ) from error
        if "error" not in answer:
            return answer
        if answer["error"].get("err_code") == _NO_STREAM:
            raise SourceUnreachableError(
                f"{self._where} has no stream {stream!r}",
                state=_STATE,
                next_step="correct source.queue.streams, or add the stream",
            )
        raise ConfigError(
            f"{self._where} cannot answer for {stream!r}: {quoted(str(answer['error'].get('description')))}",
            state=_STATE,
            next_step="see what the server's log says",
        )

    def _refused(self, error: Exception) -> AuthorizationError:
        return AuthorizationError(
            f"{self._where} refused: {quoted(str(error))}",
            state=_STATE,
            next_step="correct login and password, or the token; the user needs $JS.API.STREAM.INFO and "
            "$JS.API.CONSUMER.CREATE of the stream",
        )

    def state(self, stream: str) -> StreamState:
        """Return the state of a stream.

        Raises
        ------
        SluiceError
            If NATS does not answer or refuses, or if the stream removes messages as others read them.
        """
        info = self._asked(f"STREAM.INFO.{stream}", {}, stream)
        retention = info["config"].get("retention", "limits")
        if retention != "limits":
            raise ConfigError(
                f"stream {stream!r} of {self._where} has the retention {retention!r}: its messages go away as others "
                "read them, and cannot be read again",
                state=_STATE,
                next_step="let another stream with retention limits have it as a source or a mirror, and name that one",
            )
        first, last = int(info["state"]["first_seq"]), int(info["state"]["last_seq"])
        when = datetime.fromisoformat(info["state"]["last_ts"][:23].rstrip("Z") + "+00:00") if last >= first else None
        known = None if when is None else round(when.timestamp() * 1000)
        return StreamState(str(info["created"]), max(first, 1) - 1, max(first - 1, last), known)

    def kept_up_to(self, stream: str, last: int, end: int) -> int | None:
        """Return up to where a stream has the messages that it had; None if it has them, or not the last one any more.

        Parameters
        ----------
        last, end
            What :meth:`state` said of the stream then: the time of the newest message, and the end.
        """
        import nats.errors

        reading = _Reading(self._connected, OffsetRange(stream, 0, end - 1, end))
        try:
            try:
                found = self._run(reading.some())
            finally:
                self._run(reading.stop())
            if not found or found[0].time == last:
                return None
            newer = self.first_at(stream, last + 1)
        except (LostError, nats.errors.Error, OSError, TimeoutError) as error:
            raise SourceUnreachableError(
                f"{self._where} does not tell whether stream {stream!r} is as it was: {described(error)}",
                state=_STATE,
                next_step="see what the server's log says; the next run catches up",
            ) from error
        return min(end - 1, newer) if newer is not None else end - 1

    def guide(self, ranges: Sequence[OffsetRange]) -> None:
        """Return nothing: NATS finds a message by its sequence number."""

    def read(self, span: OffsetRange, guide: Any) -> Iterator[list[Message]]:
        """Yield the messages of a range.

        Raises
        ------
        LostError
            If NATS failed, or has removed messages at the beginning of the range.
        """
        import nats.errors

        self._check(span)
        reading = _Reading(self._connected, span)
        try:
            while (found := self._run(reading.some())) is not None:
                yield found
        except (nats.errors.Error, OSError, TimeoutError) as error:
            raise LostError(f"{self._where} failed: {described(error)}") from error
        finally:
            self._run(reading.stop())
        self._check(span)

    def _check(self, span: OffsetRange) -> None:
        # NATS begins at the first message that it has, without a word
        start = self.state(span.topic).start
        if start > span.start:
            raise LostError(f"{span} begins before the first message of the stream, {start}")

    def first_at(self, stream: str, milliseconds: int) -> int | None:
        """Return the first sequence number at or after a time: NATS knows it, as the start of a consumer."""
        when = datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()
        begin = {"deliver_policy": "by_start_time", "opt_start_time": when}
        reading = _Reading(self._connected, OffsetRange(stream, 0, 0, 1 << 62), begin)
        try:
            found = self._run(reading.some())
        finally:
            self._run(reading.stop())
        return found[0].offset if found else None

    def done(self, stream: str, position: int) -> None:
        """Do nothing: the stream has a retention of its own."""

    def close(self) -> None:
        """Close the connection."""
        if self._loop is not None:
            if self._client is not None and not self._client.is_closed:
                self._run(self._client.close())
            self._loop.close()
            self._loop = None


class _Reading:
    """A push consumer without acknowledgements; the server waits while we are behind.

    Parameters
    ----------
    begin
        Where it begins, as in a consumer's configuration; by default at the start of the range.
    """

    def __init__(
        self, connected: Callable[[], Awaitable[Any]], span: OffsetRange, begin: dict[str, Any] | None = None
    ) -> None:
        self._connected, self._span = connected, span
        self._begin = begin or {"deliver_policy": "by_start_sequence", "opt_start_seq": span.start + 1}
        self._came: deque[Any] = deque()
        self._news: asyncio.Event | None = None
        self._client: Any = None
        self._subscription: Any = None
        self._count = 0
        self._ended = False

    async def _start(self) -> None:
        self._news = asyncio.Event()
        self._client = await self._connected()
        inbox = self._client.new_inbox()

        async def came(message: Any) -> None:
            self._came.append(message)
            if self._news is not None:
                self._news.set()

        self._subscription = await self._client.subscribe(inbox, cb=came, pending_msgs_limit=-1, pending_bytes_limit=-1)
        config = {
            **self._begin, "deliver_subject": inbox, "ack_policy": "none", "mem_storage": True, "flow_control": True,
            "idle_heartbeat": 2_000_000_000,
        }  # fmt: skip
        stream = self._span.topic
        body = json.dumps({"stream_name": stream, "config": config}).encode()
        answer = json.loads((await self._client.request(f"$JS.API.CONSUMER.CREATE.{stream}", body, timeout=10)).data)
        if "error" in answer:
            raise LostError(f"{self._span} cannot be read: {quoted(str(answer['error'].get('description')))}")
        self._ended = not answer.get("num_pending")

    async def some(self) -> list[Message] | None:
        """Return the next messages; None after the last one."""
        if self._news is None:
            await self._start()
        assert self._news is not None
        found: list[Message] = []
        while not self._ended and len(found) < _CHUNK:
            if not self._came:
                self._news.clear()
                try:
                    await asyncio.wait_for(self._news.wait(), _SILENCE)
                except TimeoutError as error:
                    raise LostError(f"no message of {self._span} came for {_SILENCE:.0f} s") from error
            message = self._came.popleft()
            headers = message.headers or {}
            if not (message.reply or "").startswith(_STORED):  # a heartbeat, or the server asks whether it may go on
                asks = message.reply or headers.get("Nats-Consumer-Stalled")
                if asks:
                    await self._client.publish(asks, b"")
                continue
            sequence, number, nanoseconds, pending = _numbers(message.reply)
            self._count += 1
            if number != self._count:
                raise LostError(f"messages of {self._span} were dropped on their way")
            self._ended = pending == 0 or sequence >= self._span.end
            if sequence <= self._span.end:
                own = [(_bytes(key).decode(errors="replace"), _bytes(value)) for key, value in headers.items()]
                key = message.subject.encode("utf-8", "surrogateescape")
                found.append(Message(sequence - 1, nanoseconds // 1_000_000, key, message.data, own))
        return found or None

    async def stop(self) -> None:
        if self._subscription is not None and not self._client.is_closed:
            await self._subscription.unsubscribe()


def _client() -> Any:
    """Return a client that takes any subject and any headers: what is no text would end the connection.

    A block of headers that are none comes as one header without a name.
    """
    from nats.aio.client import Client

    class AnySubject(Client):  # type: ignore[misc]
        async def _process_headers(self, headers: bytes) -> Any:
            try:
                return await super()._process_headers(headers)
            except (IndexError, ValueError):
                return {"": headers.decode(errors="replace")}

        def _build_message(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any) -> Any:
            return self.msg_class(
                subject=subject.decode(errors="surrogateescape"), reply=reply.decode(), data=data, headers=headers,
                _client=self, _sid=sid,
            )  # fmt: skip

    return AnySubject()


def _bytes(text: str) -> bytes:
    """Return a header's bytes. The client reads them as UTF-8; what is not stays not, for the decoder to refuse."""
    return text.replace("\ufffd", "\udcff").encode(errors="surrogateescape")


def _numbers(reply: str) -> tuple[int, int, int, int]:
    """Return a message's sequence in the stream and in the consumer, its time in ns, and how many follow."""
    tokens = reply.split(".")
    if len(tokens) > 9:  # with domain and account
        tokens = tokens[:2] + tokens[4:]
    return int(tokens[5]), int(tokens[6]), int(tokens[7]), int(tokens[8])
