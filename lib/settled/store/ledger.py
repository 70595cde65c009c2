"""One open ledger: its transactions, and what each of them must finish with.

Promise: a write transaction holds the turn and SQLite's write lock from its first statement, ends with one seal over all
its events and one move of the tally, and either commits whole or leaves nothing. A ledger never crosses a fork.
"""

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from settled.core.errors import ConfigurationError, SettledError
from settled.core.limits import DEFAULTS, Limits
from settled.core.too_many import UnknownLimit
from settled.store.binding import binding_differs
from settled.store.board import Board, board_path
from settled.store.engine import abandon, check_library, check_place, check_readable, ledger_path, make_engine, refuse_affected_wal
from settled.store.failures import translate
from settled.store.posting import VERSION
from settled.store.prepared import Statements
from settled.store.revisions import check_revision
from settled.store.scope import Connections, Scope
from settled.store.sqlite_library import sqlite_module
from settled.store.together import Together
from settled.store.transaction import NO_LIMITS, Transaction
from settled.store.turnstile import Turnstile


class Ledger:
    """One ledger file as this process has it open. The engine is made at first use."""

    def __init__(self, database: str, *, limits: Limits = DEFAULTS, monotonic_us: Callable[[], int]) -> None:
        self.path: Path = ledger_path(database)
        self.limits = limits
        self.unknown_limits: Mapping[str, UnknownLimit] = NO_LIMITS
        self._lock = threading.Lock()
        self._engine: sa.Engine | None = None
        self.run_directory = self.path.with_name(self.path.name + ".run")  # locks, recorders and doorbells live there
        self.turnstile = Turnstile(self.run_directory / "turn", monotonic_us=monotonic_us, timeout_seconds=limits.busy_timeout_seconds)
        self.board = Board(self.run_directory / "board")
        self.statements: Statements
        self.connections: Connections
        self._pid = 0
        self._meta: dict[str, str] = {}
        self._misplaced: tuple[str, ...] = ()
        self.together = Together(self)
        drop_after_fork(self)

    @property
    def meta(self) -> dict[str, str]:
        """What was chosen once, at `settled init`."""
        self.engine()
        return self._meta

    @property
    def misplaced(self) -> tuple[str, ...]:
        """In what this file differs from the place that it is bound to; not empty for a copy, from which nothing is dispatched."""
        self.engine()
        return self._misplaced

    def engine(self) -> sa.Engine:
        """Return the engine, opened and checked at the first call.

        Raises ConfigurationError for a missing or unusable file, SchemaMismatchError for another schema.
        """
        if self._engine is not None and self._pid == os.getpid():
            return self._engine
        with self._lock:
            if self._engine is None or self._pid != os.getpid():
                self._open()
        assert self._engine is not None
        return self._engine

    def module(self) -> Any:
        """Return the driver module that this ledger is opened with."""
        return sqlite_module()

    def close(self) -> None:
        """Close all connections of this process."""
        with self._lock:
            if self._engine is not None and self._pid == os.getpid():
                self.connections.close()
                self.board.close()
                self._engine.dispose()
            self._engine = None

    def write(self) -> Scope:
        """Run one write transaction. Raises LedgerUnavailableError where the store cannot be written now; nothing is left."""
        return Scope(self, writes=True)

    def read(self) -> Scope:
        """Run one read transaction: one consistent view, no lock that a writer waits for."""
        return Scope(self, writes=False)

    def join(self, connection: sa.Connection) -> Transaction:
        """Take part in a caller's transaction on this ledger. The caller commits.

        Raises ConfigurationError where the connection uses another SQLite library, ValueError where it is open on
        another file. The file is not touched by the check.
        """
        engine = self.engine()
        if connection.dialect.dbapi is not engine.dialect.dbapi:
            raise ConfigurationError(
                "the connection uses another SQLite library than this ledger; two of them in one process lose commits. "
                "Nothing was stored. Take the connection from app.engine()"
            )
        found = connection.exec_driver_sql("PRAGMA database_list").fetchall()
        file = next((row[2] for row in found if row[1] == "main"), "")
        if not file or os.path.realpath(file) != os.path.realpath(self.path):
            raise ValueError(f"the connection is open on {file or 'another database'}, not on the ledger {self.path}. Nothing was stored.")
        if not connection.in_transaction():
            connection.begin()
        driver = connection.connection.driver_connection
        assert driver is not None
        return Transaction(driver.cursor(), self.statements, self.unknown_limits)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn the driver's errors into ours, by code and never by name."""
        try:
            yield
        except SettledError:
            raise
        except Exception as error:
            translated = translate(error, self.path)
            if translated is None:
                raise
            raise translated from error

    def _open(self) -> None:
        """Open the file as it is. Opening never creates and never changes the journal mode."""
        check_place(self.path)
        if not self.path.exists():
            raise ConfigurationError(f"there is no ledger at {self.path}. Nothing was created. Run: settled init --database {self.path}")
        check_readable(self.path)
        refuse_affected_wal(self.path)
        self._abandon()
        engine = make_engine(self.path, self.limits.busy_timeout_seconds)
        with self._translated():
            self._meta = check_revision(engine, self.path)
        self._misplaced = binding_differs(self._meta, self.path)
        check_library(self._meta.get("journal_mode", "delete"), self.path)
        self.statements = Statements(engine.dialect)
        self.connections = Connections(engine)
        # Of this very file: who still has open what was put aside, by a restore for instance, may not store for who has this one.
        self.board = Board(board_path(self.run_directory, VERSION, self.path.stat().st_ino))
        self._engine, self._pid = engine, os.getpid()


    def _abandon(self) -> None:
        """Drop what was inherited over a fork without closing it: closing would drop the parent's locks."""
        if self._engine is not None:
            _never_closed.extend(self.connections.forget())
            abandon(self._engine)
        self._engine = None


def drop_after_fork(ledger: Ledger) -> None:
    """Forget, without closing, what a forked child inherits."""
    _forked.add(ledger)


_never_closed: list[object] = []
_forked: "weakref.WeakSet[Ledger]" = weakref.WeakSet()


def _after_fork() -> None:
    for ledger in list(_forked):
        ledger._lock = threading.Lock()
        ledger.together = Together(ledger)
        ledger.board.close()
        ledger._abandon()


os.register_at_fork(after_in_child=_after_fork)
