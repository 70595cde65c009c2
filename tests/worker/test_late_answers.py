"""An answer counts by when its own probe started, and one that comes after its probe was given up is none."""


import pytest

from settled import App, ProbeResult, Status
from settled.testing import VirtualClock
from tests.worker.conftest import Lost, MakeHand
from tests.worker.harness import UNKNOWN, answered, declare, story, submit, timed_out

ABSENT = ProbeResult.not_committed(terminal=True, healthy=True)


@pytest.mark.promise("S04", part="started before the bound and answered after it: does not count")
def test_an_absence_that_was_read_too_early_does_not_count_however_late_it_arrives(app: App, clock: VirtualClock, lost: Lost) -> None:
    one, worker = lost(network_drain=3)
    asked = worker.probe()
    clock.advance(10)
    worker.step(answered(asked, clock.now(), ABSENT))
    assert app.get(one).status is Status.OUTCOME_UNKNOWN
    assert app.get(one).evidence[-1]["facts"]["why"] == "too_early"


@pytest.mark.promise("S48", part="an answer after the time limit is none")
def test_an_answer_after_its_probe_was_given_up_moves_nothing_and_keeps_the_next_probe(app: App, clock: VirtualClock, lost: Lost) -> None:
    one, worker = lost(network_drain=3)
    first = worker.probe()
    worker.step(answered(first, clock.now(), UNKNOWN)._replace(answer=None, error_class="TimeoutError"))
    clock.advance(60)
    second = worker.probe()
    before = story(app, one)
    worker.step(answered(first, clock.now(), ABSENT)._replace(late=True))
    assert story(app, one) == before
    worker.step(answered(second, clock.now(), ABSENT))  # read after the bound: this one counts
    assert story(app, one)[-1] == "probe_absent"


@pytest.mark.promise("S46", part="a notice says not when it was read: its absence closes nothing")
def test_an_absence_in_a_notice_closes_nothing(app: App, clock: VirtualClock, lost: Lost) -> None:
    one, _ = lost(network_drain=0)
    clock.advance(60)
    op = app.add_evidence(operation_id=one, source="webhook", result=ABSENT)
    assert op is not None and op.status is Status.OUTCOME_UNKNOWN
    assert op.evidence[-1]["facts"]["why"] == "undated"


@pytest.mark.promise("S97", part="a backlog over several isolations takes no more slots than there are")
def test_a_backlog_over_two_isolations_claims_no_more_than_there_are_slots(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    async def later() -> None:
        """Stand for a handler that is never called here."""

    declare(app)
    app.effect(name="send", operation_id=lambda a: f"send:{a['n']}", isolation="async", network_drain=0)(later)
    submit(app, *range(10))
    for n in range(10):
        app.submit("send", {"n": n})
    worker = hand(slots=8)
    assert len(worker.step().jobs) == 8
    ends = [timed_out(job, clock.now()) for job in worker.jobs[:3]]
    assert len(worker.step(*ends).jobs) == 3
