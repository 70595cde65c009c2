"""Reading: what is stored comes back, in order, bounded; what is corrupt is named and never interpreted."""

from pathlib import Path

import pytest

from settled.core.errors import LedgerStateError
from settled.core.words import Status
from settled.store.ledger import Ledger
from settled.store.reads import find_by_reference, find_row, highest_wall_us, list_rows, oldest, read_events, read_history
from settled.store.waiting import find_ready, next_due_us
from tests.lib.store.ledgers import NOW_US, dispatched, moved, new_ledger, submit, tampered, timed_out


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return new_ledger(tmp_path)


@pytest.mark.promise("D54", part="the error names the ID and the column")
@pytest.mark.parametrize(
    ("change", "column"),
    [
        ("UPDATE operation SET status = 'pending' WHERE id = 1", "status"),
        ("UPDATE event SET data = '{broken' WHERE operation = 1", "event.data"),
        ("UPDATE event SET data = '[1]' WHERE operation = 1", "event.data"),
        ("UPDATE event SET type = 'exploded' WHERE operation = 1", "event"),
    ],
)
def test_a_corrupt_row_is_named_and_never_interpreted(ledger: Ledger, change: str, column: str) -> None:
    submit(ledger, "op-1", "op-2")
    changed = tampered(ledger, change)
    with changed.read() as transaction:
        with pytest.raises(LedgerStateError, match="'op-1'") as caught:
            row = find_row(transaction, "op-1")
            assert row is not None
            read_events(transaction, row)
        assert (caught.value.operation_id, caught.value.column, caught.value.exit_code) == ("op-1", column, 1)
        sound = find_row(transaction, "op-2")
        assert sound is not None
        assert len(read_events(transaction, sound)) == 1


@pytest.mark.promise("P22", part="the store's side: newest update first, at most the limit")
def test_listing_is_newest_first_over_the_statuses_asked_for(ledger: Ledger) -> None:
    rows = submit(ledger, *(f"op-{number}" for number in range(5)))
    for at, row in enumerate((rows[3], rows[1])):
        moved(ledger, dispatched(row, at_us=NOW_US + 10 + at))
    with ledger.read() as transaction:
        every = list_rows(transaction, (Status.PREPARED, Status.DISPATCHED), 100)
        assert [row.operation_id for row in every] == ["op-1", "op-3", "op-4", "op-2", "op-0"]
        assert [row.operation_id for row in list_rows(transaction, (Status.PREPARED, Status.DISPATCHED), 3)] == ["op-1", "op-3", "op-4"]
        assert list_rows(transaction, (Status.QUARANTINED,), 100) == []
        assert oldest(transaction, Status.PREPARED) == NOW_US
        assert oldest(transaction, Status.REJECTED) is None


def test_the_highest_wall_clock_never_falls_when_the_clock_is_set_back(ledger: Ledger) -> None:
    (row,) = submit(ledger, "op-1")
    (running,) = moved(ledger, dispatched(row, at_us=NOW_US + 1000))
    moved(ledger, timed_out(running, at_us=NOW_US - 5000))
    with ledger.read() as transaction:
        assert highest_wall_us(transaction) == NOW_US + 1000


def test_rows_are_found_by_reference_and_their_history_is_folded(ledger: Ledger) -> None:
    (first,) = submit(ledger, "op-1", provider_reference="shared")
    submit(ledger, "op-2", provider_reference="shared")
    moved(ledger, timed_out(moved(ledger, dispatched(first))[0]))
    with ledger.read() as transaction:
        found = find_by_reference(transaction, "shared")
        assert [row.operation_id for row in found] == ["op-1", "op-2"]
        history = read_history(transaction, found[0])
        assert [(attempt.number, attempt.open) for attempt in history.attempts] == [(1, True)]
        assert read_history(transaction, found[1]).attempts == ()


def test_a_claim_takes_higher_priority_first_then_due_time_then_age(ledger: Ledger) -> None:
    submit(ledger, "late", due_us=NOW_US + 500)
    submit(ledger, "low-new", "low-old", due_us=NOW_US - 1)
    submit(ledger, "high", priority=5, due_us=NOW_US - 1)
    submit(ledger, "higher-but-later", priority=9, due_us=NOW_US + 500)
    submit(ledger, "low-early", due_us=NOW_US - 2)
    submit(ledger, "other", contract="send_mail", due_us=NOW_US - 3)
    submit(ledger, "not asked for", contract="open_ticket", priority=99)
    with ledger.read() as transaction:
        asked = ("capture_payment", "send_mail")
        found = [row.operation_id for row, _ in find_ready(transaction, asked, NOW_US, 100)]
        assert found == ["high", "other", "low-early", "low-new", "low-old"]
        assert [row.operation_id for row, _ in find_ready(transaction, asked, NOW_US, 2)] == found[:2]
        assert find_ready(transaction, asked, NOW_US, 1)[0][1] == '{"secret_argument":1}'
        assert next_due_us(transaction, asked) == NOW_US - 3
        assert next_due_us(transaction, ("nobody",)) is None
