"""Which batches an asset event has told of."""

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("sluice_batch", sa.Column("announced", sa.String(250)))
    # events were sent before they were noted: the next one must not tell of a pipeline's whole past
    batch = sa.table("sluice_batch", *(sa.column(name) for name in ("pipeline", "epoch", "batch", "state")))
    event = sa.table(
        "sluice_event",
        *(sa.column(name) for name in ("at", "type", "pipeline", "run")),
        sa.column("payload", sa.JSON()),
    )
    newest = sa.select(batch.c.pipeline, batch.c.epoch, sa.func.max(batch.c.batch).label("last"))
    upto: dict[str, list[list[int]]] = {}
    for row in op.get_bind().execute(
        newest.where(batch.c.state == "committed").group_by(batch.c.pipeline, batch.c.epoch)
    ):
        upto.setdefault(row.pipeline, []).append([row.epoch, row.last])
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    for pipeline, batches in upto.items():
        payload = {"upto": sorted(batches), "version": None}
        values = {"at": now, "type": "Announced", "pipeline": pipeline, "run": "", "payload": payload}
        op.get_bind().execute(event.insert().values(**values))
