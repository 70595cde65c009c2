"""Evidence that comes while another attempt is under way, or before the next one."""

from typing import Any

import pytest

from settled import App, ProbeResult, Status
from settled.core.errors import LedgerUnavailableError
from settled.execution.job import End
from settled.testing import VirtualClock
from tests.worker.conftest import MakeHand
from tests.worker.faults import failing_commits
from tests.worker.harness import Hand, K, answered, declare, ended, returned, row_of, story, submit, timed_out


def two_attempts(app: App, clock: VirtualClock, worker: Hand) -> tuple[str, Any, Any]:
    """Submit one operation, let its first attempt time out, and start the second under the key guarantee."""
    (one,) = submit(app, 1)
    first = worker.start()
    worker.step(timed_out(first, clock.now()))
    clock.advance(2)
    return one, first, worker.start()


ENDS = {
    "rejected": lambda job, at: ended(job, End.REJECTED, at, fence="returned", retryable=True),
    "timed_out": lambda job, at: timed_out(job, at),
    "not_sent": lambda job, at: ended(job, End.NOT_SENT, at, fence="returned"),
}


@pytest.mark.promise("S103", part="a kept late return settles the operation when the second attempt ends without one")
@pytest.mark.parametrize("end", ENDS)
def test_a_kept_late_return_settles_at_the_end_of_the_next_attempt(end: str, app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app, **K)
    worker = hand()
    one, first, second = two_attempts(app, clock, worker)
    worker.step(returned(first, clock.now(), {"id": "first"}, late=True, provider_operation_id="pay-1"))
    kept = app.get(one)
    assert (kept.status, kept.attempts, story(app, one)[-1]) == (Status.DISPATCHED, 2, "late_return")
    clock.advance(1)
    worker.step(ENDS[end](second, clock.now()))
    op = app.get(one)
    assert (op.status, op.result(), op.attempts) == (Status.CONFIRMED, {"id": "first"}, 2)
    assert story(app, one)[-2:] == ["evidence_merged", end]
    assert worker.step().jobs == []


@pytest.mark.promise("S103", part="the second attempt returned: IDs are compared")
def test_two_returns_with_two_provider_ids_are_suspected_to_be_two_effects(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app, **K)
    worker = hand()
    one, first, second = two_attempts(app, clock, worker)
    worker.step(returned(first, clock.now(), late=True, provider_operation_id="pay-1"))
    worker.step(returned(second, clock.now(), provider_operation_id="pay-2"))
    op = app.get(one)
    assert (op.status, op.duplicate_suspected) == (Status.CONFIRMED, True)


@pytest.mark.promise("P45", part="with an open attempt")
@pytest.mark.parametrize("source", ["late_return", "probe_committed"])
def test_confirming_evidence_wins_over_a_waiting_retry(source: str, app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app, outcome_probe=lambda arguments: ProbeResult.unknown(), **K)
    (one,) = submit(app, 1)
    worker = hand()
    first = worker.start()
    worker.step(timed_out(first, clock.now()))
    probe = worker.probe()
    worker.step(answered(probe, clock.now(), ProbeResult.unknown()))
    assert app.get(one).status is Status.PREPARED
    if source == "late_return":
        worker.step(returned(first, clock.now(), "it", late=True))
    else:
        app.add_evidence(operation_id=one, source="webhook", result=ProbeResult.committed())
    clock.advance(5)
    assert worker.step().jobs == []
    assert app.get(one).status is Status.CONFIRMED and worker.calls == 1
    assert story(app, one)[-1] == source


@pytest.mark.promise("P45", part="every attempt closed: a contradiction, for a person")
def test_a_confirmation_of_a_closed_attempt_is_a_contradiction(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app)
    (one,) = submit(app, 1)
    worker = hand()
    first = worker.start()
    worker.step(ended(first, End.REJECTED, clock.now(), fence="returned", retryable=True))
    assert app.get(one).status is Status.PREPARED
    app.add_evidence(operation_id=one, source="webhook", result=ProbeResult.committed())
    clock.advance(60)
    assert worker.step().jobs == []
    assert (app.get(one).status, app.get(one).reason) == (Status.QUARANTINED, "conflicting_evidence")
    assert worker.calls == 1


@pytest.mark.promise("P44")
def test_a_stale_probe_answer_overwrites_no_newer_dispatch_and_is_merged_later(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app, outcome_probe=lambda arguments: ProbeResult.unknown(), **K)
    (one,) = submit(app, 1)
    asker, worker = hand(), hand()
    worker.step(timed_out(worker.start(), clock.now()))
    slow, now = asker.probe(), clock.now()
    app.add_evidence(operation_id=one, source="webhook", result=ProbeResult.unknown())  # somebody else's answer moves it on
    assert app.get(one).status is Status.PREPARED
    clock.advance(5)
    second = worker.start()
    asker.step(answered(slow, now, ProbeResult.committed(output={"id": "first"})))
    row = row_of(app, one)
    assert (row.status, row.attempt, row.lease_owner) == (Status.DISPATCHED, 2, worker.presence.id)
    worker.step(timed_out(second, clock.now()))
    assert (app.get(one).status, app.get(one).output) == (Status.CONFIRMED, {"id": "first"})
    assert story(app, one)[-2:] == ["evidence_merged", "timed_out"]


@pytest.mark.promise("S103", part="the merge and the end are one transaction")
def test_a_fault_between_merge_and_end_leaves_neither(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app, **K)
    worker = hand()
    one, first, second = two_attempts(app, clock, worker)
    worker.step(returned(first, clock.now(), "kept", late=True))
    before = story(app, one)
    with failing_commits(app.ledger, after=False), pytest.raises(LedgerUnavailableError):
        worker.step(timed_out(second, clock.now()))
    assert story(app, one) == before
    worker.step()
    assert story(app, one) == [*before, "evidence_merged", "timed_out"]
