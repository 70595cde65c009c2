"""What was closed and told long ago is forgotten by the retention sweep; what is open or has not arrived never is."""

from collections.abc import Callable

import pytest

from settled import App, ProbeResult
from settled.core.ladder import Incident
from settled.steps.retain import FOR_EVER, Retention, forget_old, purge_old
from settled.store import incidents, outbox
from settled.testing import VirtualClock
from tests.worker.harness import Hand, declare, returned, row_of, submit
from tests.worker.test_incidents import quarantined
from tests.worker.test_ladder import all_of, deliver, plan, storm, tick

MakeHand = Callable[..., Hand]
DAY = 86_400
KEPT = Retention(incidents_seconds=30 * DAY)


def forget(app: App, retention: Retention = KEPT) -> int:
    return forget_old(app.shell, retention, batches_max=40)


def confirm(app: App, operation_id: str) -> None:
    app.add_evidence(operation_id=operation_id, source="webhook", result=ProbeResult.committed())


def incidents_of(app: App, operation_id: str) -> list[Incident]:
    with app.ledger.read() as transaction:
        return incidents.of_operation(transaction, row_of(app, operation_id).id)


def rows_of(app: App, table: str) -> int:
    with app.ledger.read() as transaction:
        return int(transaction.cursor.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def test_a_closed_incident_is_forgotten_after_its_time_and_the_events_stay(app: App, hand: MakeHand, clock: VirtualClock) -> None:
    one, worker = quarantined(app, hand)
    tick(app, plan())
    deliver(app)
    confirm(app, one)
    clock.advance(30 * DAY - 1)
    assert forget(app) == 0 and len(incidents_of(app, one)) == 1
    clock.advance(2)
    events = app.events(one)
    assert forget(app, FOR_EVER) == 0
    worker.sweeper.retain = lambda: KEPT
    assert worker.sweep("retention").moved == 1
    assert (rows_of(app, "incident"), rows_of(app, "notification")) == (0, 0)
    assert app.events(one) == events and app.get(one).outcome == "CONFIRMED"
    assert forget(app) == 0


def test_a_contract_that_loses_its_own_age_is_purged_with_the_others(app: App, hand: MakeHand, clock: VirtualClock) -> None:
    declare(app)
    (one,) = submit(app, 1)
    worker = hand()
    worker.step(returned(worker.start(), clock.now(), "done"))
    worker.step()
    clock.advance(40 * DAY)
    kept_longer = Retention(payload_seconds=30 * DAY, contracts={"pay": 90 * DAY})
    assert purge_old(app.shell, kept_longer, batches_max=40).purged == 0
    assert purge_old(app.shell, Retention(payload_seconds=30 * DAY), batches_max=40).purged == 1
    assert not app.get(one).has_output


def test_what_is_open_keeps_what_was_told_of_it(app: App, hand: MakeHand, clock: VirtualClock) -> None:
    one, _ = quarantined(app, hand)
    tick(app, plan())
    deliver(app)
    clock.advance(400 * DAY)
    assert forget(app) == 0
    assert [told.state for told in all_of(app, one)] == ["delivered"]
    tick(app, plan())
    assert [told.step for told in deliver(app)] == [1, 2]  # the ladder goes on where it was, and begins nothing anew


@pytest.mark.parametrize("state", ["wanted", "pending", "sending"])
def test_what_has_not_arrived_is_kept_with_its_incident(app: App, hand: MakeHand, clock: VirtualClock, state: str) -> None:
    one, _ = quarantined(app, hand)
    if state != "wanted":
        tick(app, plan())
    if state == "sending":
        with app.ledger.write() as transaction:
            assert outbox.claim_next(transaction, "log", 1, clock.now().wall_us) is not None
    confirm(app, one)
    clock.advance(400 * DAY)
    assert forget(app) == 0
    assert [told.state for told in all_of(app, one)] == [state]


def test_a_digest_goes_with_the_last_incident_that_it_speaks_of(app: App, hand: MakeHand, clock: VirtualClock) -> None:
    first, worker = quarantined(app, hand)
    others = storm(app, worker, clock, range(100, 130))
    tick(app, plan())
    assert [one.kind for one in deliver(app)] == ["digest"]
    for one in others:
        confirm(app, one)
    clock.advance(400 * DAY)
    assert forget(app) == len(others)
    assert [(one.kind, one.state) for one in all_of(app, first)] == [("incident", "delivered")]
    assert rows_of(app, "notification WHERE kind = 'digest'") == 1
    confirm(app, first)
    clock.advance(400 * DAY)
    assert forget(app) == 2  # the incident, and the digest
    assert (rows_of(app, "incident"), rows_of(app, "notification")) == (0, 0)


def test_no_more_batches_are_forgotten_at_once_than_are_allowed(app: App, hand: MakeHand, clock: VirtualClock) -> None:
    first, worker = quarantined(app, hand)
    batch_max = app.shell.limits.batch_max
    others = storm(app, worker, clock, range(100, 100 + batch_max + 10))
    tick(app, plan())
    deliver(app)
    for one in others:
        confirm(app, one)
    clock.advance(31 * DAY)
    assert forget_old(app.shell, KEPT, batches_max=1) == batch_max
    assert forget_old(app.shell, KEPT, batches_max=1) == 10
    assert len(incidents_of(app, first)) == rows_of(app, "incident") == 1
