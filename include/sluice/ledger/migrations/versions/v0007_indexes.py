"""What no event has told of, and where each partition was read to, are found without reading all batches."""

from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_index("sluice_batch_news", "sluice_batch", ["pipeline", "announced", "state", "epoch"])
    op.create_index(
        "sluice_account_ends", "sluice_account", ["pipeline", "topic", "partition", "end", "epoch", "closed"]
    )
