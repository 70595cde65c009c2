"""Who owns an attempt, what its end proves, and what a write is worth that comes from a lost owner. One thread, a virtual clock."""

from collections.abc import Callable

import pytest

from settled import App, Status
from settled.core.limits import DEFAULTS
from settled.core.words import FenceBasis
from settled.execution.job import End, Job
from settled.execution.recorder_file import offset
from settled.testing import VirtualClock
from tests.worker.conftest import MakeHand
from tests.worker.harness import Hand, K, declare, dies, ended, entered, returned, row_of, silent, story, submit, timed_out
from tests.worker.services import Place

WHO = {"actor": "ana", "reason": "looked", "evidence_reference": "case-7"}


@pytest.mark.promise("P14")
def test_a_claim_is_one_guarded_write_that_is_committed_before_the_handler_starts(
    app: App, clock: VirtualClock, hand: MakeHand, here: Place
) -> None:
    declare(app)
    (one,) = submit(app, 1)
    claimer, other = hand(), hand()
    job = claimer.start()
    row = row_of(app, one)  # read from outside, while the handler is about to start
    assert (row.status, row.attempt, row.lease_owner, job.attempt) == (Status.DISPATCHED, 1, claimer.presence.id, 1)
    assert row.terms is not None and other.step().jobs == []
    before = app.ledger.meta  # what an idle worker does often is in its recorder, not in the ledger
    version, counter = row.version, claimer.presence.recorder.counter
    claimer.presence.beat()
    assert claimer.presence.recorder.counter == counter + 1 and row_of(app, one).version == version and app.ledger.meta == before
    assert (DEFAULTS.lease_seconds, DEFAULTS.beat_seconds, DEFAULTS.worker_row_seconds) == (30.0, 10.0, 60.0)
    here.environ["SETTLED_WORKER__LEASE_SECONDS"] = "0"
    refused = here.settled_command("worker", "run", "--app", "effects:app", "--once")
    assert refused.returncode == 78 and "lease_seconds" in refused.stderr


