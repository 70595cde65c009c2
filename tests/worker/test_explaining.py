"""`settled op explain` in every status: why, which attempt is open and why, what is missing, what would move it, and when."""

from collections.abc import Callable

import pytest

from settled import App, ProbeResult, RetryPolicy
from settled.core.words import FenceBasis
from settled.execution.job import End
from settled.store.audit import head
from settled.testing import VirtualClock
from settled_cli.explaining import explain_operation
from settled_cli.render import utc
from tests.worker.conftest import MakeHand
from tests.worker.harness import K, answered, declare, ended, in_seconds, returned, row_of, silent, submit, timed_out


@pytest.fixture
def told(app: App) -> Callable[[str], str]:
    """Explain, and see that nothing was written."""

    def explain(operation_id: str) -> str:
        before = head(app.ledger)
        said = " ".join(explain_operation(app, operation_id))
        assert head(app.ledger) == before
        return said

    return explain


Told = Callable[[str], str]


def at(clock: VirtualClock, seconds: float) -> str:
    return utc(clock.now().wall_us + round(seconds * 1e6))


@pytest.mark.promise("S11")
def test_a_waiting_a_held_and_a_running_operation_say_when_something_moves_them(
    app: App, clock: VirtualClock, hand: MakeHand, told: Told
) -> None:
    declare(app, timeout=30)
    declare(app, "line", retry=RetryPolicy(not_sent_attempts_max=1))
    declare(app, "gift", approval="required")
    assert f"due for dispatch at {at(clock, 60)}" in told(submit(app, 1, delay=60)[0])
    held = told(submit(app, 1, contract="gift", deadline=in_seconds(clock, 90))[0])
    assert "settled op approve gift:1" in held and f"expires at {at(clock, 90)}" in held
    (one,) = submit(app, 2)
    worker = hand()
    assert worker.start().operation_id == one
    said = told(one)
    assert f"dispatched at {at(clock, 0)} and has not ended here" in said and f"Its time is over at {at(clock, 30)}" in said
    assert "If its owner dies before, the next leases sweep" in said and "settled op stop pay:2" in said
    app.stop(one, actor="ana", reason="wrong amount", wait=0)
    assert "its owner ends it, and its outcome is unknown then" in told(one)
    worker.step(ended(worker.jobs[0], End.STOPPED, clock.now()))
    (unsent,) = submit(app, 1, contract="line", deadline=in_seconds(clock, 90))
    worker.step(ended(worker.start(), End.NOT_SENT, clock.now(), fence=FenceBasis.RAISED))
    said = told(unsent)
    assert "not_sent_limit" in said and "closed (not_sent)" in said
    assert f"settled op cancel line:1. It ends by its deadline at {at(clock, 90)}" in said


@pytest.mark.promise("S11")
def test_an_unknown_outcome_names_its_open_attempt_what_is_missing_and_the_next_probe(
    app: App, clock: VirtualClock, hand: MakeHand, told: Told
) -> None:
    declare(app, outcome_probe=silent, unknown_age_max=3600)
    (one,) = submit(app, 1)
    worker = hand()
    job = worker.start()
    worker.step(timed_out(job, clock.now()))
    worker.step(answered(worker.probe(), clock.now(), ProbeResult.not_committed(terminal=True, healthy=True)))
    said = told(one)
    assert "ended as timed_out" in said and "open and may_still_run" in said and "(process_gone)" in said and "thread isolation" in said
    assert "an absence counts only once the attempt is fenced (no_fence)" in said
    due_us = row_of(app, one).due_us
    assert due_us is not None and f"The next probe is due at {utc(due_us)}" in said
    assert f"A person is told at {at(clock, 3600)} at the latest" in said
    assert "refused while attempt 1 may still run" in said


@pytest.mark.promise("S11")
def test_a_quarantined_operation_says_from_when_a_person_may_decide_and_why_the_key_does_not_help(
    app: App, clock: VirtualClock, hand: MakeHand, told: Told
) -> None:
    declare(app, isolation="process", network_drain=120)
    with pytest.warns(UserWarning, match="process"):
        declare(app, "keyed", provider_idempotency_window=86_400, **K)
    (killed,), (keyed,) = submit(app, 1), submit(app, 1, contract="keyed")
    worker = hand()
    worker.step(*(timed_out(job, clock.now()) for job in worker.step().jobs))
    said = told(killed)
    assert "quarantined" in said and "fenced (process_killed)" in said and "No probe is scheduled" in said
    assert f"authorize a retry from {at(clock, 120)} on (version {app.get(killed).version})" in said
    assert "its window is finite, and in thread isolation" in told(keyed)
    clock.advance(121)
    assert "authorize a retry now" in told(killed)


@pytest.mark.promise("S11")
def test_what_is_settled_says_so_and_promises_nothing_more(app: App, clock: VirtualClock, hand: MakeHand, told: Told) -> None:
    declare(app)
    paid, refused, called_off = submit(app, 1, 2, 3)
    app.cancel(called_off, actor="ana", reason="not needed")
    worker = hand()
    first, second = worker.step().jobs
    worker.step(returned(first, clock.now()), ended(second, End.REJECTED, clock.now(), fence=FenceBasis.RAISED))
    assert "happened at least once" in told(paid)
    assert "surely did not happen" in told(refused) and "closed (rejected)" in told(refused)
    assert "called off" in told(called_off)
    assert not any(word in told(one) for one in (paid, refused, called_off) for word in ("due", "probe", "no_handler"))
