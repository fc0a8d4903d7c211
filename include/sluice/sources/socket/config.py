"""The key ``source.socket`` of a pipeline file."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field, field_validator

from sluice.fields import Duration
from sluice.sources.base import SourceConfig

__all__ = ["SocketSource"]

_LONGEST = timedelta(hours=1)


class SocketSource(SourceConfig):
    """Lines that a TCP server sends, for demonstrations: what it sends while no run listens is not read."""

    host: Annotated[str, Field(min_length=1)] = "localhost"
    """The server's name or address."""
    port: Annotated[int, Field(gt=0, lt=65536)]
    """The server's port."""
    listen: Duration = timedelta(seconds=10)
    """How long a run listens, unless the server closes the connection first; at most ``1h``."""
    keep: Duration = timedelta(0)
    """How long landed lines are kept after they are in the write-ahead log."""
    starting_offsets: Literal["earliest"] = "earliest"
    """Always ``earliest``, at the first line that was landed."""

    @field_validator("listen")
    @classmethod
    def _listen(cls, value: timedelta) -> timedelta:
        if not timedelta(0) < value <= _LONGEST:
            raise ValueError("a run listens for more than 0s, and at most 1h")
        return value

    @property
    def streams(self) -> list[str]:
        """Always ``socket``."""
        return ["socket"]

    @property
    def shown(self) -> str:
        """The server, for messages."""
        return f"{self.host}:{self.port}"
