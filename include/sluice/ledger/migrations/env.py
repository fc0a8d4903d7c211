"""Alembic's entry: runs the migrations on the connection that the store hands over."""

from alembic import context

from sluice.ledger.schema import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
)
context.run_migrations()
