"""Faults of the store, for tests that drive the pump by hand."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from settled import App
from settled.core.errors import LedgerUnavailableError
from settled.store.ledger import Ledger
from tests.lib.store.ledgers import another_program
from tests.worker.harness import row_of


@contextlib.contextmanager
def failing_commits(ledger: Ledger, *, after: bool) -> Iterator[None]:
    """Let write transactions fail at the commit: before it is done, or after it was done and only the answer was lost."""
    real = type(ledger).write

    @contextlib.contextmanager
    def failing(self: Ledger) -> Iterator[Any]:
        with real(self) as transaction:
            yield transaction
            if not after:
                raise LedgerUnavailableError("the disk said no. Nothing was recorded. Try again.")
        raise LedgerUnavailableError("the answer to the commit was lost.")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(ledger), "write", failing)
        yield


@contextlib.contextmanager
def full(app: App) -> Iterator[None]:
    """Let the database grow no further than it is, for every connection of this process."""

    def limit(pages: str) -> None:
        connections = []
        for _ in range(4):
            connections.append(app.engine().raw_connection())
        for one in connections:
            one.cursor().execute(f"PRAGMA max_page_count={pages}")
            one.close()
        with app.ledger.read() as transaction:
            transaction.cursor.execute(f"PRAGMA max_page_count={pages}")

    limit("1")  # SQLite never goes below the present size
    yield
    limit("1073741823")


def damage(app: App, operation_id: str) -> None:
    """Make the stored events of one operation unreadable."""
    row = row_of(app, operation_id)
    another_program(
        app.ledger.path,
        "DROP TRIGGER event_no_update",
        "PRAGMA ignore_check_constraints=ON",
        f"UPDATE event SET type = 'nonsense' WHERE operation = {row.id} AND sequence = 1",
    )
