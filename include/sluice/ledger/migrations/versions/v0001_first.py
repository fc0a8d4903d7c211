"""The first schema. Later versions change it by migrations of their own, never here."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "sluice_event",
        sa.Column("id", _id, primary_key=True, autoincrement=True),
        sa.Column("at", sa.String(32), nullable=False),
        sa.Column("type", sa.String(32), nullable=False),
        sa.Column("pipeline", sa.String(64), nullable=False),
        sa.Column("run", sa.String(250), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
    )
    op.create_index("sluice_event_run", "sluice_event", ["pipeline", "run"])
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
        sa.Column("topic_ids", sa.JSON(), nullable=False),
        sa.Column("sequence", _id, nullable=False),
    )
    op.create_index("sluice_run_order", "sluice_run", ["pipeline", "sequence"])
    op.create_table(
        "sluice_batch",
        sa.Column("pipeline", sa.String(64), primary_key=True),
        sa.Column("epoch", sa.Integer, primary_key=True),
        sa.Column("batch", sa.Integer, primary_key=True),
        sa.Column("run", sa.String(250), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("at", sa.String(32), nullable=False),
    )
    op.create_index("sluice_batch_run", "sluice_batch", ["pipeline", "run"])
    op.create_table(
        "sluice_account",
        sa.Column("pipeline", sa.String(64), primary_key=True),
        sa.Column("epoch", sa.Integer, primary_key=True),
        sa.Column("batch", sa.Integer, primary_key=True),
        sa.Column("topic", sa.String(249), primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True),
        sa.Column("run", sa.String(250), nullable=False),
        *(
            sa.Column(name, sa.BigInteger, nullable=False)
            for name in ("start", "end", "written", "filtered", "quarantined", "absent", "lost")
        ),
    )
    op.create_index("sluice_account_run", "sluice_account", ["pipeline", "run"])
    op.create_table(
        "sluice_lease",
        sa.Column("pipeline", sa.String(64), primary_key=True),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("holder", sa.JSON()),
        sa.Column("expires", sa.Float, nullable=False),
    )
