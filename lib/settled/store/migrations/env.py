"""Run the revisions on the connection that settled.store.revisions hands over, inside its transaction."""

from alembic import context

from settled.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite alters a table by copying it
)
with context.begin_transaction():
    context.run_migrations()
