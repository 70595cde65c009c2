"""The one guarded writer: a stale view moves nothing, and a move is whole or not there."""

import hashlib
import json
from pathlib import Path

import pytest

from settled.core.errors import LedgerStateError
from settled.core.fold import Event
from settled.core.too_many import UnknownLimit
from settled.core.words import EventType, Status
from settled.store import writer
from settled.store.audit import verify
from settled.store.ledger import Ledger
from settled.store.pauses import read_paused
from settled.store.reads import counts, find_row, read_events, read_payload
from settled.store.writer import Move, event_hash, record, record_all
from tests.lib.store.ledgers import (
    NOW_US,
    another_program,
    change,
    dispatched,
    moved,
    new_ledger,
    returned,
    rows,
    settle,
    submit,
    timed_out,
    write,
)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return new_ledger(tmp_path)


def types(ledger: Ledger, operation_id: str) -> list[tuple[str, str]]:
    with ledger.read() as transaction:
        row = find_row(transaction, operation_id)
        assert row is not None
        return [(event.type.value, event.status.value) for event in read_events(transaction, row)]


def test_a_move_stores_the_row_its_event_and_its_output(ledger: Ledger) -> None:
    (row,) = settle(ledger, *submit(ledger, "op-1"))
    assert (row.status, row.attempt, row.version, row.sequence) == (Status.CONFIRMED, 1, 3, 3)
    assert types(ledger, "op-1") == [("submitted", "prepared"), ("dispatched", "dispatched"), ("returned", "confirmed")]
    with ledger.read() as transaction:
        assert find_row(transaction, "op-1") == row
        assert row.output_part is not None
        assert read_payload(transaction, row.id, row.output_part) == '{"status":"captured"}'
    assert verify(ledger) == []


@pytest.mark.promise("D52", part="a lost lease or another status, attempt, version or sequence moves nothing")
def test_a_stale_view_moves_nothing(ledger: Ledger) -> None:
    (first,) = submit(ledger, "op-1")
    (running,) = moved(ledger, dispatched(first))
    (lost,) = moved(ledger, timed_out(running))
    assert write(ledger, returned(running)) == [(None, None)]
    stale = {"status": Status.DISPATCHED, "attempt": 2, "version": 9, "sequence": 2}
    for column, value in stale.items():
        seen = lost._replace(**{column: value})
        (refused,) = write(ledger, Move(seen, [Event(EventType.FENCED, seen.status, 1, NOW_US, {})]))
        assert refused == (None, None), column
    with ledger.read() as transaction:
        assert find_row(transaction, "op-1") == lost
    assert verify(ledger) == []


@pytest.mark.promise("D52", part="a batch of 256 with one stale row: 255 moved, one dropped")
def test_one_stale_row_does_not_disturb_the_rest_of_its_batch(ledger: Ledger) -> None:
    prepared = submit(ledger, *(f"op-{number}" for number in range(256)))
    (ahead,) = moved(ledger, dispatched(prepared[100]))
    recorded = write(ledger, *(dispatched(row, worker=2) for row in prepared))
    assert [index for index, one in enumerate(recorded) if one.row is None] == [100]
    assert recorded[100].error is None
    with ledger.read() as transaction:
        assert find_row(transaction, "op-100") == ahead
        assert counts(transaction) == {"capture_payment": {"dispatched": 256}}
    assert verify(ledger) == []


@pytest.mark.parametrize(("count", "savepoints"), [(1, ["one"]), (2, ["batch"]), (3, ["batch"])])
def test_moves_that_meet_nothing_stale_are_written_at_once(ledger: Ledger, count: int, savepoints: list[str]) -> None:
    """One by one is for a batch that cannot be written whole: it costs a statement of each kind for every row."""
    prepared = submit(ledger, *(f"op-{number}" for number in range(count)))
    said: list[str] = []
    with ledger.write() as transaction:
        transaction.cursor.connection.set_trace_callback(said.append)
        record(transaction, [dispatched(row) for row in prepared])
        transaction.cursor.connection.set_trace_callback(None)
    assert [one.split()[1] for one in said if one.upper().startswith("SAVEPOINT")] == savepoints


