"""Ladders, reminders and storms: what is wanted of which channel and when, over a real ledger under a virtual clock."""

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from settled import App, ProbeResult
from settled.config.escalation import EscalationSettings
from settled.core.text import make_redactor
from settled.steps.escalate import Plan, climb, plan_of, route
from settled.store import incidents, outbox
from settled.store.outbox import Notification
from settled.testing import VirtualClock
from tests.worker.harness import Hand, answered, declare, in_seconds, row_of, silent, submit, timed_out
from tests.worker.test_incidents import quarantined

MakeHand = Callable[..., Hand]
STEPS = [{"channel": "log"}, {"channel": "a", "after_seconds": 900}, {"channel": "b", "after_seconds": 3600, "every_seconds": 600}]


def plan(steps: Any = STEPS, **more: Any) -> Plan:
    channels = {name: {"kind": "log"} for name in ("a", "b", "c")}
    ladders = {"default": {"steps": steps}, **more.pop("ladders", {})}
    return plan_of(EscalationSettings.model_validate({"channels": channels, "ladders": ladders, **more}))


def tick(app: App, chosen: Plan) -> None:
    now_us = app.shell.clock.now().wall_us
    climb(app.shell, chosen, now_us)
    route(app.shell, chosen, app.redact, now_us)


def deliver(app: App, *channels: str) -> list[Notification]:
    """Take everything that is queued as a channel that works would."""
    taken = []
    for channel in channels or ("log", "a", "b", "c"):
        while True:
            with app.ledger.write() as transaction:
                now_us = app.shell.clock.now().wall_us
                one = outbox.claim_next(transaction, channel, 1, now_us)
                if one is None:
                    break
                assert outbox.arrived(transaction, one.id, 1, now_us)
            taken.append(one)
    return taken


def said(found: list[Notification]) -> list[tuple[str | None, int, int]]:
    return [(one.channel, one.step, one.number) for one in found]


def all_of(app: App, operation_id: str) -> list[Notification]:
    with app.ledger.read() as transaction:
        found = incidents.of_operation(transaction, row_of(app, operation_id).id)
        return outbox.of_incidents(transaction, [one.id for one in found])


@pytest.mark.promise("S65")
def test_each_step_is_taken_once_at_its_time_however_often_it_is_looked_at(app: App, hand: MakeHand, clock: VirtualClock) -> None:
    quarantined(app, hand)
    chosen = plan()
    seen: list[tuple[int, str | None, int, int]] = []
    began_us = clock.now().wall_us
    for minutes in (0, 1, 14, 15, 16, 59, 60, 61, 69, 70):
        clock.advance(minutes * 60 - (clock.now().wall_us - began_us) / 1e6)
        for _ in range(3):
            tick(app, chosen)
        seen += [(minutes, *one) for one in said(deliver(app))]
    assert seen == [(0, "log", 0, 0), (15, "a", 1, 0), (60, "b", 2, 0), (70, "b", 2, 1)]


@pytest.mark.promise("S65", part="a restart neither repeats nor skips a step")
def test_a_worker_that_was_away_takes_every_missed_step_once(app: App, hand: MakeHand, clock: VirtualClock) -> None:
    one, worker = quarantined(app, hand)
    tick(app, plan())
    worker.close()
    app.close()  # a restart: nothing is remembered but what is stored
    clock.advance(2 * 3600)
    tick(app, plan())
    tick(app, plan())
    assert sorted(said(deliver(app))) == [("a", 1, 0), ("b", 2, 0), ("log", 0, 0)]
    assert [told.state for told in all_of(app, one)] == ["delivered"] * 3


@pytest.mark.promise("S65", part="settled or acknowledged stops it")
@pytest.mark.promise("S66", part="acknowledging and assigning stop ladder and reminders")
@pytest.mark.parametrize("stop", ["ack", "assign", "settle"])
def test_what_somebody_looks_at_or_what_is_settled_is_told_no_further(
    app: App, hand: MakeHand, clock: VirtualClock, stop: str
) -> None:
    one, worker = quarantined(app, hand, outcome_probe=silent, unknown_age_max=60, isolation="process")
    clock.advance(61)
    worker.sweep("escalate")
    tick(app, plan())
    deliver(app)
    clock.advance(900)
    tick(app, plan())
    assert [told.state for told in all_of(app, one)] == ["delivered", "pending"]  # queued, not sent yet
    if stop == "ack":
        app.acknowledge(one, actor="ana")
    elif stop == "assign":
        app.assign(one, "bo", actor="ana")
    else:
        app.add_evidence(operation_id=one, source="webhook", result=ProbeResult.committed())
    clock.advance(86_400)
    tick(app, plan())
    assert len(all_of(app, one)) == 2
    assert app.get(one).outcome == ("CONFIRMED" if stop == "settle" else "UNKNOWN")


