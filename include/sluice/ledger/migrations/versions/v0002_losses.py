"""Epochs, lost ranges, sealed segments, redriven accounts. Derived tables are recreated from the events."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _counts() -> list[sa.Column[int]]:
    names = ("written", "filtered", "quarantined", "absent", "lost")
    return [sa.Column(name, sa.BigInteger, nullable=False) for name in names]


def upgrade() -> None:
    op.drop_table("sluice_run")
    op.drop_table("sluice_account")
    op.create_table(
        "sluice_run",
        sa.Column("pipeline", sa.String(64), primary_key=True),
        sa.Column("run", sa.String(250), primary_key=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("recovery", sa.String(16), nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("opened_at", sa.String(32), nullable=False),
        sa.Column("closed_at", sa.String(32)),
        sa.Column("seconds", sa.Float),
        sa.Column("verdict", sa.String(16)),
        sa.Column("judgement", sa.JSON()),
        sa.Column("error", sa.JSON()),
        sa.Column("notes", sa.JSON(), nullable=False),
        sa.Column("topic_ids", sa.JSON(), nullable=False),
        sa.Column("sequence", _id, nullable=False),
    )
    op.create_index("sluice_run_order", "sluice_run", ["pipeline", "sequence"])
    op.create_table(
        "sluice_epoch",
        sa.Column("pipeline", sa.String(64), primary_key=True),
        sa.Column("epoch", sa.Integer, primary_key=True),
        sa.Column("lineage", sa.String(16), nullable=False),
        sa.Column("positions", sa.JSON()),
        sa.Column("run", sa.String(250), nullable=False),
        sa.Column("at", sa.String(32), nullable=False),
    )
    op.create_table(
        "sluice_account",
        sa.Column("pipeline", sa.String(64), primary_key=True),
        sa.Column("epoch", sa.Integer, primary_key=True),
        sa.Column("batch", sa.Integer, primary_key=True),
        sa.Column("topic", sa.String(249), primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True),
        sa.Column("start", sa.BigInteger, primary_key=True),
        sa.Column("end", sa.BigInteger, nullable=False),
        sa.Column("run", sa.String(250), nullable=False),
        sa.Column("of", sa.String(16)),
        *_counts(),
    )
    op.create_index("sluice_account_run", "sluice_account", ["pipeline", "run"])
    op.create_table(
        "sluice_lost",
        sa.Column("pipeline", sa.String(64), primary_key=True),
        sa.Column("topic", sa.String(249), primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True),
        sa.Column("start", sa.BigInteger, primary_key=True),
        sa.Column("end", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("batch", sa.Integer, nullable=False),
        sa.Column("run", sa.String(250), nullable=False),
        sa.Column("at", sa.String(32), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("sample", sa.JSON()),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("redriven_by", sa.String(250)),
    )
    op.create_table(
        "sluice_sealed",
        sa.Column("pipeline", sa.String(64), primary_key=True),
        sa.Column("epoch", sa.Integer, primary_key=True),
        sa.Column("batch", sa.Integer, primary_key=True),
        sa.Column("run", sa.String(250), nullable=False),
        sa.Column("at", sa.String(32), nullable=False),
        sa.Column("segments", sa.Integer, nullable=False),
        sa.Column("records", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
    )
