"""Incidents stand beside the moves that make them, with the first row of the outbox, whichever path the move takes."""

import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from settled import App, NeedsReview, ProbeResult, TransitionRefusedError
from settled.core.incidents import IncidentKind
from settled.core.ladder import Incident
from settled.core.words import FenceBasis
from settled.execution.job import End
from settled.store import incidents, outbox
from settled.store.outbox import Notification
from settled.testing import VirtualClock
from tests.worker.harness import Hand, answered, declare, ended, in_seconds, returned, row_of, silent, story, submit, timed_out

MakeHand = Callable[..., Hand]


def incidents_of(app: App, operation_id: str) -> list[Incident]:
    with app.ledger.read() as transaction:
        return incidents.of_operation(transaction, row_of(app, operation_id).id)


def outbox_of(app: App, *found: Incident) -> list[Notification]:
    with app.ledger.read() as transaction:
        return outbox.of_incidents(transaction, [one.id for one in found])


def quarantined(app: App, hand: MakeHand, **terms: object) -> tuple[str, Hand]:
    declare(app, **terms)
    (one,) = submit(app, 1)
    worker = hand()
    worker.step(timed_out(worker.start(), app.shell.clock.now()))
    return one, worker


@pytest.mark.promise("S64", part="a move to quarantine brings its incident and a notification in the same transaction")
def test_a_move_to_quarantine_opens_one_incident_with_one_notification(app: App, hand: MakeHand) -> None:
    one, _ = quarantined(app, hand, risk="financial", queue="money")
    (incident,) = incidents_of(app, one)
    facts = (incident.kind, incident.reason, incident.contract, incident.queue, incident.risk, incident.closed_us)
    assert facts == ("quarantined", "no_probe", "pay", "money", "financial", None)
    (told,) = outbox_of(app, incident)
    assert (told.kind, told.state, told.step, told.number, told.channel) == ("incident", "wanted", 0, 0, None)
    assert len(told.delivery_id) == 32


@pytest.mark.promise("S64", part="what a transaction does not commit is told to nobody")
def test_a_rolled_back_move_leaves_neither_incident_nor_notification(app: App, hand: MakeHand) -> None:
    declare(app)
    (one,) = submit(app, 1)
    worker = hand()
    job = worker.start()
    with pytest.raises(RuntimeError), app.ledger.write() as transaction:
        worker.pump._record(transaction, [timed_out(job, app.shell.clock.now())], app.shell.clock.now())
        assert incidents.count_open(transaction) == 1
        raise RuntimeError
    assert incidents_of(app, one) == []
    worker.step(timed_out(job, app.shell.clock.now()))
    assert len(incidents_of(app, one)) == 1


@pytest.mark.parametrize("verb", ["confirm", "reject", "authorize_retry"])
def test_a_persons_decision_closes_the_incident(app: App, hand: MakeHand, verb: str) -> None:
    one, _ = quarantined(app, hand)
    more = {} if verb == "confirm" else {"assert_nothing_can_arrive": True}
    version = app.get(one).version
    getattr(app, verb)(one, actor="ana", reason="looked", evidence_reference="T-1", expected_version=version, **more)
    (incident,) = incidents_of(app, one)
    assert incident.closed_us is not None and incident.due_us is None
    assert incident.closed_by == story(app, one)[-1]


def test_late_evidence_that_confirms_closes_the_incident(app: App, hand: MakeHand) -> None:
    one, worker = quarantined(app, hand)
    worker.step(returned(worker.jobs[0], app.shell.clock.now(), {"id": "x"}, late=True))
    assert app.get(one).status == "confirmed"
    assert incidents_of(app, one)[0].closed_by == "late_return"


@pytest.mark.promise("S64", part="a conflict is an incident of its own")
def test_a_contradiction_after_the_end_opens_a_conflict(app: App, hand: MakeHand) -> None:
    declare(app)
    (one,) = submit(app, 1)
    worker = hand()
    job = worker.start()
    worker.step(ended(job, End.REJECTED, app.shell.clock.now(), fence=FenceBasis.RETURNED, retryable=False))
    app.add_evidence(operation_id=one, source="webhook", result=ProbeResult.committed(provider_operation_id="p1"))
    (incident,) = incidents_of(app, one)
    assert (app.get(one).status, incident.kind, incident.reason) == ("quarantined", "conflict", "conflicting_evidence")


@pytest.mark.promise("S64", part="evidence before any dispatch is a conflict, too")
def test_evidence_before_the_dispatch_opens_a_conflict(app: App) -> None:
    declare(app)
    (one,) = submit(app, 1)
    app.add_evidence(operation_id=one, source="webhook", result=ProbeResult.committed(provider_operation_id="p1"))
    (incident,) = incidents_of(app, one)
    assert (app.get(one).status, incident.kind, incident.reason) == ("prepared", "conflict", "evidence_before_dispatch")