@pytest.mark.promise("S66")
def test_a_snoozed_incident_is_quiet_until_then_and_goes_on(app: App, hand: MakeHand, clock: VirtualClock) -> None:
    one, _ = quarantined(app, hand)
    chosen = plan()
    tick(app, chosen)
    deliver(app)
    app.snooze(one, in_seconds(clock, 7200), actor="ana")
    clock.advance(7199)
    tick(app, chosen)
    assert deliver(app) == []
    clock.advance(1)
    tick(app, chosen)
    assert said(deliver(app)) == [("a", 1, 0), ("b", 2, 0)]
    app.snooze(one, in_seconds(clock, 60), actor="ana")
    clock.advance(60)
    tick(app, chosen)
    assert said(deliver(app)) == [("b", 2, 1)]  # every step was taken: the last one tells it again
    app.acknowledge(one, actor="ana")
    clock.advance(86_400)
    tick(app, chosen)
    assert deliver(app) == []
    assert app.get(one).outcome == "UNKNOWN" and [event.type for event in app.events(one)][-3:] == ["snoozed", "snoozed", "acknowledged"]


def test_what_was_acknowledged_can_be_snoozed_and_comes_back(app: App, hand: MakeHand, clock: VirtualClock) -> None:
    one, _ = quarantined(app, hand)
    chosen = plan([{"channel": "log"}])
    tick(app, chosen)
    app.acknowledge(one, actor="ana")
    app.snooze(one, in_seconds(clock, 60), actor="ana")
    deliver(app)
    clock.advance(61)
    tick(app, chosen)
    assert said(deliver(app)) == [("log", 0, 1)]


def test_a_reminder_waits_for_the_one_before_it(app: App, hand: MakeHand, clock: VirtualClock) -> None:
    one, _ = quarantined(app, hand)
    chosen = plan([{"channel": "a", "every_seconds": 60}])
    for _ in range(20):  # nobody delivers: the channel is down
        tick(app, chosen)
        clock.advance(60)
    assert said(all_of(app, one)) == [("a", 0, 0)]
    deliver(app)
    clock.advance(60)
    tick(app, chosen)
    assert said(deliver(app)) == [("a", 0, 1)]


def test_a_first_step_with_a_delay_is_not_taken_where_it_was_settled_before(app: App, hand: MakeHand, clock: VirtualClock) -> None:
    one, _ = quarantined(app, hand)
    chosen = plan([{"channel": "a", "after_seconds": 300}])
    tick(app, chosen)
    assert [told.state for told in all_of(app, one)] == ["wanted"]
    clock.advance(299)
    tick(app, chosen)
    assert deliver(app) == []
    app.acknowledge(one, actor="ana")
    clock.advance(2)
    tick(app, chosen)
    assert [told.state for told in all_of(app, one)] == ["withdrawn"]


def test_what_is_over_before_anybody_looked_is_told_all_the_same(app: App, hand: MakeHand) -> None:
    one, _ = quarantined(app, hand)
    app.confirm(one, actor="ana", reason="r", evidence_reference="e", expected_version=app.get(one).version)
    tick(app, plan())
    (told,) = deliver(app)
    body = json.loads(told.body or "")
    assert body["incident"]["closed_at"] and "over since" in body["text"]


def test_the_ladder_is_that_of_the_contract_before_the_queue_before_the_risk(app: App, hand: MakeHand) -> None:
    ladders = {
        "by-contract": {"contracts": ["pay"], "steps": [{"channel": "a"}]},
        "by-queue": {"queues": ["money"], "steps": [{"channel": "b"}]},
        "by-risk": {"risks": ["financial"], "steps": [{"channel": "c"}]},
    }
    financial = {"risk": "financial"}
    for name, terms in {"pay": {"queue": "money"}, "q": {"queue": "money", **financial}, "r": financial, "d": {}}.items():
        declare(app, name, **terms)
        submit(app, 1, contract=name)
    worker = hand()
    worker.step(*(timed_out(job, app.shell.clock.now()) for job in worker.step().jobs))
    tick(app, plan(ladders=ladders))
    found = {json.loads(one.body or "")["incident"]["contract"]: one.channel for one in deliver(app)}
    assert found == {"pay": "a", "q": "b", "r": "c", "d": "log"}


# ------------------------------------------------------------------ storms


def storm(app: App, worker: Hand, clock: VirtualClock, numbers: range) -> list[str]:
    ids = submit(app, *numbers)
    jobs = worker.step().jobs
    while jobs:
        jobs = worker.step(*(timed_out(job, clock.now()) for job in jobs)).jobs
    return ids


