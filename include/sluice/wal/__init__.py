"""The write-ahead log: Kafka's records, verbatim, in sealed segments, for a configured time.

It is a Delta table whose rows have Kafka's columns. It is not a format of our own for three reasons. A seal must be an
atomic commit, on a disk and on an object store, of which only one of two writers succeeds. Any Delta reader can read
the log without this project. And Parquet verifies a CRC-32 of each page while reading, so a check needs no second pass.
"""

from sluice.wal.log import Unread, WriteAheadLog
from sluice.wal.segment import Damage, DamagedLogError, Segment

__all__ = ["Damage", "DamagedLogError", "Segment", "Unread", "WriteAheadLog"]
