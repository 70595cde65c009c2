"""Look after the write-ahead log: move it into the database as far as readers allow, and keep the file from growing for ever.

Promise: no writer ever waits for a reader because of this, and a reader that holds the log back is told of.
"""

from pathlib import Path
from typing import NamedTuple

from settled.store.failures import is_busy, translate
from settled.store.ledger import Ledger


class Checkpointed(NamedTuple):
    """What a checkpoint did. `behind` counts pages that a reader, or a writer, keeps in the log."""

    pages: int
    behind: int
    log_bytes: int
    truncated: bool = False


def log_path(ledger: Ledger) -> Path:
    """Return where the write-ahead log lies."""
    return ledger.path.with_name(f"{ledger.path.name}-wal")


def log_bytes(ledger: Ledger) -> int:
    """Return the size of the write-ahead log's file, 0 where there is none."""
    try:
        return log_path(ledger).stat().st_size
    except OSError:
        return 0


def checkpoint(ledger: Ledger) -> Checkpointed:
    """Move the log into the database as far as readers allow; cut its file where it has outgrown its bound.

    Nothing in other journal modes. Raises LedgerUnavailableError where the disk takes no more.
    """
    if ledger.meta.get("journal_mode") != "wal":
        return Checkpointed(0, 0, 0)
    pooled = ledger.engine().raw_connection()
    try:
        cursor = pooled.cursor()
        _, pages, done = cursor.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        truncated = log_bytes(ledger) > ledger.limits.wal_bytes_max and _cut(ledger, cursor)
        cursor.close()
    except ledger.module().Error as error:
        raise translate(error, ledger.path) or error from error
    finally:
        pooled.close()
    return Checkpointed(max(pages, 0), max(pages - done, 0), log_bytes(ledger), truncated)


def _cut(ledger: Ledger, cursor: object) -> bool:
    """Try once to empty the log's file, and wait for nobody: while this waited, every writer would."""
    run = cursor.execute  # type: ignore[attr-defined]
    waits_ms = run("PRAGMA busy_timeout").fetchone()[0]
    run("PRAGMA busy_timeout=0").fetchall()
    try:
        return not run("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    except ledger.module().Error as error:
        if is_busy(error):
            return False
        raise
    finally:
        run(f"PRAGMA busy_timeout={waits_ms}").fetchall()


def synchronous_mode(ledger: Ledger) -> str:
    """Return how far this process's commits go: "full" waits for the disk, which a mark of a dispatch needs."""
    with ledger.read() as transaction:
        (found,) = transaction.cursor.execute("PRAGMA synchronous").fetchone()
    return ("off", "normal", "full", "extra")[found]
