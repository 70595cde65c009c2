"""The counts are exact at every moment: before a fold, at it, after it, and where a transaction at it comes to nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from settled.store.audit import verify
from settled.store.counting import FOLD, changes_text, counted
from settled.store.ledger import Ledger
from settled.store.pauses import known_contracts
from settled.store.reads import counts
from settled.store.requests import store_request
from settled.store.transaction import Transaction
from tests.lib.store.ledgers import (
    NOW_US,
    a_request,
    dispatched,
    monotonic_us,
    moved,
    new_ledger,
    returned,
    rows,
    seal_up_to,
    submit,
    tampered,
    timed_out,
)

CONTRACTS = ("capture_payment", "send_mail", 'ein "Ärger"\\')
TALLY = "SELECT contract, status, count FROM tally WHERE count <> 0 ORDER BY contract, status"
ROWS = "SELECT contract, status, count(*) FROM operation GROUP BY contract, status ORDER BY contract, status"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return new_ledger(tmp_path)


def shown(ledger: Ledger) -> list[list[object]]:
    """Return the counts in the order of ROWS."""
    with ledger.read() as transaction:
        return [[contract, status, count] for contract, of in counts(transaction).items() for status, count in of.items()]


def commits(ledger: Ledger) -> Iterator[int]:
    """Commit for ever, a transaction each: requests of all contracts, dispatches, and ends that move two rows at once."""
    number = 0
    while True:
        first = submit(ledger, f"first-{number}", contract=CONTRACTS[number % 3])
        yield (number := number + 1)
        second = submit(ledger, f"second-{number}", f"waits-{number}", contract=CONTRACTS[number % 3])
        yield (number := number + 1)
        running = moved(ledger, *(dispatched(row) for row in (*first, second[0])))
        yield (number := number + 1)
        moved(ledger, returned(running[0]), timed_out(running[1]))
        yield (number := number + 1)


@pytest.mark.promise("S86", part="the counts are exact before, at and after a fold, and when the ledger is opened again")
@pytest.mark.parametrize("count", [1, FOLD - 1, FOLD, FOLD + 1, 2 * FOLD + 1])
def test_the_counts_are_those_of_the_rows_after_each_commit(ledger: Ledger, count: int) -> None:
    folded: list[list[object]] = []
    for number in commits(ledger):
        assert shown(ledger) == rows(ledger, ROWS)
        if number % FOLD == 0:
            folded = shown(ledger)
        assert rows(ledger, TALLY) == folded, "a commit that is not due has moved the tally"
        if number == count:
            break
    ledger.close()
    again = Ledger(str(ledger.path), monotonic_us=monotonic_us)
    assert shown(again) == rows(again, ROWS) and verify(again) == []
    with again.read() as transaction:
        assert known_contracts(transaction) == {row[0] for row in rows(again, ROWS)}


class GivenUpError(Exception):
    """The transaction is not to be committed."""


def gives_up() -> None:
    raise GivenUpError


@pytest.mark.promise("S86", part="a window is folded once where the transaction that was to fold it is rolled back")
@pytest.mark.parametrize("after_the_fold", [False, True])
def test_a_transaction_that_is_rolled_back_at_the_fold_leaves_it_to_the_next_one(ledger: Ledger, after_the_fold: bool) -> None:
    seal_up_to(ledger, FOLD - 1)
    for number in range(2):
        with pytest.raises(GivenUpError), ledger.write() as transaction:
            store_request(transaction, a_request(f"lost-{number}"), NOW_US)
            if not after_the_fold:
                gives_up()
            transaction.before_commit.add(gives_up)
    assert rows(ledger, TALLY) == []
    assert shown(ledger) == rows(ledger, ROWS) == [["capture_payment", "prepared", FOLD - 1]]
    submit(ledger, "kept")
    assert rows(ledger, TALLY) == shown(ledger) == rows(ledger, ROWS) == [["capture_payment", "prepared", FOLD]]
    assert verify(ledger) == []


def submit_within(transaction: Transaction, operation_id: str) -> None:
    """Store a request in a caller's transaction, with a seal of its own."""
    store_request(transaction, a_request(operation_id), NOW_US)
    transaction.finish()
    transaction.cursor.close()


@pytest.mark.promise("S86", part="submissions in a caller's own transaction are counted where it commits, and only there")
@pytest.mark.parametrize("commits", [True, False])
def test_a_joined_transaction_is_counted_where_it_commits(ledger: Ledger, commits: bool) -> None:
    seal_up_to(ledger, FOLD - 2)
    with ledger.engine().connect() as connection:
        for number in range(3):  # the second of them folds, the third is beyond it
            submit_within(ledger.join(connection), f"joined-{number}")
            transaction = ledger.join(connection)
            assert sum(counted(transaction.cursor, transaction.statements).values()) == FOLD - 1 + number
        assert shown(ledger) == [["capture_payment", "prepared", FOLD - 2]]
        (connection.commit if commits else connection.rollback)()
    assert shown(ledger) == rows(ledger, ROWS) == [["capture_payment", "prepared", FOLD + 1 if commits else FOLD - 2]]
    seal_up_to(ledger, FOLD + 2)
    assert rows(ledger, TALLY) == [["capture_payment", "prepared", FOLD]]
    assert shown(ledger) == rows(ledger, ROWS) and verify(ledger) == []


def test_a_savepoint_of_the_caller_that_is_undone_gives_the_fold_back(ledger: Ledger) -> None:
    seal_up_to(ledger, FOLD - 1)
    with ledger.engine().connect() as connection:
        ledger.join(connection).cursor.close()
        with connection.begin_nested() as nested:
            submit_within(ledger.join(connection), "undone")
            nested.rollback()
        submit_within(ledger.join(connection), "kept")
        connection.commit()
    assert rows(ledger, TALLY) == shown(ledger) == rows(ledger, ROWS) == [["capture_payment", "prepared", FOLD]]


DAMAGED = ("{", "7", '{"capture_payment":7}', '{"capture_payment":{"prepared":"1"}}', '{"capture_payment":{"prepared":1.5}}')


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_seal_stops_nobody_and_is_named_by_the_audit(ledger: Ledger, text: str) -> None:
    seal_up_to(ledger, 3)
    changed = tampered(ledger, f"UPDATE seal SET counts = '{text}' WHERE id = 2")
    for last in (3, FOLD - 1, FOLD, FOLD + 1):
        seal_up_to(changed, last)
        assert shown(changed) == [["capture_payment", "prepared", last - 1]]
        assert [found.problem for found in verify(changed)] == [
            "seal 2 does not match its events, its counts and the seal before it",
            f"the tally of capture_payment prepared says {last - 1}, there are {last}",
        ]


def test_a_seal_says_only_what_has_changed() -> None:
    assert changes_text({}) is changes_text({("pay", "prepared"): 0}) is None
    changes = {("pay", "prepared"): -1, ("pay", "dispatched"): 1, ("mail", "prepared"): 2, ("mail", "dispatched"): 0}
    assert changes_text(changes) == '{"mail":{"prepared":2},"pay":{"dispatched":1,"prepared":-1}}'