def test_where_none_may_be_left_out_a_stale_or_refused_row_is_an_error_and_nothing_is_committed(ledger: Ledger) -> None:
    first, second = submit(ledger, "op-1", "op-2")
    for spoilt, why in (
        (second._replace(sequence=2), "it cannot be moved (it is not what was read)"),
        (second._replace(version=1, unfenced=5), "it cannot be moved (CHECK constraint failed: ck_operation_open_bounded)"),
    ):
        with pytest.raises(LedgerStateError) as refused, ledger.write() as transaction:
            record_all(transaction, [dispatched(first), dispatched(spoilt)])
        assert (refused.value.operation_id, refused.value.column) == ("op-2", "the row")
        assert f"in the row: {why}. It was left alone" in str(refused.value)
        assert types(ledger, "op-1")[-1][0] == "submitted"


@pytest.mark.promise("D52", part="a row that the schema refuses is told apart in its batch, and the others are moved")
def test_a_row_that_breaks_a_rule_is_reported_and_the_others_are_moved(ledger: Ledger) -> None:
    first, second, third = submit(ledger, "op-1", "op-2", "op-3")
    too_many = second._replace(version=1, unfenced=5)  # unfenced beyond the open attempts: the CHECK refuses it
    recorded = write(ledger, dispatched(first), dispatched(too_many), dispatched(third))
    assert [one.row is not None for one in recorded] == [True, False, True]
    assert "open_bounded" in str(recorded[1].error)
    assert [types(ledger, one)[-1][0] for one in ("op-1", "op-2", "op-3")] == ["dispatched", "submitted", "dispatched"]
    assert verify(ledger) == []


class Refused(Exception):
    """An error as the driver raises it: what it is about is told by its code alone."""

    def __init__(self, code: int) -> None:
        self.sqlite_errorcode = code


@pytest.mark.parametrize(
    ("error", "is_about_the_row"),
    [
        (Refused(19), True), (Refused(275), True), (Refused(20), True), (Refused(18), True),  # constraint, CHECK, mismatch, too big
        (Refused(5), False), (Refused(13), False), (Refused(10), False), (Refused(11), False), (Refused(21), False),  # busy, full, …
        (ValueError(), False),
    ],
    ids=lambda one: str(getattr(one, "sqlite_errorcode", one)),
)  # fmt: skip
def test_an_error_of_the_store_is_not_taken_for_one_of_the_row(error: Exception, is_about_the_row: bool) -> None:
    assert writer._is_about_the_row(error) is is_about_the_row


