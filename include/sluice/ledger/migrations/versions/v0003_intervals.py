"""Intervals of record time: their resolved ends, what they replaced, leases of their own."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("sluice_run", sa.Column("interval", sa.String(64)))
    op.add_column("sluice_run", sa.Column("reason", sa.Text))
    for name in ("replaced", "replaced_quarantined"):
        op.add_column("sluice_account", sa.Column(name, sa.BigInteger, nullable=False, server_default="0"))
    op.create_table(
        "sluice_interval",
        sa.Column("pipeline", sa.String(64), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("interval", sa.String(64), nullable=False),
        sa.Column("ranges", sa.JSON(), nullable=False),
        sa.Column("whole", sa.Boolean, nullable=False),
        sa.Column("topic_ids", sa.JSON(), nullable=False),
        sa.Column("run", sa.String(250), nullable=False),
        sa.Column("at", sa.String(32), nullable=False),
        sa.UniqueConstraint("pipeline", "interval", name="sluice_interval_once"),
    )
    # tokens must keep growing: a driver with an old one must stay fenced
    op.rename_table("sluice_lease", "sluice_lease_0002")
    op.create_table(
        "sluice_lease",
        sa.Column("pipeline", sa.String(64), nullable=False),
        sa.Column("scope", sa.String(64), nullable=False),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("holder", sa.JSON()),
        sa.Column("expires", sa.Float, nullable=False),
        sa.PrimaryKeyConstraint("pipeline", "scope", name="sluice_lease_scope"),
    )
    op.execute(
        "INSERT INTO sluice_lease (pipeline, scope, token, holder, expires) "
        "SELECT pipeline, '', token, holder, expires FROM sluice_lease_0002"
    )
    op.drop_table("sluice_lease_0002")
