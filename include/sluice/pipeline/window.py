"""The key ``window`` of a pipeline file: rows are aggregated by event time, over as many runs as a window is open."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from sluice.fields import Duration, Strict
from sluice.pipeline.hold import Hold
from sluice.pipeline.operator import OperatorKind, StateOperator, check_columns

__all__ = ["END", "KIND", "START", "Flush", "Window"]

START, END = "window_start", "window_end"
"""The columns of a window's bounds in the sink; the end is exclusive."""

_NOTHING = timedelta(0)


class Flush(Strict):
    """What closes the last windows of a stream that has ended, or rests."""

    after: Duration
    """A run closes all windows if no batch has read records for this long. Later records for them are late."""


class Window(StateOperator):
    """Windows of event time. Spark's checkpoint keeps those that are open from run to run."""

    key = "window"
    said = "a window"
    holding = "has open windows"
    unredrivable = (
        "has a window: a record that is redriven would be absorbed by windows that live runs keep open or have written "
        "already"
    )

    time: Annotated[str, Field(min_length=1)]
    """The column of the transform's result that has the event time: a TIMESTAMP."""
    size: Duration | None = None
    """The length of a window. Windows begin at multiples of ``slide`` since 1970-01-01 UTC. Give it, or ``gap``."""
    slide: Duration | None = None
    """How far apart windows begin: by default ``size`` (tumbling windows); if less, they overlap (sliding windows)."""
    gap: Duration | None = None
    """Sessions: a window goes on as long as records of its key come at most this far apart. It ends that much later."""
    by: tuple[str, ...] = ()
    """Columns of the transform's result: each combination of their values has windows of its own."""
    aggregates: Annotated[dict[str, str], Field(min_length=1)]
    """The sink's other columns: a SQL aggregate over the transform's result for each name."""
    watermark: Duration | None = None
    """How late a record may be: the watermark is the latest event time of earlier batches, less this. Needed, unless
    ``output`` is ``complete``."""
    output: Literal["append", "update", "complete"] = "append"
    """When a window is written: ``append``, once, when the watermark has passed its end; ``update``, by each batch that
    changes it, in place of what it was before; ``complete``, by each batch, all of them in place of the whole table."""
    panes: Literal["auto", "off"] = "off"
    """Whether sliding windows are made of panes of one ``slide``, where that gives the same rows: ``auto``, or ``off``.
    An epoch keeps the way in which it began."""
    ahead: Duration = timedelta(days=1)
    """A record whose event time is later than its batch's time by more than this goes to the quarantine."""

    hold: Hold | None = None
    """Whether partitions that are behind hold the watermark back; by default it follows the latest record of any."""
    flush: Flush | None = None
    """When windows are closed that no later record closes; by default never."""

    @model_validator(mode="after")
    def _sound(self) -> Window:
        if (self.size is None) == (self.gap is None):
            raise ValueError("window needs exactly one of: size (tumbling or sliding windows), gap (sessions)")
        if self.size is not None and self.size <= _NOTHING:
            raise ValueError("window.size must be longer than nothing")
        if self.gap is not None:
            self._session()
        elif self.slide is not None and not _NOTHING < self.slide <= self.length:
            raise ValueError(
                "window.slide must be longer than nothing and at most window.size: otherwise records between two "
                "windows would be in none"
            )
        if self.output == "update" and self.gap is not None:
            raise ValueError(
                "window.output: update is for windows with a size: Spark writes sessions when they end only"
            )
        if self.output == "update" and self.flush is not None:
            raise ValueError(
                "window.flush: with output: update, windows are written before they are closed: leave it out"
            )
        self._complete()
        check_columns(self.key, [*self.by, *self.aggregates], (START, END))
        return self

    def _complete(self) -> None:
        if self.output != "complete":
            if self.watermark is None:
                raise ValueError("window needs watermark: how late a record may be, such as 2h")
            return
        if self.watermark is not None:
            raise ValueError(
                "window.watermark: with output: complete, no window is ever closed, and no record is late: leave it out"
            )
        if self.hold is not None:
            raise ValueError("window.hold: with output: complete, no record is late: leave it out")
        if self.gap is not None:
            raise ValueError("window.output: complete is for windows with a size: choose append for sessions")
        if self.flush is not None:
            raise ValueError("window.flush: with output: complete, no window is ever closed: leave it out")

    def _session(self) -> None:
        if self.length <= _NOTHING:
            raise ValueError("window.gap must be longer than nothing")
        if self.slide is not None:
            raise ValueError("window.slide is for windows with a size: sessions do not overlap; remove it")
        if not self.by:
            raise ValueError(
                "window.gap needs by: Spark keeps sessions for keys only. For one session of all records, give a "
                "column that is the same in all"
            )

    @property
    def length(self) -> timedelta:
        """``size``; or ``gap``, which is the length of a session of one record."""
        found = self.gap if self.size is None else self.size
        assert found is not None
        return found

    @property
    def columns(self) -> list[str]:
        """The sink's columns, without ``_run``."""
        return [START, END, *self.by, *self.aggregates]

    @property
    def identity(self) -> tuple[str, ...]:
        """Which columns tell one row from another: the end follows from the start."""
        return (START, *self.by)

    @property
    def writes(self) -> str:
        """``output``."""
        return self.output

    @property
    def grouping(self) -> tuple[str, ...]:
        """``by``."""
        return self.by

    @property
    def step(self) -> timedelta:
        """``slide``, or ``size`` for tumbling windows."""
        return self.slide or self.length

    @property
    def delay(self) -> timedelta:
        """``watermark``; nothing with ``output: complete``, which has none."""
        return self.watermark or _NOTHING

    @property
    def kept(self) -> timedelta | None:
        """For how much event time state is to be kept, at most; None for ever."""
        return None if self.output == "complete" else self.length + self.delay

    def last_end(self, time: int) -> int:
        """Return the end of the last window of an event time; both in milliseconds since 1970."""
        step, size = (round(span.total_seconds() * 1000) for span in (self.step, self.length))
        if self.gap is not None:
            return time + size + 1  # an event time may be a part of a millisecond later
        return time - time % step + size

    @property
    def definition(self) -> dict[str, Any]:
        """What may not change while windows are open. Spark takes another window size silently, and mixes both."""
        spans = {"gap": self.gap} if self.gap is not None else {"size": self.length, "slide": self.step}
        return {
            "time": self.time,
            **{key: span.total_seconds() for key, span in spans.items()},
            "by": list(self.by),
            "aggregates": [[name, " ".join(text.split())] for name, text in self.aggregates.items()],
            "output": self.output,
        }


KIND = OperatorKind(
    Window,
    "sluice_spark.batch.windows:WindowWriter",
    "sluice_spark.windows.aggregate:check",
    "sluice_spark.windows.state:open_windows",
    flush="sluice_spark.runs.flush:flush_windows",
)
