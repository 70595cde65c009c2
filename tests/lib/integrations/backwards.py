"""A codec that anybody can see through, and a look at every text that a ledger holds."""

from tests.lib.apps.bench import Bench


class Backwards:
    """Stores texts backwards."""

    def encode(self, text: str) -> str:
        return text[::-1]

    def decode(self, stored: str) -> str:
        return stored[::-1]


class Marked:
    """Marks what it has stored, and reads what was stored before it, too."""

    def encode(self, text: str) -> str:
        return "marked:" + text

    def decode(self, stored: str) -> str:
        return stored.removeprefix("marked:")


def stored_texts(bench: Bench) -> list[str]:
    """Return all texts of the runs' tables."""
    with bench.app.ledger.read() as transaction:
        cursor = transaction.cursor
        rows = [row for table in ("agent_run", "agent_step", "agent_event") for row in cursor.execute(f"SELECT * FROM {table}").fetchall()]
    return [value for row in rows for value in row if isinstance(value, str)]
