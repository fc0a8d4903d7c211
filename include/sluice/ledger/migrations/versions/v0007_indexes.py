"""Indexes for the batches that no event announced, and for the ends of the accounts of each partition."""

from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_index("sluice_batch_news", "sluice_batch", ["pipeline", "announced", "state", "epoch"])
    op.create_index(
        "sluice_account_ends", "sluice_account", ["pipeline", "topic", "partition", "end", "epoch", "closed"]
    )
