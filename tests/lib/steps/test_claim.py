"""What is stored of a request that is dispatched at once is what a submission and a claim store, and the same stands against it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from settled import App, Effect, ProbeResult, Status
from settled.core.moment import Moment
from settled.shell import Shell
from settled.steps.claim import Claimed, NotAllNewError, claim_one, may_start, store_dispatched
from settled.steps.submit import Order, check_order, store_orders
from settled.store.audit import verify
from settled.store.reads import find_row
from settled.store.requests import Stored
from settled.store.transaction import Transaction
from tests.lib.store.ledgers import rows

NOW = Moment(1_700_000_000_000_000, 5_000_000, "boot")
WORKER = 7
TABLES = ("operation", "event", "payload", "seal", "tally", "terms")

Found = tuple[Stored, Claimed | None]
Store = Callable[[Shell, Transaction, Sequence[Order]], list[Found]]


def opened(folder: Path, **terms: Any) -> tuple[App, Effect]:
    folder.mkdir()
    app = App(folder / "settled.db")
    app.create_database()
    terms = {"name": "pay", "operation_id": lambda a: f"pay:{a['n']}", "isolation": "thread"} | terms
    return app, app.effect(**terms)(lambda: "done")


def order_of(app: App, effect: Effect, n: int = 1, **options: Any) -> Order:
    return check_order(effect.contract, "pay", {"n": n, "text": "Zürich"}, limits=app.shell.limits, **options)


def at_once(shell: Shell, transaction: Transaction, orders: Sequence[Order]) -> list[Found]:
    found = store_dispatched(shell, transaction, WORKER, [(order, NOW) for order in orders])
    assert None not in found
    return [one for one in found if one is not None]


def one_after_the_other(shell: Shell, transaction: Transaction, orders: Sequence[Order]) -> list[Found]:
    found = []
    for order in orders:
        stored = store_orders(shell, transaction, [order], NOW)[0]
        assert may_start(shell, transaction, stored.row, NOW)
        found.append((stored, claim_one(shell, transaction, WORKER, stored.row, order.arguments, NOW)))
    return found


def dump(app: App) -> dict[str, list[list[Any]]]:
    return {table: rows(app.ledger, f"SELECT * FROM {table} ORDER BY 1, 2") for table in TABLES}


@pytest.mark.promise("S24", part="I6: a row that is stored as dispatched is the fold of both its events")
@pytest.mark.parametrize(
    ("terms", "options", "count"),
    [
        ({}, {}, 1),
        ({}, {}, 3),
        ({}, {"priority": 3, "metadata": {"run": "7"}}, 2),
        ({"dispatch": "handoff", "concurrency": 1, "rate_limit": 5.0}, {}, 1),
        ({"provider_reference": lambda a: f"ref:{a['n']}", "provider_idempotency_key": lambda a: f"k:{a['n']}"}, {}, 2),
        ({"identity_fields": ["n"], "sensitive_fields": ["text"], "queue": "slow", "risk": "financial"}, {}, 2),
    ],
    ids=["plain", "several", "options", "limits", "references", "identity"],
)
def test_requests_dispatched_at_once_are_stored_as_if_they_had_been_claimed(
    tmp_path: Path, terms: dict[str, Any], options: dict[str, Any], count: int
) -> None:
    stored = []
    ways: list[Store] = [at_once, one_after_the_other]
    for way in ways:
        app, effect = opened(tmp_path / way.__name__, **terms)
        orders = [order_of(app, effect, n, **options) for n in range(1, count + 1)]
        with app.ledger.write() as transaction:
            found = way(app.shell, transaction, orders)
        with app.ledger.read() as transaction:
            rows_now = [find_row(transaction, order.operation_id) for order in orders]
        assert rows_now == [claimed and claimed.row for _, claimed in found]
        stored.append((dump(app), found))
        assert verify(app.ledger) == []
        app.close()
    assert stored[0] == stored[1]
    assert {claimed and claimed.row.status for _, claimed in stored[0][1]} == {Status.DISPATCHED}


@pytest.mark.promise("S24", part="I1: of several requests that one limit holds, none is dispatched without being counted")
@pytest.mark.parametrize("terms", [{"concurrency": 2}, {"rate_limit": 2.0}], ids=lambda terms: next(iter(terms)))
def test_several_requests_of_a_contract_with_a_limit_are_left_to_be_counted_one_by_one(tmp_path: Path, terms: dict[str, Any]) -> None:
    app, effect = opened(tmp_path / "ledger", **terms)
    with app.ledger.write() as transaction:
        orders = [(order_of(app, effect, n), NOW) for n in range(3)]
        assert store_dispatched(app.shell, transaction, WORKER, orders) == [None, None, None]
    assert dump(app)["operation"] == []
    app.close()


def test_several_requests_of_which_one_is_known_leave_nothing(tmp_path: Path) -> None:
    app, effect = opened(tmp_path / "ledger")
    known(app, effect)
    before = dump(app)
    with pytest.raises(NotAllNewError), app.ledger.write() as transaction:
        store_dispatched(app.shell, transaction, WORKER, [(order_of(app, effect, n), NOW) for n in (2, 1)])
    assert dump(app) == before and verify(app.ledger) == []
    app.close()


def paused(app: App, effect: Effect) -> Order:
    app.pause(actor="ada", reason="wait")
    return order_of(app, effect)


def paused_contract(app: App, effect: Effect) -> Order:
    app.pause(contract="pay", actor="ada", reason="wait")
    return order_of(app, effect)


def delayed(app: App, effect: Effect) -> Order:
    return order_of(app, effect, delay=60)


def crowded(app: App, effect: Effect) -> Order:
    with app.ledger.write() as transaction:
        at_once(app.shell, transaction, [order_of(app, effect, 2)])
    return order_of(app, effect)


def overdue(app: App, effect: Effect) -> Order:
    return order_of(app, effect)._replace(deadline_us=NOW.wall_us)


def known(app: App, effect: Effect) -> Order:
    order = order_of(app, effect)
    with app.ledger.write() as transaction:
        store_orders(app.shell, transaction, [order], NOW)
    return order


def foretold(app: App, effect: Effect) -> Order:
    app.add_evidence(provider_reference="ref:1", source="webhook", result=ProbeResult.committed(reference="ref:1"))
    return order_of(app, effect)


def copied(app: App, effect: Effect) -> Order:
    app.close()
    database = Path(app.ledger.path)
    database.rename(database.with_name("old.db"))
    database.write_bytes(database.with_name("old.db").read_bytes())
    return order_of(app, effect)


@pytest.mark.promise("S24", part="I1: what stands against a dispatch stands against one at once")
@pytest.mark.parametrize(
    ("terms", "hinder"),
    [
        ({}, paused),
        ({}, paused_contract),
        ({}, delayed),
        ({"concurrency": 1}, crowded),
        ({"rate_limit": 1.0}, crowded),
        ({}, overdue),
        ({}, known),
        ({"provider_reference": lambda a: f"ref:{a['n']}"}, foretold),
        ({"approval": "required"}, order_of),
        ({}, copied),
    ],
    ids=lambda one: one.__name__ if callable(one) else ",".join(one),
)
def test_what_stands_against_a_claim_stands_against_a_dispatch_at_once(
    tmp_path: Path, terms: dict[str, Any], hinder: Callable[[App, Effect], Order]
) -> None:
    app, effect = opened(tmp_path / "ledger", **terms)
    order = hinder(app, effect)
    before = dump(app)
    with app.ledger.write() as transaction:
        assert store_dispatched(app.shell, transaction, WORKER, [(order, NOW)]) == [None]
    after = dump(app)
    before.pop("terms"), after.pop("terms")  # the terms of a contract may be kept before anything else of it is
    assert after == before
    app.close()
