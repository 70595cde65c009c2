"""Look after the database file itself."""

from settled.store.ledger import Ledger


def checkpoint(ledger: Ledger) -> None:
    """Move the write-ahead log into the database as far as readers allow; nothing in other journal modes."""
    if ledger.meta.get("journal_mode") != "wal":
        return
    pooled = ledger.engine().raw_connection()
    try:
        cursor = pooled.cursor()
        cursor.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        cursor.close()
    finally:
        pooled.close()