@pytest.mark.promise("S64", part="a suspected duplicate is an incident, and ends when somebody has looked")
def test_a_suspected_duplicate_opens_an_incident_until_somebody_has_looked(app: App, hand: MakeHand) -> None:
    declare(app)
    (one,) = submit(app, 1)
    worker = hand()
    worker.step(returned(worker.start(), app.shell.clock.now(), 1, provider_operation_id="p1"))
    app.add_evidence(operation_id=one, source="webhook", result=ProbeResult.committed(provider_operation_id="p2"))
    (incident,) = incidents_of(app, one)
    assert (incident.kind, incident.closed_us, app.get(one).status) == ("duplicate_suspected", None, "confirmed")
    app.acknowledge(one, actor="ana")
    assert incidents_of(app, one)[0].closed_by == "acknowledged"


@pytest.mark.promise("S62", part="what is kept unknown is escalated")
def test_what_is_kept_unknown_is_an_incident(app: App, hand: MakeHand) -> None:
    one, _ = quarantined(app, hand, unknown_outcome="keep_unknown")
    assert app.get(one).status == "outcome_unknown"
    (incident,) = incidents_of(app, one)
    assert (incident.kind, incident.reason) == ("kept_unknown", "kept_unknown")


@pytest.mark.promise("S64", part="the sweep's own moves, too")
def test_what_is_unknown_for_too_long_is_an_incident_made_by_the_sweep(app: App, hand: MakeHand, clock: VirtualClock) -> None:
    one, worker = quarantined(app, hand, outcome_probe=silent, unknown_age_max=60)
    assert incidents_of(app, one) == []
    clock.advance(61)
    worker.sweep("escalate")
    assert [incident.reason for incident in incidents_of(app, one)] == ["unknown_too_long"]


def test_a_probe_that_spends_its_budget_makes_an_incident(app: App, hand: MakeHand) -> None:
    one, worker = quarantined(app, hand, outcome_probe=silent, probe_attempts_max=1, isolation="process")
    worker.step(answered(worker.probe(), app.shell.clock.now(), ProbeResult.unknown()))
    assert [incident.reason for incident in incidents_of(app, one)] == ["probe_budget_spent"]


def test_an_inline_call_opens_an_incident_without_any_worker(tmp_path: Path) -> None:
    app = App(tmp_path / "inline.db")
    app.create_database()

    def raises(arguments: dict[str, object]) -> None:
        raise NeedsReview("look")

    declare(app, handler=raises)
    op = app.execute("pay", {"n": 1})
    assert [incident.kind for incident in incidents_of(app, op.operation_id)] == [IncidentKind.QUARANTINED]
    app.close()


def test_an_adopted_copy_closes_what_it_opens_again(app: App, hand: MakeHand, tmp_path: Path) -> None:
    one, worker = quarantined(app, hand)
    worker.close()
    app.close()
    (tmp_path / "b").mkdir()
    shutil.copy(tmp_path / "settled.db", tmp_path / "b" / "settled.db")
    copy = App(tmp_path / "b" / "settled.db")
    copy.adopt(reason="the old disk died")
    (incident,) = incidents_of(copy, one)
    assert (copy.get(one).status, incident.closed_by) == ("outcome_unknown", "restored")
    copy.close()


# ------------------------------------------------------------------ what people say


@pytest.mark.promise("S66", part="each is an event with who said it; status, outcome and version stay")
def test_attention_is_one_event_and_moves_nothing(app: App, hand: MakeHand, clock: VirtualClock) -> None:
    one, _ = quarantined(app, hand)
    before = app.get(one)
    app.snooze(one, in_seconds(clock, 600), actor="ana", reason="waiting for the bank")
    assert incidents_of(app, one)[0].due_us == incidents_of(app, one)[0].snoozed_us == clock.now().wall_us + 600_000_000
    app.assign(one, "bo", actor="ana")
    (incident,) = incidents_of(app, one)
    assert (incident.assigned_to, incident.acknowledged_by, incident.due_us, incident.snoozed_us) == ("bo", "ana", None, None)
    app.acknowledge(one, actor="cy", reason="mine")
    after = app.get(one)
    assert (after.status, after.outcome, after.version) == (before.status, before.outcome, before.version)
    events = app.events(one)[-3:]
    said = [(event.type, event.data["actor"], event.data.get("reason_given"), bool(event.data["os_user"])) for event in events]
    assert said == [
        ("snoozed", "ana", "waiting for the bank", True),
        ("assigned", "ana", None, True),
        ("acknowledged", "cy", "mine", True),
    ]


def test_attention_is_refused_where_nothing_is_open_and_nothing_is_written(app: App, hand: MakeHand, clock: VirtualClock) -> None:
    declare(app)
    (one,) = submit(app, 1)
    with pytest.raises(TransitionRefusedError, match="no incident of it is open"):
        app.acknowledge(one, actor="ana")
    assert story(app, one) == ["submitted"]
    for bad in ("", " ", "a\ud800"):
        with pytest.raises(ValueError, match="actor"):
            app.acknowledge(one, actor=bad)
    for until in (datetime(2020, 1, 1, tzinfo=UTC), datetime(2030, 1, 1), in_seconds(clock, 0), in_seconds(clock, 400 * 86400)):  # noqa: DTZ001
        with pytest.raises(ValueError, match="until must"):
            app.snooze(one, until, actor="ana")
    with pytest.raises(ValueError, match="until must"):
        app.snooze(one, datetime.max.replace(tzinfo=UTC) - timedelta(1), actor="ana")
