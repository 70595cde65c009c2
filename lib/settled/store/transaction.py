"""A running transaction, as the statements of this package see it."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import sqlalchemy as sa

from settled.core.paused import Paused
from settled.core.too_many import UnknownLimit
from settled.store.prepared import Build, Statements
from settled.store.sealing import Sealing

NO_LIMITS: Final[Mapping[str, UnknownLimit]] = {}


class Transaction:
    """A cursor of the driver, the prepared statements, what is to be sealed, what is paused where that was read, which contracts
    are paused by themselves when they make too many unknown outcomes, what to call just before the commit, once each, while
    nobody else can write yet, what to call after it, before the turn is left, and what to call if what was written is undone."""

    __slots__ = ("after_commit", "before_commit", "cursor", "if_undone", "paused", "sealing", "statements", "unknown_limits")

    def __init__(self, cursor: Any, statements: Statements, unknown_limits: Mapping[str, UnknownLimit] = NO_LIMITS) -> None:
        self.cursor, self.statements = cursor, statements
        self.unknown_limits = unknown_limits
        self.sealing = Sealing()
        self.before_commit: set[Callable[[], object]] = set()
        self.after_commit: list[Callable[[], object]] = []
        self.if_undone: list[Callable[[], None]] = []
        self.paused: Paused | None = None

    def run(self, build: Build, **values: Any) -> Any:
        """Execute one statement once; return the cursor, to fetch from at once."""
        return self.statements[build].run(self.cursor, values)

    def undo(self) -> None:
        """Take back what was remembered of this transaction, while nobody else can write yet."""
        for call in self.if_undone:
            call()

    def finish(self) -> None:
        """Write the seal and the tally of this transaction."""
        self.sealing.finish(self.cursor, self.statements)


def at_commit(connection: sa.Connection, call: Callable[[], None]) -> None:
    """Call once when a caller's own transaction commits: just before, while it still holds the write lock."""
    sa.event.listen(connection, "commit", lambda _connection: call(), once=True)
