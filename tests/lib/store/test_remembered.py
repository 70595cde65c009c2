"""The small tables: incarnations, snapshots of terms, runs of sweeps, evidence that waits."""

from pathlib import Path

import pytest

from settled.core.terms import Terms
from settled.store.inbox import find_older, keep, take
from settled.store.ledger import Ledger
from settled.store.reads import inbox_of
from settled.store.snapshots import keep_terms, read_terms
from settled.store.sweep_runs import history, last_runs, record_run
from settled.store.workers import WorkerFacts, ended, find, live, register, seen
from tests.lib.store.ledgers import new_ledger, rows


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return new_ledger(tmp_path)


def test_an_incarnation_lives_until_it_is_known_to_be_over(ledger: Ledger) -> None:
    facts = WorkerFacts("abc", "worker", "b00t", 4711, 99, 4026531836, "/run/abc.lock", 2049, 77)
    with ledger.write() as transaction:
        first = register(transaction, facts, ["send_mail", "capture_payment"], 10)
        second = register(transaction, facts._replace(incarnation="def", kind="caller"), [], 20)
    with ledger.write() as transaction:
        seen(transaction, first, 30)
        ended(transaction, second, 40)
        ended(transaction, second, 50)
    with ledger.read() as transaction:
        (alive,) = live(transaction)
        assert alive[1:11] == facts
        assert (alive.id, alive.contracts, alive.started_us, alive.seen_us, alive.ended_us) == (
            first, ("capture_payment", "send_mail"), 10, 30, None,
        )  # fmt: skip
        both = find(transaction, [first, second, 99])
        assert both.keys() == {first, second}
        assert (both[second].ended_us, both[second].contracts) == (40, ())


def test_terms_are_stored_once_whoever_brings_them(ledger: Ledger) -> None:
    one, other = Terms(name="a", sensitive_fields=("card",)), Terms(name="b")
    with ledger.write() as transaction:
        first = keep_terms(transaction, one.to_text())
        assert keep_terms(transaction, one.to_text()) == first
        second = keep_terms(transaction, other.to_text())
    with ledger.write() as transaction:
        assert keep_terms(transaction, one.to_text()) == first
        assert read_terms(transaction, {first, second, 99}) == {first: one, second: other}
    assert rows(ledger, "SELECT count(*) FROM terms") == [[2]]


def test_the_runs_of_each_sweep_are_bounded_and_the_newest_come_first(ledger: Ledger) -> None:
    with ledger.write() as transaction:
        for number in range(12):
            record_run(transaction, "leases", number, number + 1, 5, 1, 0, None, keep_max=5)
        record_run(transaction, "escalate", 100, 101, 3, 0, 1, "one row was corrupt", keep_max=5)
    with ledger.read() as transaction:
        assert [run.started_us for run in history(transaction, "leases", 100)] == [11, 10, 9, 8, 7]
        assert [run.started_us for run in history(transaction, "leases", 2)] == [11, 10]
        assert [run.name for run in history(transaction, None, 3)] == ["escalate", "leases", "leases"]
        last = last_runs(transaction)
        assert {name: run.started_us for name, run in last.items()} == {"leases": 11, "escalate": 100}
        assert last["escalate"][3:] == (101, 3, 0, 1, "one row was corrupt")


def test_an_empty_ledger_has_no_runs(ledger: Ledger) -> None:
    with ledger.read() as transaction:
        assert last_runs(transaction) == {}
        assert history(transaction, None, 10) == []


def test_waiting_evidence_is_bounded_per_reference_and_in_all(ledger: Ledger) -> None:
    with ledger.write() as transaction:
        kept = [keep(transaction, "ref-1", "webhook", at, '{"n":1}', inbox_max=4, per_reference_max=3) for at in range(5)]
        assert kept == [True, True, True, False, False]
        more = [keep(transaction, f"ref-{number}", "webhook", 9, "{}", inbox_max=4, per_reference_max=3) for number in (2, 3)]
        assert more == [True, False]
    with ledger.write() as transaction:
        waiting = inbox_of(transaction, "ref-1")
        assert [(source, at, body) for _, source, at, body in waiting] == [("webhook", at, '{"n":1}') for at in range(3)]
        assert find_older(transaction, 2, 10) == [entry[0] for entry in waiting[:2]]
        take(transaction, [entry[0] for entry in waiting])
        take(transaction, [])
    with ledger.read() as transaction:
        assert inbox_of(transaction, "ref-1") == []
        assert len(inbox_of(transaction, "ref-2")) == 1
