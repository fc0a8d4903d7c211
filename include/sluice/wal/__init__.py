"""The write-ahead log: records as Kafka had them, in sealed segments, for as long as they are wanted.

It is a Delta table whose rows are Kafka's own columns. Delta was chosen over a format of our own because a seal must be
one atomic commit, on a disk as on an object store, refused to all but one of two writers of the same batch; because
anything that reads Delta can read the log when this project is not at hand; and because Parquet checks each page
by a CRC-32 of its own as it is read, so that checking costs no second pass.
"""

from sluice.wal.log import WriteAheadLog
from sluice.wal.segment import Damage, DamagedLogError, Segment

__all__ = ["Damage", "DamagedLogError", "Segment", "WriteAheadLog"]
