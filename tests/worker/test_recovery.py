"""What becomes of the attempts of an owner that is lost: what was proved of each, and no more."""


import pytest

from settled import App, Outcome, ProbeResult, Status
from settled.execution.recorder import Phase
from settled.testing import VirtualClock
from settled_worker.sweeps import Swept
from tests.worker.conftest import MakeHand
from tests.worker.faults import damage
from tests.worker.harness import answered, declare, dies, entered, events_of, in_seconds, returned, row_of, silent, story, submit


@pytest.mark.promise("S61", part="every dispatched row is unknown with the fence host_rebooted, and the recorder is ignored")
def test_a_reboot_loses_every_lease_and_fences_it(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app, outcome_probe=silent, network_drain=10)
    (one,) = submit(app, 1)
    owner, observer = hand(), hand()
    owner.start()  # claimed, not entered: the recorder of another boot is not asked
    clock.advance(100)
    clock.reboot()
    observer.sweep("leases")
    assert story(app, one) == ["submitted", "dispatched"]  # its lock is held: whatever boot ID it was shown, it lives
    dies(owner)
    observer.sweep("leases")
    lost = events_of(app, one)[2]
    assert (lost.type, lost.status, lost.data["fence"]) == ("lease_lost", Status.OUTCOME_UNKNOWN, "host_rebooted")
    absent = ProbeResult.not_committed(terminal=True, healthy=True)
    clock.advance(10)
    observer.step(answered(observer.probe(), clock.now(), absent))
    assert events_of(app, one)[-1].data["why"] == "too_early"
    clock.advance(1)
    observer.step(answered(observer.probe(), clock.now(), absent))
    assert story(app, one)[-1] == "probe_absent" and app.get(one).status is Status.PREPARED


@pytest.mark.promise("S01", part="believed once owner and runner are gone: never_entered, no probe, attempt 2")
def test_an_attempt_that_never_entered_is_dispatched_again_without_a_probe(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app, outcome_probe=silent)
    (one,) = submit(app, 1)
    owner, observer = hand(), hand()
    owner.start()
    dies(owner)
    observer.sweep("leases")
    recorder = owner.presence.recorder
    assert recorder.read(recorder.find(1, 1) or 0).phase is Phase.REVOKED  # type: ignore[union-attr]
    assert not recorder.enter(recorder.find(1, 1) or 0, 1, 1, None)  # whoever wakes now enters nothing
    observer.sweep("reconcile")
    assert observer.probes == []
    job = observer.start()
    assert job.attempt == 2
    observer.step(returned(job, clock.now()))
    assert story(app, one) == ["submitted", "dispatched", "never_entered", "dispatched", "returned"]


@pytest.mark.promise("S101", part="all gone: before sending it was not sent, after it or undeclared it is unknown")
@pytest.mark.parametrize(("declared", "sent"), [(True, False), (True, True), (False, False)])
def test_an_announced_sending_decides_what_a_dead_owner_sent(declared: bool, sent: bool, app: App, hand: MakeHand) -> None:
    declare(app, announces_sending=declared)
    (one,) = submit(app, 1)
    owner, observer = hand(), hand()
    owner.start()
    entered(owner)
    recorder = owner.presence.recorder
    slot = recorder.find(1, 1) or 0
    if sent:
        assert recorder.sending(slot, 1, 1)
    dies(owner)
    observer.sweep("leases")
    proved = declared and not sent
    assert story(app, one)[2] == ("not_sent" if proved else "lease_lost")
    if proved:
        assert app.get(one).status is Status.PREPARED
        assert not recorder.sending(slot, 1, 1)  # whoever wakes now sends nothing


@pytest.mark.damages_the_ledger
def test_a_row_that_cannot_be_read_keeps_no_other_row_of_a_dead_owner(app: App, hand: MakeHand) -> None:
    declare(app)
    ids = submit(app, 1, 2, 3)
    owner, observer = hand(), hand()
    owner.step()
    damage(app, ids[1])
    dies(owner)
    observer.sweep("leases")
    assert [app.get(one).status for one in (ids[0], ids[2])] == [Status.PREPARED, Status.PREPARED]
    assert row_of(app, ids[1]).status is Status.DISPATCHED


def test_the_deadline_of_a_held_operation_is_found_by_the_escalate_sweep(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app, approval="required")
    one = submit(app, 1, deadline=in_seconds(clock, 5))[0]
    assert app.get(one).reason == "awaiting_approval"
    clock.advance(6)
    worker = hand()
    assert worker.sweep("escalate").moved == 1
    assert (app.get(one).status, app.get(one).outcome) == (Status.CANCELLED, Outcome.FAILED)
    assert worker.sweep("escalate") == Swept()


def test_retention_clears_away_the_files_of_the_dead_and_no_others(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app)
    submit(app, 1)
    dead, living = hand(), hand()
    dead.step()
    dead.presence.close()  # it left in good order, but not without an attempt of its own
    files = [dead.presence.incarnation.lock_path, dead.presence.incarnation.lock_path.with_suffix(".recorder")]
    living.sweep("retention")
    assert all(path.exists() for path in files)  # it owns a row: the proof is still needed
    living.sweep("leases")
    living.sweep("retention")
    assert not any(path.exists() for path in files)
    assert living.presence.incarnation.lock_path.exists()
