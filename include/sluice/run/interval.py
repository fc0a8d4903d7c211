"""An interval of record time: what a backfill means, and what it must not be."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sluice.errors import ConfigError

__all__ = ["Interval"]

_UNTOUCHED = "nothing was read or written"
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, order=True)
class Interval:
    """Records whose Kafka time lies in ``[start, end)``; both in UTC, in whole milliseconds, as Kafka counts.

    Make it with :meth:`of` or :meth:`parse`, which refuse what cannot be meant.
    """

    start: datetime
    end: datetime

    @classmethod
    def of(cls, start: datetime, end: datetime, *, now: datetime | None = None) -> Interval:
        """Return the interval between two times with a zone.

        Parts of a millisecond are rounded up, which changes no record's place.

        Raises
        ------
        ConfigError
            When it is reversed, has no width, or ends in the future: its records are not there yet.
        """
        start, end = _whole(start), _whole(end)
        if end == start:
            raise ConfigError(
                f"the interval from {_text(start)} to {_text(end)} has no width: no record lies in it",
                state=_UNTOUCHED,
                next_step="give an end after the start, or neither of them for what is available now. In Airflow a "
                "bare cron has intervals without width: the DAG needs CronDataIntervalTimetable",
            )
        if end < start:
            raise ConfigError(
                f"the interval from {_text(start)} to {_text(end)} is reversed",
                state=_UNTOUCHED,
                next_step="swap start and end",
            )
        if end > (now or datetime.now(UTC)):
            raise ConfigError(
                f"the interval ends at {_text(end)}, in the future: not all of its records are there yet",
                state=_UNTOUCHED,
                next_step="give an end that has passed; what is new is for live runs, without start and end",
            )
        return cls(start, end)

    @classmethod
    def parse(cls, start: str, end: str, *, now: datetime | None = None) -> Interval:
        """Return the interval between two times in ISO 8601; UTC where they name no zone, midnight where no time.

        Raises
        ------
        ConfigError
            When a text is no time, or as of :meth:`of`.
        """
        return cls.of(_time(start), _time(end), now=now)

    @property
    def key(self) -> str:
        """The same text for the same interval, however it was written."""
        return f"{_text(self.start)}/{_text(self.end)}"

    @classmethod
    def from_key(cls, key: str) -> Interval:
        """Read :attr:`key`."""
        start, end = key.split("/")
        return cls(_time(start), _time(end))

    def overlaps(self, other: Interval) -> bool:
        """Whether a record could lie in both."""
        return self.start < other.end and other.start < self.end

    @property
    def milliseconds(self) -> tuple[int, int]:
        """Start and end in milliseconds since 1970."""
        return round(self.start.timestamp() * 1000), round(self.end.timestamp() * 1000)

    def __str__(self) -> str:
        return f"[{_text(self.start)}, {_text(self.end)})"


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigError(
            f"{text!r} is not a time in ISO 8601",
            state=_UNTOUCHED,
            next_step="write it as 2013-03-01, 2013-03-01T06:00 or 2013-03-01T06:00:00+01:00 (UTC without a zone)",
        ) from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def _whole(moment: datetime) -> datetime:
    moment = moment.astimezone(UTC)
    over = timedelta(microseconds=moment.microsecond % 1000)
    return moment + _MILLISECOND - over if over else moment


def _text(moment: datetime) -> str:
    shown = moment.isoformat(timespec="milliseconds" if moment.microsecond else "seconds")
    return shown.replace("+00:00", "Z")
