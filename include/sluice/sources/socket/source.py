"""Lines of a TCP socket as a :class:`~sluice.sources.base.Source`.

A socket forgets what it sent. So the lines that a run gets are landed first, with offsets, in the store that rows of a
database have too (:class:`~sluice.sources.landed.intake.Intake`), and from there in the write-ahead log. From its
landing on each line is there once. Lines that came and were not landed yet are lost if the driver dies, and so is what
the server sends while no run listens: they are not counted, for they never had an offset.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator

from sluice.errors import ConfigError, SinkError, SourceUnreachableError
from sluice.home import Home
from sluice.sources.base import SourceKind
from sluice.sources.landed.intake import OvertakenError
from sluice.sources.landed.position import Position
from sluice.sources.landed.source import LandedSource
from sluice.sources.socket.config import SocketSource
from sluice.sources.state import PartitionState, TopicState

__all__ = ["KIND", "Lines"]

logger = logging.getLogger("sluice")

_PIECE = 1 << 16
_LONGEST = 16 << 20
"""Bytes of the longest line."""
_EACH = 1.0
"""Seconds after which lines are landed: so much is lost if the driver dies."""
_ROWS, _SIZE = 100_000, 32 << 20
"""Lines, and bytes, that are landed at once at the latest."""
_PATIENCE = 5.0
"""Seconds in which the server must answer, and end a line that it has begun."""
_FORGOTTEN = 1
"""A floor above the key that all lines have: none of them can come again."""


class Lines(LandedSource):
    """The lines of a pipeline: those that were landed, and those that a run lands.

    Attributes
    ----------
    notes
        What the user should know, as far as :meth:`snapshot` found it.
    found
        As in :class:`~sluice.sources.base.Announcing`.
    """

    def __init__(self, config: SocketSource, home: Home, pipeline: str) -> None:
        self.config = config
        self.notes: list[str] = []
        self.found: Callable[[], None] = lambda: None
        self._path = home.source(pipeline)
        self._listened = False

    def snapshot(self) -> list[TopicState]:
        """Listen, if this object did not yet, and land what comes; return the state of what was landed.

        Raises
        ------
        SourceUnreachableError
            If the server does not answer.
        ConfigError
            If a line is too long.
        SinkError
            If lines cannot be landed.
        """
        if not self._listened:
            self._listened = True
            self._listen()
        now = self.intake
        return [TopicState(now.stream, now.id, {0: PartitionState(now.start, now.position.end)})]

    def _listen(self) -> None:
        config = self.config
        try:
            connection = socket.create_connection((config.host, config.port), timeout=_PATIENCE)
        except OSError as error:
            raise SourceUnreachableError(
                f"{config.shown} does not answer: {error}",
                state="nothing was read or written now; what earlier runs wrote is in the sink",
                next_step="start the server, or correct source.socket",
            ) from error
        before = self.intake.position.end
        with connection:
            for lines in self._portions(connection):
                self._land(lines)
        logger.info("%d lines came from %s", self.intake.position.end - before, config.shown)

    def _portions(self, connection: socket.socket) -> Iterator[list[bytes]]:
        """Yield the lines that come until the time is up or the server is done, in portions to be landed."""
        until = time.monotonic() + self.config.listen.total_seconds()
        held, size, since, rest = list[bytes](), 0, time.monotonic(), b""
        while True:
            now = time.monotonic()
            if now >= until + (_PATIENCE if rest else 0):
                break
            connection.settimeout(max(0.01, min(_EACH, until - now)) if now < until else _EACH)
            try:
                piece = connection.recv(_PIECE)
            except TimeoutError:
                piece = None
            except OSError as error:
                self.notes.append(f"the connection to {self.config.shown} broke: {error}")
                break
            if piece == b"":
                break
            if piece:
                found = (rest + piece).split(b"\n")
                rest = found.pop()
                if now >= until:  # only the line that had begun is waited for
                    found, rest = found[:1], b"" if found else rest
                if len(rest) > _LONGEST:
                    raise self._too_long()
                held += found
                size += len(piece)
            if held and (time.monotonic() - since >= _EACH or len(held) >= _ROWS or size >= _SIZE):
                yield held
                held, size, since = [], 0, time.monotonic()
            elif not held:
                since = time.monotonic()
        if rest:  # the server ended without a line break, or stopped within a line
            held.append(rest)
        if held:
            yield held

    def _too_long(self) -> ConfigError:
        return ConfigError(
            f"{self.config.shown} sends a line of more than {_LONGEST >> 20} MB",
            state="the lines before it were landed, and the next run writes them",
            next_step="let the server send text, with a line break after each record",
        )

    def _land(self, lines: list[bytes]) -> None:
        import pyarrow as pa

        self.found()
        count, now = len(lines), time.time_ns() // 1000
        pair = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
        records = pa.table(
            {
                "key": pa.nulls(count, pa.binary()),
                "value": pa.array([line.removesuffix(b"\r") for line in lines], pa.binary()),
                "headers": pa.nulls(count, pa.list_(pair)),
                "timestamp": pa.repeat(pa.scalar(now), count).cast(pa.timestamp("us", "UTC")),
            }
        )
        while True:
            try:
                self.intake.land(records, 0, Position(floor=_FORGOTTEN, what={"socket": self.config.shown}))
            except OvertakenError:  # a second run of the pipeline listens, too
                self.intake.refresh()
                continue
            except SinkError as error:
                error.state = f"{count:,} lines that came are lost; those before them were landed"
                raise
            return


KIND = SourceKind(
    config=SocketSource,
    open="sluice.sources.socket.source:Lines",
    reader="sluice_spark.sources.jdbc:JdbcReader",
    replayable=False,
    seek_by_time=False,
    retention=True,
    by_range=True,
)
