"""An interval of record time, which a backfill reprocesses, and its validation."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sluice.errors import ConfigError

__all__ = ["ALWAYS", "Interval", "moment_of"]

_UNTOUCHED = "nothing was read or written"
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, order=True)
class Interval:
    """The records whose Kafka timestamp is in ``[start, end)``; both in UTC, in whole milliseconds, as in Kafka.

    Create it with :meth:`of` or :meth:`parse`, which validate it.
    """

    start: datetime
    end: datetime

    @classmethod
    def of(cls, start: datetime, end: datetime, *, now: datetime | None = None) -> Interval:
        """Return the interval between two times with a time zone.

        Fractions of a millisecond are rounded up, which moves no record into or out of the interval.

        Raises
        ------
        ConfigError
            If it is reversed or empty, or ends in the future, where records may still be added.
        """
        start, end = _whole(start), _whole(end)
        if end == start:
            raise ConfigError(
                f"the interval from {_text(start)} to {_text(end)} is empty: it has no width",
                state=_UNTOUCHED,
                next_step="give an end after the start, or neither of them for what is available now. In Airflow a "
                "bare cron has empty intervals: the DAG needs CronDataIntervalTimetable",
            )
        if end < start:
            raise ConfigError(
                f"the interval from {_text(start)} to {_text(end)} is reversed",
                state=_UNTOUCHED,
                next_step="swap start and end",
            )
        if end > (now or datetime.now(UTC)):
            raise ConfigError(
                f"the interval ends at {_text(end)}, in the future: not all of its records exist yet",
                state=_UNTOUCHED,
                next_step="give an end in the past; new records are for live runs, without start and end",
            )
        return cls(start, end)

    @classmethod
    def parse(cls, start: str, end: str, *, now: datetime | None = None) -> Interval:
        """Return the interval between two ISO 8601 timestamps; without a zone they are UTC, without a time midnight.

        Raises
        ------
        ConfigError
            If a value is not an ISO 8601 timestamp, or as :meth:`of`.
        """
        return cls.of(moment_of(start), moment_of(end), now=now)

    @property
    def key(self) -> str:
        """The canonical text of the interval, which identifies it: ``START/END`` in ISO 8601, UTC."""
        return f"{_text(self.start)}/{_text(self.end)}"

    @classmethod
    def from_key(cls, key: str) -> Interval:
        """Read :attr:`key`."""
        start, end = key.split("/")
        return cls(moment_of(start), moment_of(end))

    def overlaps(self, other: Interval) -> bool:
        """Whether a record could be in both intervals."""
        return self.start < other.end and other.start < self.end

    @property
    def milliseconds(self) -> tuple[int, int]:
        """Start and end in milliseconds since 1970 (UTC)."""
        return round(self.start.timestamp() * 1000), round(self.end.timestamp() * 1000)

    def __str__(self) -> str:
        return f"[{_text(self.start)}, {_text(self.end)})"


ALWAYS = Interval(datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC))
"""The interval of all times, for who reads records of any."""


def moment_of(text: str) -> datetime:
    """Return the moment of an ISO 8601 timestamp; without a zone it is UTC.

    Raises
    ------
    ConfigError
        If it is none.
    """
    try:
        found = datetime.fromisoformat(text.strip())
        found.astimezone(UTC)
    except OverflowError:
        raise ConfigError(
            f"{text!r} is, in UTC, not within the years 1 to 9999",
            state=_UNTOUCHED,
            next_step="choose a time within them",
        ) from None
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