@pytest.mark.promise("P27")
def test_nobody_comes_past_a_live_lease_whatever_they_ask(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    called: list[int] = []
    declare(app, handler=lambda arguments: called.append(1), **K)
    (one,) = submit(app, 1)
    owner, observer = hand(), hand()
    owner.start()
    entered(owner)
    for _ in range(40):
        clock.advance(7.5)  # 300 s in all: ten leases
        owner.presence.beat()
        assert observer.sweep("leases").moved == 0 and observer.step().jobs == []
    asked = app.submit("pay", {"n": 1}), app.execute(app.contract("pay"), {"n": 1})
    assert [(op.status, op.in_progress, op.attempts) for op in asked] == [(Status.DISPATCHED, True, 1)] * 2
    assert (owner.calls, observer.calls, called, story(app, one)) == (1, 0, [], ["submitted", "dispatched"])


@pytest.mark.promise("P15")
def test_the_return_of_an_attempt_that_lost_its_lease_moves_nothing_under_its_old_guard_and_is_kept(
    app: App, clock: VirtualClock, hand: MakeHand
) -> None:
    declare(app, **K)
    (one,) = submit(app, 1)
    owner, observer = hand(), hand()
    first = owner.start()
    entered(owner)
    dies(owner)
    observer.sweep("leases")
    observer.sweep("reconcile")
    clock.advance(5)
    second = observer.start()
    before = row_of(app, one)
    assert (before.attempt, before.lease_owner) == (2, observer.presence.id)
    owner.step(returned(first, clock.now(), {"id": "pay-1"}))
    after = row_of(app, one)
    assert (after.status, after.attempt, after.lease_owner) == (Status.DISPATCHED, 2, observer.presence.id)
    kept = [event for event in app.events(one) if event.type == "late_return"]
    assert [event.attempt for event in kept] == [1]
    observer.step(ended(second, End.TIMED_OUT, clock.now()))
    op = app.get(one)
    assert (op.status, op.output) == (Status.CONFIRMED, {"id": "pay-1"})  # merged when attempt 2 ended


@pytest.mark.promise("S01")
@pytest.mark.parametrize(
    ("spoilt", "told"),
    [
        ("nothing", "never_entered"),
        ("entered", "lease_lost"),
        ("torn", "lease_lost"),
        ("freed", "lease_lost"),
        ("another attempt", "lease_lost"),
        ("no recorder", "lease_lost"),
        ("another boot", "lease_lost"),
    ],
)
def test_never_entered_is_believed_only_of_a_whole_slot_that_was_revoked(
    spoilt: str, told: str, app: App, clock: VirtualClock, hand: MakeHand
) -> None:
    declare(app, outcome_probe=silent)
    (one,) = submit(app, 1)
    owner, observer = hand(), hand()
    owner.start()
    recorder = owner.presence.recorder
    slot = recorder.find(1, 1)
    assert slot is not None
    match spoilt:
        case "entered":
            entered(owner)
        case "torn":
            recorder._map[offset(slot)] ^= 1
        case "freed" | "another attempt":
            recorder.clear(slot)
            assert spoilt == "freed" or recorder.claim(slot, 1, 2)
        case "no recorder":
            recorder.path.unlink()
        case "another boot":
            clock.advance(100)
            clock.reboot()
    dies(owner)
    observer.sweep("leases")
    assert story(app, one)[2] == told
    if told == "never_entered":
        assert not recorder.enter(slot, 1, 1, None), "whoever wakes now finds it revoked"
        assert [observer.start().attempt, story(app, one)[3]] == [2, "dispatched"]
    else:
        assert (app.get(one).status, observer.step().jobs) == (Status.OUTCOME_UNKNOWN, [])


def _report(end: End, fence: FenceBasis | None) -> Callable[[Hand, Hand, Job, App, VirtualClock], None]:
    return lambda owner, observer, job, app, clock: owner.step(ended(job, end, clock.now(), fence=fence)) and None


def _killed(owner: Hand, observer: Hand, job: Job, app: App, clock: VirtualClock) -> None:
    entered(owner)
    dies(owner)
    observer.sweep("leases")


def _rebooted(owner: Hand, observer: Hand, job: Job, app: App, clock: VirtualClock) -> None:
    clock.advance(100)
    clock.reboot()
    dies(owner)  # what still holds its lock has survived, whatever boot ID is shown
    observer.sweep("leases")


def _asserted(owner: Hand, observer: Hand, job: Job, app: App, clock: VirtualClock) -> None:
    owner.step(timed_out(job, clock.now()))
    seen = app.get(job.operation_id)
    app.reject(job.operation_id, **WHO, expected_version=seen.version, assert_nothing_can_arrive=True)


FENCES = {
    "never entered": ("process", _report(End.NEVER_ENTERED, FenceBasis.NEVER_ENTERED), "never_entered", False),
    "returned, and a probe decides": ("process", _report(End.RETURNED, FenceBasis.RETURNED), "returned", True),
    "raised, and gone": ("thread", _report(End.RAISED, FenceBasis.RAISED), "raised", True),
    "killed at the deadline": ("process", _report(End.TIMED_OUT, FenceBasis.PROCESS_KILLED), "process_killed", True),
    "stopped": ("process", _report(End.STOPPED, FenceBasis.PROCESS_KILLED), "process_killed", True),
    "its owner and all it started are gone": ("process", _killed, "process_gone", True),
    "another boot": ("process", _rebooted, "host_rebooted", True),
    "a person's word": ("thread", _asserted, "operator_asserted", False),
    "given up in a thread": ("thread", _report(End.TIMED_OUT, None), "may_still_run", True),
    "handed to another service": ("process", _report(End.TIMED_OUT, FenceBasis.PROCESS_KILLED), "may_still_run", True),
}


@pytest.mark.promise("S03")
@pytest.mark.parametrize("case", FENCES)
def test_a_fence_has_its_basis_and_closes_nothing(case: str, app: App, clock: VirtualClock, hand: MakeHand) -> None:
    isolation, ends, basis, is_open = FENCES[case]
    terms = {"dispatch": "handoff"} if case.startswith("handed") else {}
    declare(app, isolation=isolation, outcome_probe=silent, confirm_on="probe" if "probe decides" in case else "return", **terms)
    (one,) = submit(app, 1)
    owner, observer = hand(), hand()
    ends(owner, observer, owner.start(), app, clock)
    attempt = app.get(one).attempt_records[0]
    assert attempt["fence"] == basis
    assert (attempt["closed_by"] == "open") == is_open
    if is_open:
        assert (app.get(one).status, observer.step().jobs) == (Status.OUTCOME_UNKNOWN, [])
