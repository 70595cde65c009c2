"""A running transaction, as the statements of this package see it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from settled.store.prepared import Build, Statements
from settled.store.sealing import Sealing

if TYPE_CHECKING:
    from settled.store.pauses import Paused


class Transaction:
    """A cursor of the driver, the prepared statements, what is to be sealed, and what is paused where that was read."""

    __slots__ = ("cursor", "paused", "sealing", "statements")

    def __init__(self, cursor: Any, statements: Statements) -> None:
        self.cursor, self.statements = cursor, statements
        self.sealing = Sealing()
        self.paused: Paused | None = None

    def run(self, build: Build, **values: Any) -> Any:
        """Execute one statement once; return the cursor, to fetch from at once."""
        return self.statements[build].run(self.cursor, values)

    def finish(self) -> None:
        """Write the seal and the tally of this transaction."""
        self.sealing.finish(self.cursor, self.statements)


def at_commit(connection: sa.Connection, call: Callable[[], None]) -> None:
    """Call once when a caller's own transaction commits: just before, while it still holds the write lock."""
    sa.event.listen(connection, "commit", lambda _connection: call(), once=True)
