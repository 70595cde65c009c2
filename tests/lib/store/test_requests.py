"""A request is stored once, whoever asks and however often."""

import json
from pathlib import Path

import pytest

from settled.core.errors import OperationConflictError
from settled.store.audit import verify
from settled.store.ledger import Ledger
from settled.store.reads import read_payload
from settled.store.requests import store_request, store_requests
from tests.lib.children import Child
from tests.lib.store.ledgers import NOW_US, a_request, new_ledger, rows, settle, submit


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return new_ledger(tmp_path)


def test_a_repeated_request_returns_the_row_as_it_is_now(ledger: Ledger) -> None:
    (confirmed,) = settle(ledger, *submit(ledger, "op-1"))
    with ledger.write() as transaction:
        stored = store_request(transaction, a_request("op-1", arguments="{}", metadata="{}"), NOW_US + 9)
    assert stored[:2] == (confirmed, False)
    with ledger.read() as transaction:
        assert read_payload(transaction, confirmed.id, 0) == a_request().arguments
        assert read_payload(transaction, confirmed.id, -1) is None
    assert verify(ledger) == []


@pytest.mark.promise("P10", "D24", "X6", part="the store refuses it and names the first difference")
@pytest.mark.parametrize(
    ("changes", "differs"),
    [
        ({"contract": "send_mail", "contract_version": "2"}, "contract"),
        ({"contract_version": "2", "fingerprint": "json1:11"}, "version"),
        ({"fingerprint": "json1:11", "provider_key": "k"}, "request"),
        ({"provider_key": "k", "provider_reference": "r"}, "provider key"),
        ({"provider_key": None}, "provider key"),
        ({"provider_reference": "r"}, "provider reference"),
    ],
)
def test_another_request_under_the_same_id_is_refused(ledger: Ledger, changes: dict[str, str | None], differs: str) -> None:
    submit(ledger, "op-1")
    with pytest.raises(OperationConflictError) as caught:
        submit(ledger, "op-2", "op-1", **changes)
    assert (caught.value.operation_id, caught.value.differs) == ("op-1", differs)
    if differs == "request":
        assert (caught.value.existing_fingerprint, caught.value.requested_fingerprint) == ("json1:00", "json1:11")
    assert rows(ledger, "SELECT operation_id FROM operation") == [["op-1"]]
    assert rows(ledger, "SELECT count(*) FROM event") == [[1]]


def test_in_a_batch_what_is_known_is_returned_and_what_differs_is_told_and_the_others_are_stored(ledger: Ledger) -> None:
    (known,) = submit(ledger, "op-2")
    wanted = ["op-1", "op-2", "op-3", "op-1", "op-3"]
    changes = [{}, {}, {"metadata": '{"run":"7"}'}, {"fingerprint": "json1:11"}, {}]
    with ledger.write() as transaction:
        batch = [a_request(one, **change) for one, change in zip(wanted, changes, strict=True)]
        stored = store_requests(transaction, batch, NOW_US + 9)
    assert [one.row.operation_id for one in stored] == wanted
    assert [one.created for one in stored] == [True, False, True, False, False]
    assert [one.differs for one in stored] == [None, None, None, "request", None]
    assert stored[1].row == known
    assert stored[4].row == stored[2].row
    assert len({one.row.id for one in stored}) == 3
    assert rows(ledger, "SELECT count(*) FROM event") == rows(ledger, "SELECT count(*) FROM operation") == [[3]]
    assert rows(ledger, "SELECT count(*) FROM payload") == [[4]]
    assert verify(ledger) == []


def test_a_request_by_name_is_no_conflict_with_the_same_one_from_its_contract(ledger: Ledger) -> None:
    submit(ledger, "op-1")
    with ledger.write() as transaction:
        named = a_request("op-1", derived=False, contract_version=None, provider_key=None, provider_reference=None)
        assert not store_request(transaction, named, NOW_US).created


@pytest.mark.promise("S08", part="in the store: rollback leaves nothing, a repetition and a conflict leave the caller's transaction usable")
def test_a_request_takes_part_in_the_callers_transaction(ledger: Ledger) -> None:
    engine = ledger.engine()
    with engine.connect() as connection:
        with connection.begin() as callers:
            joined = ledger.join(connection)
            assert store_request(joined, a_request("op-1"), NOW_US).created
            joined.finish()
            callers.rollback()
        with connection.begin():
            joined = ledger.join(connection)
            assert store_request(joined, a_request("op-1"), NOW_US).created
            assert not store_request(joined, a_request("op-1"), NOW_US).created
            with pytest.raises(OperationConflictError):
                store_request(joined, a_request("op-1", fingerprint="json1:11"), NOW_US)
            assert store_request(joined, a_request("op-2"), NOW_US).created
            joined.finish()
    assert verify(ledger) == []
    assert rows(ledger, "SELECT operation_id FROM operation ORDER BY id") == [["op-1"], ["op-2"]]


def test_a_connection_to_another_file_is_refused(ledger: Ledger, tmp_path: Path) -> None:
    other = new_ledger(tmp_path, "other.db")
    with other.engine().connect() as connection, pytest.raises(ValueError, match=r"not on the ledger .*Nothing was stored"):
        ledger.join(connection)


CONTENDER = """
import sys, threading, time, json
from settled.store.ledger import Ledger
from settled.store.requests import Request, store_request
ledger = Ledger(sys.argv[1], monotonic_us=lambda: time.monotonic_ns() // 1000)
ledger.engine()
request = Request(*json.loads(sys.argv[2]))
created, together = [], threading.Barrier(16)
def contend():
    together.wait()
    with ledger.write() as transaction:
        created.append(store_request(transaction, request, 1).created)
threads = [threading.Thread(target=contend) for _ in range(16)]
print("ready", flush=True)
sys.stdin.readline()
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(created), sum(created), flush=True)
"""


@pytest.mark.promise("D25", part="16 threads in each of 4 processes: one is created, one row, one event")
def test_of_many_contenders_one_creates(ledger: Ledger) -> None:
    ledger.close()
    children = [Child(CONTENDER, ledger.path, json.dumps(a_request())) for _ in range(4)]
    try:
        assert {child.hear() for child in children} == {"ready"}
        for child in children:
            child.tell()
        answers = [child.hear(seconds=60).split() for child in children]
    finally:
        for child in children:
            child.__exit__()
    assert [answer[0] for answer in answers] == ["16"] * 4
    assert sum(int(answer[1]) for answer in answers) == 1
    assert rows(ledger, "SELECT (SELECT count(*) FROM operation), (SELECT count(*) FROM event)") == [[1, 1]]
    assert verify(ledger) == []