@pytest.mark.promise("P16", part="a fault between the writes leaves none of them")
@pytest.mark.parametrize("table", ["event", "payload", "seal", "tally"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_fault_at_any_of_the_writes_leaves_none_of_them(ledger: Ledger, table: str, count: int) -> None:
    running = moved(ledger, *(dispatched(row) for row in submit(ledger, "op-1", "op-2", "op-3")))
    # FAIL and not ABORT: what the statement wrote before the fault stays, so that only our own undoing can remove it.
    fault = f"CREATE TRIGGER fault AFTER INSERT ON {table} BEGIN SELECT RAISE(FAIL, 'injected fault'); END"
    assert change(ledger, fault) == ""
    before = rows(ledger, "SELECT * FROM operation ORDER BY id")
    try:
        recorded = write(ledger, *(returned(row, "1") for row in running[:count]))
        assert all(one.row is None and "injected fault" in str(one.error) for one in recorded)
    except Exception as error:
        assert "injected fault" in str(error)
        assert table in ("seal", "tally"), "a fault about a row was raised instead of told"
    assert rows(ledger, "SELECT * FROM operation ORDER BY id") == before
    assert rows(ledger, "SELECT count(*) FROM event WHERE type = 'returned'") == [[0]]
    assert rows(ledger, "SELECT count(*) FROM payload WHERE part > 0") == [[0]]
    assert change(ledger, "DROP TRIGGER fault") == ""
    assert verify(ledger) == []


def test_a_transaction_that_fails_in_the_middle_leaves_nothing(ledger: Ledger) -> None:
    (row,) = submit(ledger, "op-1")
    with pytest.raises(RuntimeError, match="in the middle"), ledger.write() as transaction:
        record(transaction, [dispatched(row)])
        raise RuntimeError("in the middle")
    with ledger.read() as transaction:
        assert find_row(transaction, "op-1") == row
    assert verify(ledger) == []


def test_several_events_of_one_move_are_one_step(ledger: Ledger) -> None:
    (running,) = moved(ledger, dispatched(submit(ledger, "op-1")[0]))
    merged = Event(EventType.EVIDENCE_MERGED, Status.CONFIRMED, 1, NOW_US + 2, {"id": "ch_1"})
    late = Event(EventType.TIMED_OUT, Status.CONFIRMED, 1, NOW_US + 2, {"fence": "process_killed"})
    (row,) = moved(ledger, Move(running, [merged, late]))
    assert (row.sequence, row.version) == (4, 3)
    assert types(ledger, "op-1")[2:] == [("evidence_merged", "confirmed"), ("timed_out", "confirmed")]
    assert verify(ledger) == []
    assert rows(ledger, "SELECT events FROM seal ORDER BY id") == [[1], [1], [2]]


@pytest.mark.parametrize("data", [None, '{"who":"Zoë \\\\ \\"x\\""}'])
def test_the_hash_of_an_event_is_that_of_its_json_list(data: str | None) -> None:
    """The audit computes hashes by the same function: only another way to them sees that a fact is left out."""
    happened = Event(EventType.RETURNED, Status.CONFIRMED, 7, NOW_US, {})
    facts = ['op "ö" \\', 3, "returned", "confirmed", 7, NOW_US, data]
    said = json.dumps(facts, separators=(",", ":"), ensure_ascii=False).encode()
    assert event_hash(b"before", 'op "ö" \\', 3, happened, data) == hashlib.sha256(b"before" + said).digest()


def test_an_output_is_stored_under_the_event_that_brought_it(ledger: Ledger) -> None:
    (running,) = moved(ledger, dispatched(submit(ledger, "op-1")[0]))
    stop = Event(EventType.STOP_REQUESTED, Status.DISPATCHED, 1, NOW_US + 2, {})
    end = returned(running, "1")
    (row,) = moved(ledger, Move(running, [stop, *end.events], {1: "1"}))
    assert row.output_part == row.sequence == 4
    assert rows(ledger, "SELECT data FROM event WHERE type = 'stop_requested'") == [[None]]
    with ledger.read() as transaction:
        assert read_payload(transaction, row.id, 4) == "1"
    assert verify(ledger) == []


def test_a_move_without_events_changes_nothing_and_seals_nothing(ledger: Ledger) -> None:
    (first,) = submit(ledger, "op-1")
    assert write(ledger, Move(first, [])) == [(first, None)]
    assert types(ledger, "op-1") == [("submitted", "prepared")]
    assert rows(ledger, "SELECT events FROM seal ORDER BY id") == [[1]]


def test_a_stop_opens_an_incident_and_a_decision_closes_it(ledger: Ledger) -> None:
    (running,) = moved(ledger, dispatched(submit(ledger, "op-1")[0]))
    (lost,) = moved(ledger, timed_out(running))
    assert rows(ledger, "SELECT kind FROM incident") == []
    stop = Event(EventType.QUARANTINED, Status.QUARANTINED, 1, NOW_US + 3, {"reason": "no_probe"})
    (stopped,) = moved(ledger, Move(lost, [stop]))
    assert rows(ledger, "SELECT kind, reason, closed_us FROM incident") == [["quarantined", "no_probe", None]]
    decided = Event(EventType.OPERATOR_CONFIRMED, Status.CONFIRMED, 1, NOW_US + 4, {})
    (settled,) = moved(ledger, Move(stopped, [decided]))
    assert settled.reason is None
    assert rows(ledger, "SELECT kind, closed_us, closed_by FROM incident") == [["quarantined", NOW_US + 4, "operator_confirmed"]]


def test_a_suspected_duplicate_opens_an_incident_where_the_row_has_no_reason(ledger: Ledger) -> None:
    (row,) = settle(ledger, *submit(ledger, "op-1"))
    second = Event(EventType.PROBE_COMMITTED, Status.CONFIRMED, 1, NOW_US + 3, {"id": "ch_2", "duplicate": True})
    (row,) = moved(ledger, Move(row, [second]))
    assert (row.reason, row.duplicate_suspected) == (None, 1)
    assert rows(ledger, "SELECT kind FROM incident") == [["duplicate_suspected"]]


@pytest.mark.parametrize("count", [1, 2])
def test_the_outcome_that_is_one_too_many_pauses_its_contract_in_the_same_transaction(ledger: Ledger, count: int) -> None:
    ledger.unknown_limits = {"capture_payment": UnknownLimit(open_max=count)}
    running = moved(ledger, *(dispatched(row) for row in submit(ledger, *(f"op-{number}" for number in range(count)))))
    with ledger.write() as transaction:
        record(transaction, [timed_out(row) for row in running])
        assert read_paused(transaction).contracts == {"capture_payment"}
    assert rows(ledger, "SELECT kind FROM incident") == [["too_many_unknown"]]


@pytest.mark.promise("S86", part="the tally equals the counted rows after moves, dropped moves and rollbacks")
def test_the_tally_moves_with_the_rows(ledger: Ledger) -> None:
    prepared = submit(ledger, "op-1", "op-2", "op-3", "op-4")
    submit(ledger, "op-5", contract="send_mail")
    running = moved(ledger, *(dispatched(row) for row in prepared[:3]))
    write(ledger, returned(running[0]), timed_out(running[1]), returned(prepared[3]._replace(status=Status.DISPATCHED)))
    with ledger.read() as transaction:
        assert counts(transaction) == {
            "capture_payment": {"confirmed": 1, "dispatched": 1, "outcome_unknown": 1, "prepared": 1},
            "send_mail": {"prepared": 1},
        }
    assert verify(ledger) == []


@pytest.mark.promise("P19", part="a trigger refuses to change or delete an event")
@pytest.mark.parametrize("table", ["event", "seal"])
def test_history_cannot_be_rewritten_through_the_schema(ledger: Ledger, table: str) -> None:
    submit(ledger, "op-1")
    ledger.close()
    for statement in (f"UPDATE {table} SET at_us = 1", f"DELETE FROM {table}", f"REPLACE INTO {table} SELECT * FROM {table}"):
        answer = another_program(ledger.path, "PRAGMA recursive_triggers=ON", statement)
        assert f"{table} is append-only" in answer, statement
    assert verify(ledger) == []


@pytest.mark.promise("P12", "D01", part="seven statuses are stored and no other")
@pytest.mark.promise("D31", part="the CHECKs of the schema")
@pytest.mark.parametrize(
    ("setting", "rule"),
    [
        ("status = 'pending'", "status_known"),
        ("status = 'reconciling'", "status_known"),
        ("status = 'confirmed'", "outcome_only_after_an_attempt"),
        ("status = 'rejected'", "outcome_only_after_an_attempt"),
        ("status = 'outcome_unknown'", "outcome_only_after_an_attempt"),
        ("status = 'dispatched', attempt = 1", "lease_only_while_dispatched"),
        ("lease_owner = 1", "lease_only_while_dispatched"),
        ("status = 'quarantined'", "quarantine_has_a_reason"),
        ("attempt = 1, open_attempts = 1, status = 'rejected'", "failed_only_when_closed"),
        ("open_attempts = 1", "open_"),
        ("attempt = 1, open_attempts = 2", "open_bounded"),
        ("unfenced = 1", "open_bounded"),
        ("kept = 1", "kept_only_while_dispatched"),
        ("version = 0", "counts_natural"),
        ("derived = 2", "flags"),
    ],
)
def test_the_schema_refuses_what_the_rules_forbid(ledger: Ledger, setting: str, rule: str) -> None:
    submit(ledger, "op-1")
    assert rule in change(ledger, f"UPDATE operation SET {setting}")


def test_the_schema_refuses_a_wrong_type(ledger: Ledger) -> None:
    submit(ledger, "op-1")
    assert "cannot store TEXT value in INTEGER column" in change(ledger, "UPDATE operation SET attempt = 'one'")
