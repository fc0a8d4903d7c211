"""Which accounts a reset closed; events are found by their type."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("sluice_account", sa.Column("closed", sa.String(250)))
    op.create_index("sluice_event_type", "sluice_event", ["pipeline", "type"])
