"""Threads of one process that write at the same time share one commit, and nothing else."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from settled.core.errors import LedgerUnavailableError, OperationConflictError
from settled.core.fold import Event
from settled.core.words import EventType, Status
from settled.store.audit import verify
from settled.store.ledger import Ledger
from settled.store.requests import Stored, store_request
from settled.store.transaction import Transaction
from settled.store.writer import Move, record
from tests.conftest import eventually
from tests.lib.store.ledgers import NOW_US, a_request, new_ledger, rows, submit

Work = Callable[[Transaction], Any]


def storing(operation_id: str, **changes: Any) -> Work:
    return lambda transaction: store_request(transaction, a_request(operation_id, **changes), NOW_US)


def nothing() -> None:
    """There is nothing to take back."""


class Crowd:
    """One thread holds the write open until all the others wait behind it."""

    def __init__(self, ledger: Ledger, first: Work) -> None:
        self.ledger, self.undone = ledger, [0]
        self._go = threading.Event()
        self._pool = ThreadPoolExecutor(20)
        self._begun = threading.Event()

        def held(transaction: Transaction) -> Any:
            self._begun.set()
            assert self._go.wait(20)
            return first(transaction)

        self.first = self.write(held)
        assert self._begun.wait(20)

    def write(self, work: Work) -> "Future[Any]":
        return self._pool.submit(self.ledger.together.write, work, self._count)

    def release(self, waiting: int) -> None:
        """Let the first go on once so many wait behind it."""
        eventually(lambda: len(self.ledger.together._waiting) == waiting)
        self._go.set()
        self._pool.shutdown(wait=True)

    def _count(self) -> None:
        self.undone[0] += 1


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return new_ledger(tmp_path)


def seals(ledger: Ledger) -> list[int]:
    return [row[0] for row in rows(ledger, "SELECT events FROM seal ORDER BY id")]


def test_who_comes_during_a_commit_shares_the_next_one_and_gets_an_answer_of_its_own(ledger: Ledger) -> None:
    crowd = Crowd(ledger, storing("first"))
    others = [crowd.write(storing(f"op-{number}")) for number in range(7)]
    crowd.release(waiting=7)
    assert isinstance(crowd.first.result(), Stored)
    assert sorted(other.result().row.operation_id for other in others) == [f"op-{number}" for number in range(7)]
    assert seals(ledger) == [1, 7]
    assert not list(verify(ledger)) and crowd.undone == [0]


def test_one_that_is_refused_leaves_nothing_and_disturbs_nobody(ledger: Ledger) -> None:
    submit(ledger, "taken")
    before = seals(ledger)

    def stores_twice(transaction: Transaction) -> None:
        row = store_request(transaction, a_request("half"), NOW_US).row
        record(transaction, [Move(row, [Event(EventType.CANCELLED, Status.CANCELLED, 0, NOW_US, {})])])
        store_request(transaction, a_request("taken", fingerprint="json1:other"), NOW_US)

    crowd = Crowd(ledger, storing("first"))
    good, bad = [crowd.write(storing("one"))], crowd.write(stores_twice)
    good.append(crowd.write(storing("two")))
    crowd.release(waiting=3)
    with pytest.raises(OperationConflictError):
        bad.result()
    assert all(one.result().created for one in good)
    assert crowd.undone == [1]
    assert seals(ledger) == [*before, 1, 2]
    assert [row[0] for row in rows(ledger, "SELECT operation_id FROM operation ORDER BY id")] == ["taken", "first", "one", "two"]
    assert rows(ledger, "SELECT status, count FROM tally WHERE count <> 0") == [["prepared", 4]]
    assert not list(verify(ledger))


def test_what_is_undone_is_known_before_the_next_goes_on(ledger: Ledger) -> None:
    order: list[str] = []

    def refused(transaction: Transaction) -> None:
        raise ValueError("refused")

    crowd = Crowd(ledger, storing("first"))
    bad = crowd._pool.submit(ledger.together.write, refused, lambda: order.append("undone"))
    eventually(lambda: len(ledger.together._waiting) == 1)
    crowd.write(lambda transaction: order.append("next"))
    crowd.release(waiting=2)
    with pytest.raises(ValueError, match="refused"):
        bad.result()
    assert order == ["undone", "next"]


def test_an_error_of_the_store_is_told_to_everyone_and_nothing_is_stored(ledger: Ledger) -> None:
    def full(transaction: Transaction) -> None:
        pages = transaction.cursor.execute("PRAGMA page_count").fetchone()[0]
        transaction.cursor.execute(f"PRAGMA max_page_count={pages}").fetchall()
        try:
            store_request(transaction, a_request("large", arguments="x" * 100_000), NOW_US)
        finally:
            transaction.cursor.execute("PRAGMA max_page_count=1000000").fetchall()

    crowd = Crowd(ledger, storing("first"))
    others = [crowd.write(storing("one")), crowd.write(full), crowd.write(storing("two"))]
    crowd.release(waiting=3)
    for other in others:
        with pytest.raises(LedgerUnavailableError, match="full"):
            other.result()
    assert crowd.undone == [3]
    assert seals(ledger) == [1]
    assert ledger.together.write(storing("later"), nothing).created


def test_an_interrupt_of_the_thread_that_leads_leaves_nobody_waiting(ledger: Ledger) -> None:
    def interrupted(transaction: Transaction) -> None:
        raise KeyboardInterrupt

    crowd = Crowd(ledger, storing("first"))
    leader = crowd.write(storing("leader"))
    eventually(lambda: len(ledger.together._waiting) == 1)
    others = [crowd.write(interrupted), crowd.write(storing("other"))]
    crowd.release(waiting=3)
    with pytest.raises(KeyboardInterrupt):
        leader.result()
    for other in others:
        with pytest.raises(LedgerUnavailableError, match="interrupted"):
            other.result()
    assert seals(ledger) == [1]
    assert ledger.together.write(storing("later"), nothing).created


def test_a_crowd_that_never_rests_is_served_completely(ledger: Ledger) -> None:
    def many(name: int) -> None:
        for number in range(25):
            assert ledger.together.write(storing(f"{name}-{number}"), nothing).created

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(many, range(16))) == [None] * 16
    assert sum(seals(ledger)) == 16 * 25
    assert len(seals(ledger)) < 16 * 25, "nothing was shared"
    assert not list(verify(ledger))
