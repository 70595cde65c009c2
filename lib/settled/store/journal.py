"""Change the journal mode of a ledger that nobody else has open.

Promise: the file is held alone from the first read to the stored answer. `meta` says what the file answered, never what was asked.
"""

from pathlib import Path
from typing import Any
from urllib.parse import quote

from settled.core.errors import ConfigurationError, LedgerUnavailableError
from settled.core.limits import DEFAULTS
from settled.store.creation import Journal, ask_for_journal, choose_journal
from settled.store.engine import check_place
from settled.store.failures import translate
from settled.store.sqlite_library import sqlite_module


def set_journal(path: Path, mode: Journal, *, module: Any = None, busy_timeout_seconds: float = DEFAULTS.busy_timeout_seconds) -> str:
    """Set the mode of the ledger at `path`; return the mode it had.

    Works with an SQLite that has the WAL-reset bug too, for the way out of WAL: one connection alone is not affected. Raises
    LedgerUnavailableError where somebody else has the ledger open, ConfigurationError where the mode cannot be had.
    """
    check_place(path)
    if not path.exists():
        raise ConfigurationError(f"there is no ledger at {path}. Nothing was created. Run: settled init --database {path}")
    choose_journal(mode, module)
    module = module or sqlite_module()
    driver = module.connect(f"file:{quote(str(path))}?mode=rw", uri=True, isolation_level=None, timeout=busy_timeout_seconds)
    try:
        return _set_alone(driver, path, mode)
    except module.Error as error:
        translated = translate(error, path)
        if isinstance(translated, LedgerUnavailableError):
            raise LedgerUnavailableError(
                f"the ledger {path} is open elsewhere. Its journal mode was not changed. Stop all workers and callers, then try again."
            ) from error
        raise translated or error from error
    finally:
        driver.close()


def _set_alone(driver: Any, path: Path, mode: Journal) -> str:
    # Before the first read: a WAL is then opened without shared memory, which fails where anybody else has the file open.
    driver.execute("PRAGMA locking_mode=EXCLUSIVE").fetchall()
    driver.execute("PRAGMA synchronous=FULL").fetchall()
    driver.execute("BEGIN EXCLUSIVE")
    known = driver.execute("SELECT count(*) FROM sqlite_master WHERE name IN ('meta', 'alembic_version')").fetchone()[0]
    driver.execute("COMMIT")  # the lock stays, and a mode cannot change inside a transaction
    if known != 2:
        raise ConfigurationError(f"the file {path} is not a ledger of settled. Nothing was changed. Give the path of a ledger.")
    had = str(driver.execute("PRAGMA journal_mode").fetchone()[0]).lower()
    answered = ask_for_journal(driver, mode)
    driver.execute("UPDATE meta SET value = ? WHERE key = 'journal_mode'", (answered,))
    if answered != mode:
        raise ConfigurationError(f"the file system of {path} answers {answered!r}, not {mode!r}. The ledger is in {answered!r} now.")
    return had
