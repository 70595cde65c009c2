"""When a probe is asked, what its answers cost, and when people are told."""


import pytest

from settled import App, ProbeResult, Status
from settled.testing import VirtualClock
from tests.worker.conftest import Lost, MakeHand
from tests.worker.harness import UNKNOWN, Hand, answered, declare, events_of, in_seconds, row_of, silent, story, submit, timed_out


def ask_when_due(app: App, one: str, worker: Hand, clock: VirtualClock, answer: ProbeResult) -> float:
    """Wait until the next probe is due, answer it, and return how long that was, in seconds."""
    began = clock.now().wall_us
    due = row_of(app, one).due_us
    assert due is not None
    clock.advance(max(0.0, (due - began) / 1e6))
    worker.step(answered(worker.probe(), clock.now(), answer))
    return (clock.now().wall_us - began) / 1e6


@pytest.mark.promise("S49", part="budget: growing intervals, then quarantined")
def test_the_probe_budget_is_spent_at_growing_intervals(app: App, clock: VirtualClock, lost: Lost) -> None:
    one, worker = lost(probe_attempts_max=5)
    waits = [ask_when_due(app, one, worker, clock, UNKNOWN) for _ in range(5)]
    assert waits == [0.0, 2.0, 4.0, 8.0, 16.0]  # first at once; jitter is drawn as 0 here
    assert (app.get(one).status, app.get(one).reason) == (Status.QUARANTINED, "probe_budget_spent")
    assert story(app, one)[3:] == ["probe_unknown"] * 5 + ["quarantined"] and worker.calls == 1


@pytest.mark.promise("S49", part="the defaults: 2 s doubling up to 15 min, 12 answers")
def test_the_default_budget_is_twelve_answers_and_the_wait_is_capped(app: App, clock: VirtualClock, lost: Lost) -> None:
    one, worker = lost()
    waits = [ask_when_due(app, one, worker, clock, UNKNOWN) for _ in range(12)]
    assert waits == [0.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 900.0, 900.0]
    assert app.get(one).reason == "probe_budget_spent"


@pytest.mark.promise("S49", part="PENDING and too early spend none")
@pytest.mark.parametrize(
    "answer", [ProbeResult.pending(), ProbeResult.not_committed(terminal=True, healthy=True)], ids=["pending", "too early"]
)
def test_pending_and_too_early_spend_no_budget(answer: ProbeResult, app: App, clock: VirtualClock, lost: Lost) -> None:
    one, worker = lost(probe_attempts_max=2, commit_horizon=3600)
    for _ in range(4):
        worker.step(answered(worker.probe(), clock.now(), answer))
        assert (app.get(one).status, row_of(app, one).probes_spent) == (Status.OUTCOME_UNKNOWN, 0)
        if answer.status == "pending":
            clock.advance(60)
        else:
            due = row_of(app, one).due_us
            assert due is not None and due > clock.now().wall_us + 3_000_000_000  # asked again after the horizon, not before
            return


@pytest.mark.promise("S49", part="the deadline")
def test_a_deadline_ends_the_probes_before_the_budget(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app, isolation="process", outcome_probe=silent)
    one = submit(app, 1, deadline=in_seconds(clock, 5))[0]
    worker = hand()
    worker.step(timed_out(worker.start(), clock.now()))
    ask_when_due(app, one, worker, clock, UNKNOWN)
    clock.advance(5)
    ask_when_due(app, one, worker, clock, UNKNOWN)
    assert (app.get(one).status, app.get(one).reason) == (Status.QUARANTINED, "deadline_spent")


@pytest.mark.promise("S109")
def test_nothing_stays_unknown_for_a_day_without_a_person(app: App, clock: VirtualClock, lost: Lost) -> None:
    one, worker = lost()
    for _ in range(60):
        ask_when_due(app, one, worker, clock, ProbeResult.pending())
        worker.sweep("escalate")
        if app.get(one).status is not Status.OUTCOME_UNKNOWN:
            break
        clock.advance(1800)
    op = app.get(one)
    unknown = events_of(app, one)[2].at_us
    assert (op.status, op.reason, op.attempts) == (Status.QUARANTINED, "unknown_too_long", 1)
    assert 86_400 <= (clock.now().wall_us - unknown) / 1e6 < 86_400 + 2 * 1800 + 900
    ask_when_due(app, one, worker, clock, ProbeResult.committed())  # probes go on
    assert app.get(one).status is Status.CONFIRMED


@pytest.mark.promise("S04", part="a probe started before the horizon and answered after it does not count")
@pytest.mark.parametrize(("started", "counts"), [(59.0, False), (60.0, False), (61.0, True)])
def test_an_absence_is_judged_by_when_its_probe_started(started: float, counts: bool, app: App, clock: VirtualClock, lost: Lost) -> None:
    one, worker = lost(commit_horizon=60)
    clock.advance(started)
    asked = worker.probe()
    clock.advance(5)
    worker.step(answered(asked, clock.now(), ProbeResult.not_committed(terminal=True, healthy=True)))
    assert story(app, one)[-1] == ("probe_absent" if counts else "probe_unknown")
    if not counts:
        assert events_of(app, one)[-1].data["why"] == "too_early" and row_of(app, one).probes_spent == 0
