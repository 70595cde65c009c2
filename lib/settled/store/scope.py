"""One transaction from its begin to its commit, on a connection that is kept for the next one.

Promise: what the block recorded is committed whole with its seal and tally, or nothing of it is. Errors of the driver come
out as ours.
"""

from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from settled.core.errors import SettledError
from settled.store.failures import translate
from settled.store.transaction import Transaction

if TYPE_CHECKING:
    from settled.store.ledger import Ledger


class Connections:
    """Connections of one engine, kept open between transactions: the pool's own check-out costs more than a small write."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._idle: list[tuple[Any, Any]] = []

    def take(self) -> tuple[Any, Any]:
        """Return a pooled connection and its cursor, for one thread at a time."""
        try:
            return self._idle.pop()
        except IndexError:
            pooled = self._engine.raw_connection()
            return pooled, pooled.cursor()

    def give(self, taken: tuple[Any, Any]) -> None:
        """Keep a connection that is in no transaction."""
        self._idle.append(taken)

    def drop(self, taken: tuple[Any, Any]) -> None:
        """Close a connection whose state is in doubt."""
        taken[0].invalidate()

    def close(self) -> None:
        """Give every idle connection back to the pool."""
        while self._idle:
            pooled, cursor = self._idle.pop()
            cursor.close()
            pooled.close()

    def forget(self) -> list[tuple[Any, Any]]:
        """Return what is idle and know it no more: a forked child keeps it, unclosed, for as long as it lives."""
        idle, self._idle = self._idle, []
        return idle


class Scope:
    """Use as `with ledger.write() as transaction:`."""

    __slots__ = ("_ledger", "_taken", "_transaction", "_turn", "_writes")

    def __init__(self, ledger: "Ledger", *, writes: bool) -> None:
        self._ledger, self._writes = ledger, writes
        self._turn = False

    def __enter__(self) -> Transaction:
        ledger = self._ledger
        ledger.engine()
        if self._writes:
            ledger.turnstile.enter()
            self._turn = True
        try:
            self._taken = ledger.connections.take()
            try:
                self._taken[1].execute("BEGIN IMMEDIATE" if self._writes else "BEGIN")
            except BaseException:
                ledger.connections.drop(self._taken)
                raise
        except BaseException as error:
            self._leave()
            raise self._ours(error) from error
        self._transaction = Transaction(self._taken[1], ledger.statements, ledger.unknown_limits)
        return self._transaction

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None:
                self._commit()
            else:
                self._roll_back()
                ours = self._ours(error)
                if ours is not error:
                    raise ours from error
        finally:
            self._leave()

    def _commit(self) -> None:
        try:
            self._transaction.finish()
            for call in self._transaction.before_commit:
                call()
            self._taken[1].execute("COMMIT")
        except BaseException as failed:
            self._roll_back()
            raise self._ours(failed) from failed
        self._ledger.connections.give(self._taken)
        for call in self._transaction.after_commit:
            with suppress(Exception):  # it is committed, and its owner is to hear nothing else
                call()

    def _roll_back(self) -> None:
        try:
            self._transaction.undo()
            if self._taken[0].driver_connection.in_transaction:
                self._taken[1].execute("ROLLBACK")
        except Exception:  # noqa: BLE001 - the first error is the one that matters
            self._ledger.connections.drop(self._taken)
        else:
            self._ledger.connections.give(self._taken)

    def _leave(self) -> None:
        if self._turn:
            self._turn = False
            self._ledger.turnstile.__exit__(None, None, None)
            if self._ledger.board.is_crowded:
                self._ledger.board.ring()

    def _ours(self, error: BaseException) -> BaseException:
        if isinstance(error, SettledError) or not isinstance(error, Exception):
            return error
        return translate(error, self._ledger.path) or error
