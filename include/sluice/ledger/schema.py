"""The ledger's tables. ``event`` is the source of truth; all others but ``lease`` can be recreated from it."""

from __future__ import annotations

import sqlalchemy as sa

__all__ = [
    "DERIVED",
    "HEAD",
    "VERSION_TABLE",
    "account",
    "batch",
    "epoch",
    "event",
    "interval",
    "lease",
    "lost",
    "metadata",
    "run",
    "sealed",
]

HEAD = "0008"
"""The schema version that this code reads and writes; migrations upgrade to it."""

VERSION_TABLE = "sluice_version"
"""Not Alembic's default name, because the ledger may share a database with Airflow."""

metadata = sa.MetaData()

_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_json = sa.JSON()
_time = sa.String(32)  # ISO 8601, UTC: the same in every database

event = sa.Table(
    "sluice_event",
    metadata,
    sa.Column("id", _id, primary_key=True, autoincrement=True),
    sa.Column("at", _time, nullable=False),
    sa.Column("type", sa.String(32), nullable=False),
    sa.Column("pipeline", sa.String(64), nullable=False),
    sa.Column("run", sa.String(250), nullable=False),
    sa.Column("payload", _json, nullable=False),
    sa.Index("sluice_event_run", "pipeline", "run", "type"),
    sa.Index("sluice_event_type", "pipeline", "type"),
)

run = sa.Table(
    "sluice_run",
    metadata,
    sa.Column("pipeline", sa.String(64), primary_key=True),
    sa.Column("run", sa.String(250), primary_key=True),
    sa.Column("kind", sa.String(16), nullable=False),  # live, interval, redrive, retract, reset
    sa.Column("recovery", sa.String(16), nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),  # open, done, failed, abandoned
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("opened_at", _time, nullable=False),
    sa.Column("closed_at", _time),
    sa.Column("seconds", sa.Float),
    sa.Column("verdict", sa.String(16)),
    sa.Column("judgement", _json),
    sa.Column("error", _json),
    sa.Column("notes", _json, nullable=False),  # messages of Degraded events
    sa.Column("topic_ids", _json, nullable=False),
    sa.Column("interval", sa.String(64)),  # of record time, for runs of kind interval: start/end
    sa.Column("reason", sa.Text),  # the user's reason for the run
    sa.Column("sequence", _id, nullable=False),  # id of its first event: the order of runs
    sa.Index("sluice_run_order", "pipeline", "sequence"),
)

epoch = sa.Table(
    "sluice_epoch",
    metadata,
    sa.Column("pipeline", sa.String(64), primary_key=True),
    sa.Column("epoch", sa.Integer, primary_key=True),
    sa.Column("lineage", sa.String(16), nullable=False),  # direct, log
    sa.Column("positions", _json),  # where it starts; null for the pipeline's beginning
    sa.Column("run", sa.String(250), nullable=False),
    sa.Column("at", _time, nullable=False),
)

batch = sa.Table(
    "sluice_batch",
    metadata,
    sa.Column("pipeline", sa.String(64), primary_key=True),
    sa.Column("epoch", sa.Integer, primary_key=True),  # 0: redriven; negative: an interval
    sa.Column("batch", sa.Integer, primary_key=True),
    sa.Column("run", sa.String(250), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),  # started, committed
    sa.Column("at", _time, nullable=False),
    sa.Column("announced", sa.String(250)),  # the run whose asset event told of it; null: none has
    sa.Index("sluice_batch_run", "pipeline", "run"),
    sa.Index("sluice_batch_news", "pipeline", "announced", "state", "epoch"),
)

