"""Threads of one process that write at the same time share one commit, and nothing else."""

import itertools
import linecache
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import FrameType
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
from tests.lib.store.ledgers import NOW_US, a_request, another_program, new_ledger, rows, submit

Work = Callable[[Transaction], Any]


def storing(operation_id: str, **changes: Any) -> Work:
    return lambda transaction: store_request(transaction, a_request(operation_id, **changes), NOW_US)


def full(transaction: Transaction) -> None:
    """Fail as on a full disk."""
    pages = transaction.cursor.execute("PRAGMA page_count").fetchone()[0]
    transaction.cursor.execute(f"PRAGMA max_page_count={pages}").fetchall()
    try:
        store_request(transaction, a_request("large", arguments="x" * 100_000), NOW_US)
    finally:
        transaction.cursor.execute("PRAGMA max_page_count=1000000").fetchall()


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
        store_request(transaction, a_request("taken", fingerprint="json1:11"), NOW_US)

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


def test_one_that_is_refused_first_of_all_does_not_take_the_time_of_the_seals_back(ledger: Ledger) -> None:
    def stores_and_is_refused(transaction: Transaction) -> None:
        store_request(transaction, a_request("half"), NOW_US)
        raise ValueError("refused")

    later = a_request("later")
    ledger.together.write(lambda transaction: store_request(transaction, later, NOW_US + 1_000_000), nothing)
    crowd = Crowd(ledger, storing("first"))
    bad = crowd.write(stores_and_is_refused)
    eventually(lambda: len(ledger.together._waiting) == 1)
    good = crowd.write(storing("good"))
    crowd.release(waiting=2)
    with pytest.raises(ValueError, match="refused"):
        bad.result()
    assert good.result().created and verify(ledger) == []


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


class Storing:
    """A work that stores the requests of all its items, and refuses some. `calls` are the items of each run."""

    def __init__(self, *refused: str) -> None:
        self.calls: list[list[str]] = []
        self._refused = refused

    def all(self, transaction: Transaction, items: Sequence[str]) -> list[Stored]:
        self.calls.append(sorted(items))
        stored = [store_request(transaction, a_request(item), NOW_US) for item in items]
        for item in items:
            if item in self._refused:
                raise ValueError(f"{item} is refused")
        return stored


def waits(crowd: Crowd, count: int) -> bool:
    return len(crowd.ledger.together._waiting) == count


def alike(crowd: Crowd, work: Storing, items: Sequence[str]) -> "list[Future[Stored]]":
    asked = []
    for number, item in enumerate(items, 1):
        asked.append(crowd._pool.submit(crowd.ledger.together.write_alike, work.all, item, crowd._count))
        eventually(partial(waits, crowd, number))
    return asked


def test_who_asks_for_the_same_is_served_by_one_run_with_an_answer_of_its_own(ledger: Ledger) -> None:
    crowd, work, other = Crowd(ledger, storing("first")), Storing(), Storing()
    asked = alike(crowd, work, ["a", "b", "c"])
    others = [crowd._pool.submit(ledger.together.write_alike, other.all, "z", nothing), crowd.write(storing("y"))]
    crowd.release(waiting=5)
    assert [one.result().row.operation_id for one in asked] == ["a", "b", "c"]
    assert [one.result().row.operation_id for one in others] == ["z", "y"]
    assert (work.calls, other.calls) == ([["a", "b", "c"]], [["z"]])
    assert seals(ledger) == [1, 5] and crowd.undone == [0] and not list(verify(ledger))


def test_one_item_that_is_refused_leaves_nothing_and_the_others_are_run_alone(ledger: Ledger) -> None:
    crowd, work = Crowd(ledger, storing("first")), Storing("b")
    asked = alike(crowd, work, ["a", "b", "c"])
    crowd.release(waiting=3)
    with pytest.raises(ValueError, match="b is refused"):
        asked[1].result()
    assert [asked[number].result().row.operation_id for number in (0, 2)] == ["a", "c"]
    assert work.calls == [["a", "b", "c"], ["a"], ["b"], ["c"]]
    assert seals(ledger) == [1, 2] and crowd.undone == [1] and not list(verify(ledger))
    assert rows(ledger, "SELECT operation_id FROM operation ORDER BY id") == [["first"], ["a"], ["c"]]


def test_the_same_plain_work_of_two_threads_is_run_for_each(ledger: Ledger) -> None:
    ran: list[int] = []

    def work(transaction: Transaction) -> int:
        ran.append(len(ran))
        return ran[-1]

    crowd = Crowd(ledger, storing("first"))
    asked = [crowd.write(work), crowd.write(work)]
    crowd.release(waiting=2)
    assert sorted(one.result() for one in asked) == ran == [0, 1]


def test_an_error_of_the_store_is_told_to_everyone_and_nothing_is_stored(ledger: Ledger) -> None:
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


def test_one_that_is_refused_for_what_its_neighbour_stored_is_not_told_so_where_that_was_rolled_back(ledger: Ledger) -> None:
    crowd = Crowd(ledger, storing("first"))
    others = [crowd.write(storing("same"))]
    eventually(lambda: len(ledger.together._waiting) == 1)
    others.append(crowd.write(storing("same", fingerprint="json1:11")))
    eventually(lambda: len(ledger.together._waiting) == 2)
    others.append(crowd.write(full))
    crowd.release(waiting=3)
    for other in others:
        with pytest.raises(LedgerUnavailableError, match="full"):
            other.result()
    assert crowd.undone == [3]
    assert seals(ledger) == [1]


