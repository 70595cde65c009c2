"""The schema's revisions, run by alembic from inside the package. Use settled.store.revisions, never these files."""