account = sa.Table(
    "sluice_account",
    metadata,
    sa.Column("pipeline", sa.String(64), primary_key=True),
    sa.Column("epoch", sa.Integer, primary_key=True),
    sa.Column("batch", sa.Integer, primary_key=True),
    sa.Column("topic", sa.String(249), primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True),
    sa.Column("start", sa.BigInteger, primary_key=True),
    sa.Column("end", sa.BigInteger, nullable=False),
    sa.Column("run", sa.String(250), nullable=False),
    sa.Column("of", sa.String(16)),  # lost or quarantined, for what was redriven; null for live
    sa.Column("written", sa.BigInteger, nullable=False),
    sa.Column("filtered", sa.BigInteger, nullable=False),
    sa.Column("quarantined", sa.BigInteger, nullable=False),
    sa.Column("absent", sa.BigInteger, nullable=False),
    sa.Column("lost", sa.BigInteger, nullable=False),
    # for intervals: how many offsets of the range their commits removed from the sink and from the quarantine
    sa.Column("replaced", sa.BigInteger, nullable=False, default=0),
    sa.Column("replaced_quarantined", sa.BigInteger, nullable=False, default=0),
    sa.Column("closed", sa.String(250)),  # the reset that took its rows out of the tables; null: it stands
    sa.Index("sluice_account_run", "pipeline", "run"),
    sa.Index("sluice_account_ends", "pipeline", "topic", "partition", "end", "epoch", "closed"),
)

interval = sa.Table(
    "sluice_interval",
    metadata,
    sa.Column("pipeline", sa.String(64), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),  # from 1; its batches have the epoch -number
    sa.Column("interval", sa.String(64), nullable=False),  # start/end
    sa.Column("ranges", _json, nullable=False),  # what its ends were resolved to, per partition
    sa.Column("whole", sa.Boolean, nullable=False),  # both ends are final; else its end may grow
    sa.Column("topic_ids", _json, nullable=False),
    sa.Column("run", sa.String(250), nullable=False),
    sa.Column("at", _time, nullable=False),
    sa.UniqueConstraint("pipeline", "interval", name="sluice_interval_once"),
)

times = sa.Table(
    "sluice_times",
    metadata,
    sa.Column("pipeline", sa.String(64), primary_key=True),
    sa.Column("topic", sa.String(249), primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True),
    sa.Column("start", sa.BigInteger, primary_key=True),
    sa.Column("end", sa.BigInteger, primary_key=True),
    # of the range's records, milliseconds since 1970, both inclusive; first > last if it has no record
    sa.Column("first", sa.BigInteger, nullable=False),
    sa.Column("last", sa.BigInteger, nullable=False),
)

lost = sa.Table(
    "sluice_lost",
    metadata,
    sa.Column("pipeline", sa.String(64), primary_key=True),
    sa.Column("topic", sa.String(249), primary_key=True),
    sa.Column("partition", sa.Integer, primary_key=True),
    sa.Column("start", sa.BigInteger, primary_key=True),
    sa.Column("end", sa.BigInteger, nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("batch", sa.Integer, nullable=False),
    sa.Column("run", sa.String(250), nullable=False),  # the run that lost it
    sa.Column("at", _time, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("sample", _json),
    sa.Column("state", sa.String(16), nullable=False),  # open, redriven, acknowledged, mirrored
    sa.Column("redriven_by", sa.String(250)),
)

sealed = sa.Table(
    "sluice_sealed",
    metadata,
    sa.Column("pipeline", sa.String(64), primary_key=True),
    sa.Column("epoch", sa.Integer, primary_key=True),
    sa.Column("batch", sa.Integer, primary_key=True),
    sa.Column("run", sa.String(250), nullable=False),
    sa.Column("at", _time, nullable=False),
    # what the log still retains of it
    sa.Column("segments", sa.Integer, nullable=False),
    sa.Column("records", sa.BigInteger, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
)

lease = sa.Table(
    "sluice_lease",
    metadata,
    sa.Column("pipeline", sa.String(64), primary_key=True),
    sa.Column("scope", sa.String(64), primary_key=True),  # empty: the live pipeline; else an interval, or redrive
    sa.Column("token", sa.BigInteger, nullable=False),
    sa.Column("holder", _json),
    sa.Column("expires", sa.Float, nullable=False),  # seconds since the epoch
)

DERIVED = (run, epoch, batch, account, lost, sealed, interval, times)