@pytest.mark.promise("S64", part="a storm is told in a digest, what comes after it singly again")
def test_five_hundred_in_a_minute_make_a_digest_and_a_later_one_is_told_alone(app: App, hand: MakeHand, clock: VirtualClock) -> None:
    declare(app)
    worker = hand(slots=64)
    chosen = plan([{"channel": "a"}, {"channel": "b", "after_seconds": 900}])
    taken: list[Notification] = []
    for batch in range(20):  # they trickle in, which is worse than all at once
        storm(app, worker, clock, range(batch * 25, batch * 25 + 25))
        tick(app, chosen)
        taken += deliver(app)
        clock.advance(3)
    for _ in range(3):
        clock.advance(60)
        tick(app, chosen)
        taken += deliver(app)
    kinds = Counter(one.kind for one in taken)
    assert kinds["incident"] <= 10 and 1 <= kinds["digest"] <= 3, kinds
    told = sum(json.loads(one.body or "")["digest"]["count"] if one.kind == "digest" else 1 for one in taken)
    assert told == 500  # each of them is spoken of, and none twice
    clock.advance(900)
    tick(app, chosen)
    assert [one.kind for one in deliver(app)] == ["digest"]  # the next step of five hundred ladders is one digest, too
    with app.ledger.read() as transaction:
        assert outbox.undelivered(transaction) == []
    clock.advance(3600)
    storm(app, worker, clock, range(500, 501))
    tick(app, chosen)
    assert said(deliver(app)) == [("a", 0, 0)]


def test_a_dead_channel_has_a_bounded_queue(app: App, hand: MakeHand, clock: VirtualClock) -> None:
    declare(app)
    worker = hand(slots=64)
    chosen = plan([{"channel": "a", "every_seconds": 60}])
    for batch in range(25):
        storm(app, worker, clock, range(batch * 6, batch * 6 + 6))
        tick(app, chosen)
        clock.advance(61)
    with app.ledger.read() as transaction:
        queued = {one.channel: one.notifications for one in outbox.undelivered(transaction)}
    assert queued["a"] <= app.shell.limits.channel_queue_max + 1
    for _ in range(4):
        deliver(app)
        clock.advance(61)
        tick(app, chosen)
    with app.ledger.read() as transaction:
        assert sum(one.notifications for one in outbox.undelivered(transaction) if one.channel is None) == 0


def test_what_waits_for_a_dead_channel_stands_before_nothing_of_a_living_one(app: App, hand: MakeHand, clock: VirtualClock) -> None:
    declare(app)
    worker = hand(slots=64)
    dead = plan([{"channel": "a"}], storm_count=1)
    storm(app, worker, clock, range(3))
    tick(app, dead)  # a digest for `a`, which nobody takes
    storm(app, worker, clock, range(3, 9))
    tick(app, dead)
    with app.ledger.read() as transaction:
        assert outbox.find_wanted(transaction, clock.now().wall_us, 100) == []  # none of them is looked at again at once
    clock.advance(61)
    deliver(app, "a")
    tick(app, dead)
    assert len(deliver(app, "a")) == 1


# ------------------------------------------------------------------ what is said


@pytest.mark.promise("S64", part="bounded, redacted, without control characters; neither arguments nor error texts")
def test_a_text_is_bounded_redacted_and_harmless(app: App, hand: MakeHand) -> None:
    hostile = "id-\x1b[31m\u202e-SECRET42-" + "x" * 400
    declare(app, operation_id=lambda a: a["id"])
    app.submit("pay", {"n": 1, "id": hostile, "card": "4111111111111111"})
    worker = hand()
    job = worker.start()
    worker.step(timed_out(job, app.shell.clock.now(), error_class="Boom", error_text="4111111111111111"))
    now_us = app.shell.clock.now().wall_us
    route(app.shell, plan(), make_redactor([re.compile("SECRET[0-9]+")]), now_us)
    (told,) = deliver(app)
    text = told.body or ""
    assert "SECRET42" not in text and "4111111111111111" not in text and "Boom" not in text
    assert not re.search("[\x00-\x1f\u202e]", text) and len(text) < 2000
    body = json.loads(text)
    assert "\\x1b" in body["text"] and len(body["incident"]["operation_id"]) <= 200
    assert body["next"] == "settled quarantine list"  # an ID that was changed to be shown cannot be copied


def test_the_next_command_can_be_copied(app: App, hand: MakeHand) -> None:
    declare(app, operation_id=lambda a: a["id"])
    app.submit("pay", {"n": 1, "id": "a b; rm -rf /"})
    worker = hand()
    worker.step(timed_out(worker.start(), app.shell.clock.now()))
    tick(app, plan())
    assert json.loads(deliver(app)[0].body or "")["next"] == "settled op show 'a b; rm -rf /'"


def test_nothing_of_a_copied_ledger_is_told(app: App, hand: MakeHand) -> None:
    quarantined(app, hand)
    app.ledger._misplaced = ("inode",)
    tick(app, plan())
    app.ledger._misplaced = ()
    assert deliver(app) == []


def test_a_probe_that_still_answers_does_not_bring_a_second_incident(app: App, hand: MakeHand, clock: VirtualClock) -> None:
    one, worker = quarantined(app, hand, outcome_probe=silent, unknown_age_max=60, isolation="process")
    clock.advance(61)
    worker.sweep("escalate")
    worker.step(answered(worker.probe(), clock.now(), ProbeResult.unknown()))
    tick(app, plan())
    assert said(deliver(app)) == [("log", 0, 0)]
    assert app.get(one).status == "quarantined"
