"""Create the first schema.

Until the first release this is the schema of the code itself; from then on it must be frozen and changed by new revisions only.
"""

from alembic import op

from settled.store.schema import APPEND_ONLY, metadata, tell_partial

revision = "0001"
down_revision = None


def upgrade() -> None:
    bind = op.get_bind()
    tell_partial(bind.dialect.name)
    metadata.create_all(bind, checkfirst=False)
    if bind.dialect.name == "sqlite":
        for trigger in APPEND_ONLY:
            op.execute(trigger)