def test_what_cannot_be_taken_back_disturbs_nobody(ledger: Ledger) -> None:
    def refused(transaction: Transaction) -> None:
        raise ValueError("refused")

    def broken() -> None:
        raise RuntimeError("it is closed")

    with pytest.raises(ValueError, match="refused"):
        ledger.together.write(refused, broken)
    crowd = Crowd(ledger, storing("first"))
    bad, good = crowd._pool.submit(ledger.together.write, refused, broken), crowd.write(storing("good"))
    crowd.release(waiting=2)
    with pytest.raises(ValueError, match="refused"):
        bad.result()
    assert good.result().created


def test_a_write_in_the_midst_of_a_write_of_its_own_thread_does_not_wait_for_itself(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)

    def nested(transaction: Transaction) -> Any:
        ledger.together.write(storing("inner"), nothing)

    with ThreadPoolExecutor(1) as pool, pytest.raises(LedgerUnavailableError, match="busy"):
        pool.submit(ledger.together.write, nested, nothing).result(60)
    assert ledger.together.write(storing("later"), nothing).created


class Interrupting:
    """Raise KeyboardInterrupt in this thread at one step of the code of `together`, as a signal may."""

    def __init__(self, at: int) -> None:
        self.left, self.hit = at, False

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.endswith("together.py"):
            return None
        # The interpreter hears a signal at calls and loops only, and none between the end of a block and the first step of its exit.
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        hears_none = "(" not in line or line.startswith(("with ", "self._inside.discard("))
        if event in ("call", "line") and "tests" not in frame.f_code.co_filename and not hears_none and not self.hit:
            self.left -= 1
            if self.left == 0:
                self.hit = True
                raise KeyboardInterrupt
        return self


def interrupted_at(ledger: Ledger, step: int, operation_id: str) -> tuple[bool, bool]:
    """Write with an interrupt at one step; return whether it came, and whether the write was told to be stored."""
    interrupting = Interrupting(step)
    sys.settrace(interrupting)
    try:
        ledger.together.write(storing(operation_id), nothing)
    except KeyboardInterrupt:
        return True, False
    except LedgerUnavailableError:
        return interrupting.hit, False
    finally:
        sys.settrace(None)
    return interrupting.hit, True


def interrupted_alone(ledger: Ledger, step: int) -> tuple[bool, bool]:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(interrupted_at, ledger, step, f"victim-{step}").result(20)


def interrupted_in_a_crowd(ledger: Ledger, step: int) -> tuple[bool, bool]:
    """The interrupted one waits first, and leads two others unless it has left."""
    waiting = ledger.together._waiting
    crowd = Crowd(ledger, storing(f"first-{step}"))
    victim = crowd._pool.submit(interrupted_at, ledger, step, f"victim-{step}")
    eventually(lambda: len(waiting) == 1 or victim.done())
    others = [crowd.write(storing(f"other-{step}-{number}")) for number in range(2)]
    eventually(lambda: len(waiting) == (2 if victim.done() else 3))
    crowd.release(waiting=len(waiting))
    for error in [other.exception(20) for other in others]:
        assert error is None or isinstance(error, LedgerUnavailableError)
    return victim.result(20)


@pytest.mark.parametrize("write", [interrupted_alone, interrupted_in_a_crowd])
def test_an_interrupt_at_any_step_leaves_nobody_waiting_for_ever(ledger: Ledger, write: Callable[[Ledger, int], tuple[bool, bool]]) -> None:
    for step in itertools.count(1):
        came, stored = write(ledger, step)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(ledger.together.write, storing(f"later-{step}"), nothing).result(20).created
        found = rows(ledger, f"SELECT operation_id FROM operation WHERE operation_id = 'victim-{step}'")
        assert found or not stored
        assert not ledger.together._waiting and ledger.together._leader is None and not ledger.together._inside
        if not came:
            break
    assert step > 10 and not list(verify(ledger))


def test_what_is_told_before_the_commit_is_told_once_while_nobody_else_can_write(ledger: Ledger) -> None:
    told: list[int] = []
    writes = ("PRAGMA busy_timeout = 0", "UPDATE meta SET value = value")

    def tell() -> None:
        assert "locked" in another_program(ledger.path, *writes)
        told.append(rows(ledger, "SELECT count(*) FROM operation")[0][0])  # what whoever looks now sees: nothing of it yet

    def stores(operation_id: str) -> Callable[[Transaction], object]:
        def work(transaction: Transaction) -> None:
            transaction.before_commit.add(tell)
            store_request(transaction, a_request(operation_id), NOW_US)

        return work

    crowd = Crowd(ledger, storing("first"))
    both = [crowd.write(stores("one")), crowd.write(stores("two"))]
    crowd.release(waiting=2)
    for one in both:
        one.result()
    assert told == [1], "for both together, before their commit"
    with pytest.raises(OperationConflictError), ledger.write() as transaction:
        transaction.before_commit.add(tell)
        store_request(transaction, a_request("one", fingerprint="json1:11"), NOW_US)
    assert told == [1]
    assert another_program(ledger.path, *writes) == []
