"""The record times of offset ranges."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "sluice_times",
        sa.Column("pipeline", sa.String(64), primary_key=True),
        sa.Column("topic", sa.String(249), primary_key=True),
        sa.Column("partition", sa.Integer, primary_key=True),
        sa.Column("start", sa.BigInteger, primary_key=True),
        sa.Column("end", sa.BigInteger, primary_key=True),
        sa.Column("first", sa.BigInteger, nullable=False),
        sa.Column("last", sa.BigInteger, nullable=False),
    )
