"""Know the revision of a ledger's schema, and bring an older one up to date when a person asks for it.

Promise: checking is one short read and changes nothing; only `upgrade` migrates, in one transaction that excludes every other
writer and looks at the revision again inside it, so that any number of processes may ask at once.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from settled.core.errors import ConfigurationError, SchemaMismatchError
from settled.core.limits import DEFAULTS
from settled.store.engine import check_place, check_readable, make_engine, refuse_affected_wal
from settled.store.failures import is_not_a_database, not_a_database, translate
from settled.store.schema import meta

HEAD: Final = "0001"
_MIGRATIONS: Final = "settled.store:migrations"
_ALONE: Final = threading.Lock()  # alembic keeps the connection it works on in a module: two threads would migrate one file twice


def check_revision(engine: sa.Engine, path: Path) -> dict[str, str]:
    """Return what `meta` holds. `journal_mode` is what the file itself answers, `journal_mode_chosen` what was stored.

    Raises SchemaMismatchError for another revision or none, ConfigurationError for a file that is no database.
    """
    with _named(path), engine.execution_options(settled_write=False).begin() as connection:
        found = _revision(connection)
        if found != HEAD:
            raise SchemaMismatchError(found, HEAD, str(path))
        facts: dict[str, str] = {row.key: row.value for row in connection.execute(sa.select(meta.c.key, meta.c.value))}
        facts["journal_mode_chosen"] = facts.get("journal_mode", "")
        facts["journal_mode"] = str(connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()).lower()
    return facts


def upgrade(path: Path, *, busy_timeout_seconds: float = DEFAULTS.busy_timeout_seconds) -> tuple[str, str]:
    """Migrate a ledger to this version's schema; return the revisions before and after. Nothing to do is no error.

    Raises SchemaMismatchError for a revision that this version does not know, ConfigurationError for what is no ledger,
    LedgerUnavailableError where others keep it busy. A migration that fails leaves the ledger as it was.
    """
    check_place(path)
    if not path.exists():
        raise ConfigurationError(f"there is no ledger at {path}. Nothing was created. Run: settled init --database {path}")
    check_readable(path)
    refuse_affected_wal(path)
    engine = make_engine(path, busy_timeout_seconds)
    try:
        with _named(path), engine.begin() as connection:
            found = _revision(connection)
            if found is None:
                raise SchemaMismatchError(None, HEAD, str(path))
            if found != HEAD:
                apply_migrations(connection, found, path)
        return found, HEAD
    except sa.exc.DBAPIError as error:
        raise translate(error, path) or error from error
    finally:
        engine.dispose()


def apply_migrations(connection: sa.Connection, found: str | None, path: Path) -> None:
    """Run the migrations after `found` (None: all of them) inside the caller's transaction."""
    # Imported here: alembic costs more time than all else that opening a ledger does, and opening never migrates.
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", _MIGRATIONS)
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if found is not None and found not in known:
        raise SchemaMismatchError(found, HEAD, str(path), leads_here=False)
    with _ALONE:
        command.upgrade(config, HEAD)


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    found = connection.exec_driver_sql("SELECT version_num FROM alembic_version").fetchall()
    return ", ".join(sorted(row[0] for row in found)) or None


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Say which file it is that is no database; the driver does not."""
    try:
        yield
    except sa.exc.DatabaseError as error:
        if not is_not_a_database(error):
            raise
        raise not_a_database(path) from error
