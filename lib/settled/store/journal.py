"""Change the journal mode of a ledger that nobody else has open.

Promise: the file is held alone from the first read to the stored answer. `meta` says what the file answered, never what was asked.
"""

from pathlib import Path
from typing import Any
from urllib.parse import quote

from settled.core.errors import ConfigurationError, LedgerUnavailableError, SchemaMismatchError
from settled.core.limits import DEFAULTS
from settled.store.creation import Journal, ask_for_journal, choose_journal
from settled.store.engine import check_place, check_readable
from settled.store.failures import is_busy, is_not_a_database, not_a_database, translate
from settled.store.revisions import HEAD
from settled.store.sqlite_library import sqlite_module


def set_journal(path: Path, mode: Journal, *, module: Any = None, busy_timeout_seconds: float = DEFAULTS.busy_timeout_seconds) -> str:
    """Set the mode of the ledger at `path`; return the mode it had.

    Works with an SQLite that has the WAL-reset bug too, for the way out of WAL: one connection alone is not affected. Raises
    LedgerUnavailableError where somebody else has the ledger open, ConfigurationError where the mode cannot be had or the file
    is no ledger of this version.
    """
    check_place(path)
    if not path.exists():
        raise ConfigurationError(f"there is no ledger at {path}. Nothing was created. Run: settled init --database {path}")
    check_readable(path)
    if path.stat().st_size == 0:
        raise SchemaMismatchError(None, HEAD, str(path))
    choose_journal(mode, module)
    module = module or sqlite_module()
    try:
        driver = module.connect(f"file:{quote(str(path))}?mode=rw", uri=True, isolation_level=None, timeout=busy_timeout_seconds)
        try:
            return _set_alone(driver, path, mode)
        finally:
            driver.close()
    except module.Error as error:
        if is_busy(error):
            raise LedgerUnavailableError(
                f"the ledger {path} is open elsewhere. Its journal mode was not changed. Stop all workers and callers, then try again."
            ) from error
        if is_not_a_database(error):
            raise not_a_database(path) from error
        raise translate(error, path) or error from error


def _set_alone(driver: Any, path: Path, mode: Journal) -> str:
    # Before the first read: a WAL is then opened without shared memory, which fails where anybody else has the file open.
    driver.execute("PRAGMA locking_mode=EXCLUSIVE").fetchall()
    driver.execute("PRAGMA synchronous=FULL").fetchall()
    driver.execute("BEGIN EXCLUSIVE")
    known = driver.execute("SELECT count(*) FROM sqlite_master WHERE name IN ('meta', 'alembic_version')").fetchone()[0]
    found = [row[0] for row in driver.execute("SELECT version_num FROM alembic_version").fetchall()] if known == 2 else []
    driver.execute("COMMIT")  # the lock stays, and a mode cannot change inside a transaction
    if found != [HEAD]:
        raise SchemaMismatchError(", ".join(map(str, found)) or None, HEAD, str(path))
    had = str(driver.execute("PRAGMA journal_mode").fetchone()[0]).lower()
    answered = ask_for_journal(driver, mode)
    driver.execute("UPDATE meta SET value = ? WHERE key = 'journal_mode'", (answered,))
    if answered != mode:
        raise ConfigurationError(f"the file system of {path} answers {answered!r}, not {mode!r}. The ledger is in {answered!r} now.")
    return had
