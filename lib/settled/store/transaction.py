"""A running transaction, as the statements of this package see it."""

from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from settled.store.prepared import Build, Statements
from settled.store.sealing import Sealing


class Transaction:
    """A cursor of the driver, the prepared statements, and what is to be sealed."""

    __slots__ = ("cursor", "sealing", "statements")

    def __init__(self, cursor: Any, statements: Statements) -> None:
        self.cursor, self.statements = cursor, statements
        self.sealing = Sealing()

    def run(self, build: Build, **values: Any) -> Any:
        """Execute one statement once; return the cursor, to fetch from at once."""
        return self.statements[build].run(self.cursor, values)

    def finish(self) -> None:
        """Write the seal and the tally of this transaction."""
        self.sealing.finish(self.cursor, self.statements)


def at_commit(connection: sa.Connection, call: Callable[[], None]) -> None:
    """Call once when a caller's own transaction commits: just before, while it still holds the write lock."""
    sa.event.listen(connection, "commit", lambda _connection: call(), once=True)
