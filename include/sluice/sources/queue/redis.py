"""Redis Streams.

An entry has an id and no number. Its offset is the number of entries that were added before it, which Redis counts
(``entries-added``, since version 7) and which trimming does not change. A consumer group of the pipeline marks the
stream: it is gone if the stream was deleted and made again, and it shows how far the pipeline has read.
"""

from __future__ import annotations

import json
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from sluice.connections import Connection, check_host
from sluice.errors import (
    AuthorizationError,
    ConfigError,
    SourceUnreachableError,
    TopicRecreatedError,
    described,
    quoted,
)
from sluice.ranges import OffsetRange
from sluice.sources.queue.base import LostError, Message, StreamState

__all__ = ["END_OF_TIME", "RedisStreams"]

END_OF_TIME = 253_402_300_799_999
"""The last millisecond of the year 9999: the time of an entry whose id is that of a user's, and a later time."""

_STATE = "nothing was read or written now; what earlier runs wrote is in the sink"
_STEP = 5_000
"""Entries that are asked for at a time."""
T = TypeVar("T")
Mark = tuple[int, bytes]
"""An offset, and the id of its entry."""


class RedisStreams:
    """A connection to Redis; see :class:`~sluice.sources.queue.base.Queue`.

    Parameters
    ----------
    connection
        Of Airflow's type ``redis``.
    owner
        The pipeline's name and its id, which the consumer group has in its own name; None where only ranges are read.
    field
        The field that is the value; None for a JSON object of all.
    """

    def __init__(self, connection: Connection, owner: tuple[str, str] | None, field: str | None) -> None:
        import redis

        extra, host = connection.extra, connection.host or "localhost"
        check_host(connection)
        ssl = {key: extra[key] for key in extra if key.startswith("ssl")}
        self._where = f"Redis ({host}:{connection.port or 6379})"
        self._redis: Any = redis.Redis(
            host=host,
            port=connection.port or 6379,
            username=connection.login,
            password=connection.password,
            db=int(extra.get("db") or 0),
            socket_connect_timeout=10,
            socket_timeout=60,
            **ssl,
        )
        self._redis.set_response_callback("XRANGE", _entries)
        self._owner, self._field = owner, field
        self._marks: dict[str, list[Mark]] = {}

    def state(self, stream: str) -> StreamState:
        """Return the state of a stream. The first time it makes the pipeline's consumer group.

        Raises
        ------
        SourceUnreachableError
            If Redis does not answer, or has no such stream.
        TopicRecreatedError
            If entries that were read are no longer in the stream's past, as after a failover to an older replica.
        ConfigError
            If entries that were not read may have been deleted one by one (``XDEL``).
        """
        info = self._asked(lambda: self._redis.xinfo_stream(stream), stream)
        if info.get("entries-added") is None:
            raise ConfigError(
                f"{self._where} does not count the entries of a stream",
                state=_STATE,
                next_step="use Redis 7 or later, or another server that has XINFO STREAM with entries-added",
            )
        group, read, seen = self._group(stream)
        last, added = bytes(info["last-generated-id"]), int(info["entries-added"])
        if _parts(last) < _parts(seen):
            raise TopicRecreatedError(
                f"stream {stream!r} of {self._where} ends with {last.decode()}, and entries up to {seen.decode()} were "
                "read: it is older than it was, as after a failover",
                state=_STATE,
                next_step="restore the stream; or start over under another name of the pipeline and path of its sink",
            )
        start = added - int(info["length"])
        deleted, first = bytes(info["max-deleted-entry-id"]), info["first-entry"]
        if first is not None and _parts(deleted) >= _parts(first[0]):
            if _parts(deleted) > _parts(seen):
                raise ConfigError(
                    f"entries of the stream {stream!r} of {self._where} were deleted one by one (XDEL), up to "
                    f"{deleted.decode()}, before this pipeline read them: the offsets of the others are not known",
                    state=_STATE,
                    next_step="copy the entries into another stream, and name that in source.queue.streams of a new "
                    f"pipeline; or give up those up to there, for all readers: XTRIM {stream} MINID "
                    f"{_after(deleted).decode()}. Let the stream be shortened by XTRIM or MAXLEN only",
                )
            start = read
        return StreamState(group.rpartition(":")[2], start, added, _number(last) if added else None)

    def kept_up_to(self, stream: str, last: int, end: int) -> int | None:
        """Return up to where a stream has the entries that it had; None if it has them, or had them before trimming.

        Parameters
        ----------
        last, end
            What :meth:`state` said of the stream then: the id of the newest entry, and how many there had been.
        """
        own = b"%d-%d" % divmod(last, 1 << 64)
        if self._asked(lambda: self._redis.xrange(stream, own, own, 1), stream):
            return None
        info = self._asked(lambda: self._redis.xinfo_stream(stream), stream)
        added, first = int(info["entries-added"]), info["first-entry"]
        if first is None or _parts(info["max-deleted-entry-id"]) >= _parts(own):
            return None
        if _parts(first[0]) > _parts(own):  # trimmed
            start = added - int(info["length"])
            return start if start < end else None
        at, cursor, prefix = added, b"+", b""
        newer = b"(" + own
        while entries := self._asked(partial(self._redis.xrevrange, stream, prefix + cursor, newer, _STEP), stream):
            at -= len(entries)
            cursor, prefix = entries[-1][0], b"("
        return at if at < end else None

    def _group(self, stream: str) -> tuple[str, int, bytes]:
        """Return the name of the pipeline's consumer group, how many entries it has read, and the last one's id."""
        if self._owner is None:
            raise ValueError("the pipeline is not known")
        pipeline, own = self._owner
        for group in self._asked(lambda: self._redis.xinfo_groups(stream), stream):
            name = group["name"].decode(errors="replace")
            # the pipeline may have had another name
            if name.startswith("sluice:") and name.rsplit(":", 2)[1] == own:
                return name, int(group["entries-read"] or 0), bytes(group["last-delivered-id"])
        name = f"sluice:{pipeline}:{own}:{uuid.uuid4().hex[:12]}"
        self._asked(lambda: self._redis.xgroup_create(stream, name, "0"), stream)
        return name, 0, b"0-0"

    def _asked(self, call: Callable[[], T], stream: str) -> T:
        import redis

        try:
            return call()
        except (redis.AuthenticationError, redis.exceptions.NoPermissionError) as error:
            raise AuthorizationError(
                f"{self._where} refused: {quoted(str(error))}",
                state=_STATE,
                next_step="correct login and password; the user needs XINFO, XRANGE, XREVRANGE, XGROUP",
            ) from error
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise SourceUnreachableError(
                f"{self._where} does not answer: {quoted(str(error))}",
                state=_STATE,
                next_step="start it, or correct the connection; the next run catches up",
            ) from error
        except redis.ResponseError as error:
            if "no such key" in str(error):
                raise SourceUnreachableError(
                    f"{self._where} has no stream {stream!r}",
                    state=_STATE,
                    next_step="correct source.queue.streams, or add an entry, which makes the stream",
                ) from error
            raise ConfigError(
                f"{self._where} cannot answer for {stream!r}: {quoted(str(error))}",
                state=_STATE,
                next_step="name a stream in source.queue.streams",
            ) from error
        except redis.RedisError as error:
            raise SourceUnreachableError(
                f"{self._where} does not answer as Redis does: {quoted(str(error))}",
                state=_STATE,
                next_step="correct host and port of the connection: another server answers there",
            ) from error

    def guide(self, ranges: Sequence[OffsetRange]) -> dict[str, list[Mark]]:
        """Return entries of these ranges by their offsets, at least every few thousand.

        They are counted from the stream's end back, once, because Redis finds no entry by its number.
        """
        ranges = [r for r in ranges if r]
        for stream in {r.topic for r in ranges}:
            self._count_back(stream, min(r.start for r in ranges if r.topic == stream))
        for span in ranges:
            try:
                self._find(span)
            except LostError:  # the entry from which it was looked for is gone, and the range may be there
                self._count_back(span.topic, span.start)
                self._find(span)
        found = {}
        for stream in {r.topic for r in ranges}:
            first = min(r.start for r in ranges if r.topic == stream)
            # a query that never ends must not keep all that it has read
            self._marks[stream] = [mark for mark in self._marks[stream] if mark[0] >= first]
            found[stream] = list(self._marks[stream])
        return found

    def _find(self, span: OffsetRange) -> None:
        """Add the entry at the start of a range: what is before it may be trimmed."""
        marks = self._marks[span.topic]
        number = bisect_right([offset for offset, _ in marks], span.start) - 1
        at, cursor = marks[number]
        if at == span.start:
            return
        call = partial(self._redis.xrange, span.topic, cursor, "+", span.start - at + 1)
        entries = self._asked(call, span.topic)
        if len(entries) <= span.start - at or entries[0][0] != cursor:
            del self._marks[span.topic]  # counted again
            raise LostError(f"entries before {span} were trimmed just now")
        marks.insert(number + 1, (span.start, entries[-1][0]))

    def _count_back(self, stream: str, start: int) -> None:
        known = self._marks.get(stream, [])
        if known and known[0][0] <= start:
            return
        info = self._asked(lambda: self._redis.xinfo_stream(stream), stream)
        deleted, at = _parts(info["max-deleted-entry-id"]), int(info["entries-added"])
        if info["last-entry"] is None:
            raise LostError(f"stream {stream!r} has no entries any more")
        cursor, found = info["last-entry"][0], []
        prefix = b""
        while at > start:
            step = min(_STEP, at - start)
            entries = self._asked(partial(self._redis.xrevrange, stream, prefix + cursor, "-", step), stream)
            if not entries:
                raise LostError(f"stream {stream!r} no longer has the entries before {cursor.decode()}")
            at -= len(entries)
            cursor, prefix = entries[-1][0], b"("
            if _parts(cursor) <= deleted:
                raise LostError(f"entries of stream {stream!r} were deleted one by one (XDEL)")
            found.append((at, cursor))
        self._marks[stream] = sorted(found)

    def read(self, span: OffsetRange, guide: Mapping[str, Sequence[Mark]]) -> Iterator[list[Message]]:
        """Yield the entries of a range.

        Raises
        ------
        LostError
            If entries were trimmed or deleted meanwhile.
        """
        import redis

        marks = guide[span.topic]
        number = bisect_right([offset for offset, _ in marks], span.start) - 1
        at, first = marks[number] if number >= 0 else (-1, b"")
        if number < 0:
            raise LostError(f"{span} is not among the ranges that were planned")
        cursor = first
        try:
            while at < span.end:
                entries = self._redis.xrange(span.topic, cursor, "+", min(_STEP, span.end - at))
                if not entries or (cursor == first and entries[0][0] != first):
                    raise LostError(f"entries of {span} were trimmed")
                numbered = list(enumerate(entries, at))
                at += len(entries)
                cursor = b"(" + entries[-1][0]
                yield [self._message(n, *entry) for n, entry in numbered if n >= span.start]
            info = self._redis.xinfo_stream(span.topic)
        except redis.RedisError as error:
            raise LostError(f"{self._where} failed: {described(error)}") from error
        oldest = info["first-entry"][0] if info["first-entry"] else b"%d-0" % (1 << 62)
        if _parts(oldest) > _parts(first) or _parts(info["max-deleted-entry-id"]) >= _parts(first):
            raise LostError(f"entries of {span} were removed while they were read")

    def _message(self, offset: int, entry_id: bytes, fields: Sequence[bytes]) -> Message:
        time, pairs = (
            min(int(entry_id.partition(b"-")[0]), END_OF_TIME),
            list(zip(fields[::2], fields[1::2], strict=True)),
        )
        if self._field is None:
            text = ", ".join(f"{_quoted(key)}: {_quoted(value)}" for key, value in pairs)
            return Message(offset, time, entry_id, f"{{{text}}}".encode(errors="surrogateescape"))
        own = self._field.encode()
        last = max((n for n, (key, _) in enumerate(pairs) if key == own), default=None)
        rest = [(key.decode(errors="replace"), value) for n, (key, value) in enumerate(pairs) if n != last]
        return Message(offset, time, entry_id, None if last is None else pairs[last][1], rest)

    def first_at(self, stream: str, milliseconds: int) -> int | None:
        """Return the offset of the first entry with an id at or after a time; entries are counted back to it."""
        info = self._asked(lambda: self._redis.xinfo_stream(stream), stream)
        at, found = int(info["entries-added"]), None
        cursor, prefix, earliest = b"+", b"", b"%d-0" % max(milliseconds, 0)
        while entries := self._asked(partial(self._redis.xrevrange, stream, prefix + cursor, earliest, _STEP), stream):
            at -= len(entries)
            cursor, prefix, found = entries[-1][0], b"(", at
        return found

    def done(self, stream: str, position: int) -> None:
        """Move the pipeline's consumer group to a position that is not far from the stream's end."""
        group, read, _ = self._group(stream)
        behind = int(self._asked(lambda: self._redis.xinfo_stream(stream), stream)["entries-added"]) - position
        if position in (0, read) or behind > _STEP:
            return
        both = self._redis.pipeline(transaction=True)
        both.xinfo_stream(stream)
        both.xrevrange(stream, "+", "-", behind + 100)
        info, entries = self._asked(both.execute, stream)
        number = int(info["entries-added"]) - position  # entries may have come since
        if number < len(entries):
            last = entries[number][0]
            self._asked(lambda: self._redis.xgroup_setid(stream, group, last, entries_read=position), stream)

    def close(self) -> None:
        """Close the connection."""
        self._redis.close()


def _entries(response: Sequence[Any] | None, **_: Any) -> list[tuple[bytes, Sequence[bytes]]]:
    """Return ids and fields, names and values in turn: the client's own dicts have one of two fields of a name."""
    return [(entry[0], entry[1]) for entry in response or ()]


def _quoted(text: bytes) -> str:
    """Return a JSON string. Bytes that are not UTF-8 are kept, for the decoder to refuse."""
    return json.dumps(text.decode(errors="surrogateescape"), ensure_ascii=False)


def _number(entry_id: bytes) -> int:
    time, number = _parts(entry_id)
    return time << 64 | number


def _after(entry: bytes) -> bytes:
    """Return the id that follows another one."""
    time, number = _parts(entry)
    return b"%d-%d" % (time, number + 1)


def _parts(entry_id: bytes) -> tuple[int, int]:
    time, _, number = bytes(entry_id).partition(b"-")
    return int(time), int(number or 0)
