"""The events of one run are found by their type, without reading those of other runs."""

from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.drop_index("sluice_event_run", "sluice_event")
    op.create_index("sluice_event_run", "sluice_event", ["pipeline", "run", "type"])
