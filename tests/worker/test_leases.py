"""Leases: when an owner is lost and when it is not, under a virtual clock."""


import pytest

from settled import App, Outcome, Status
from settled.execution.recorder_file import offset
from settled.testing import VirtualClock
from tests.worker.conftest import MakeHand
from tests.worker.harness import Hand, K, declare, dies, entered, events_of, story, submit


def watch(observer: Hand, clock: VirtualClock, seconds: float, looks: int, *, owner: Hand | None = None) -> list[int]:
    """Look `looks` times over `seconds`; return how many rows each look moved. A living `owner` beats before each."""
    moved = []
    for look in range(looks):
        if look:
            clock.advance(seconds / (looks - 1))
        if owner is not None:
            owner.presence.beat()
        moved.append(observer.sweep("leases").moved)
    return moved


@pytest.mark.promise("X2", "D50")
def test_a_lease_is_lost_after_a_whole_lease_without_a_beat_and_three_looks(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app)
    (one,) = submit(app, 1)
    owner, observer, other = hand(), hand(), hand()
    owner.start()
    entered(owner)
    assert watch(observer, clock, 29.9, 4) == [0, 0, 0, 0]
    assert app.get(one).status is Status.DISPATCHED
    assert watch(other, clock, 100.0, 2) == [0, 0]  # a whole lease, but two looks
    assert watch(observer, clock, 0.0, 1) == [1]
    assert other.sweep("leases").moved == 0  # one winner
    assert story(app, one)[2] == "lease_lost" and app.get(one).outcome is Outcome.UNKNOWN
    assert events_of(app, one)[2].status is Status.OUTCOME_UNKNOWN
    assert owner.calls == 1 and observer.step().jobs == []


@pytest.mark.promise("P27", part="no second worker takes what beats, for ten times the lease")
def test_a_live_lease_keeps_everyone_else_out(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app, **K)
    (one,) = submit(app, 1)
    owner, observer = hand(), hand()
    owner.start()
    entered(owner)
    assert sum(watch(observer, clock, 300.0, 40, owner=owner)) == 0
    assert app.submit("pay", {"n": 1}).in_progress
    op = app.get(one)
    assert (op.status, op.attempts, observer.step().jobs) == (Status.DISPATCHED, 1, [])


@pytest.mark.promise("S32")
def test_clock_jumps_and_suspends_take_no_lease(app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app)
    (one,) = submit(app, 1)
    owner, observer = hand(), hand()
    owner.start()
    entered(owner)
    for jump in (86_400, -2 * 86_400, 86_400):
        clock.step_wall(jump)
        assert watch(observer, clock, 2.0, 3, owner=owner) == [0, 0, 0]
    clock.suspend(3600)  # the owner slept as well: it has not beaten since
    assert [observer.sweep("leases").moved for _ in range(5)] == [0] * 5
    assert app.get(one).status is Status.DISPATCHED and owner.calls == 1


@pytest.mark.promise("S94")
@pytest.mark.parametrize("replaced", [False, True])
def test_a_missing_or_replaced_lock_file_proves_nothing(replaced: bool, app: App, clock: VirtualClock, hand: MakeHand) -> None:
    declare(app)
    (one,) = submit(app, 1)
    owner, observer = hand(), hand()
    owner.start()
    entered(owner)
    path = owner.presence.incarnation.lock_path
    if replaced:
        path.rename(path.with_suffix(".old"))
        path.touch()
    else:
        path.unlink()
    assert sum(watch(observer, clock, 120.0, 20, owner=owner)) == 0
    assert app.get(one).status is Status.DISPATCHED
    dies(owner)
    assert watch(observer, clock, 29.0, 4)[-1] == 0
    assert sum(watch(observer, clock, 2.0, 2)) == 1
    assert "fence" not in events_of(app, one)[2].data and owner.calls == 1


@pytest.mark.promise("S31", part="a freed lock proves an incarnation dead at once")
def test_a_dead_owner_is_found_by_the_first_sweep(app: App, hand: MakeHand) -> None:
    declare(app)
    (one,) = submit(app, 1)
    owner, observer = hand(), hand()
    owner.start()
    entered(owner)
    dies(owner)
    assert observer.sweep("leases").moved == 1
    assert events_of(app, one)[2].data["fence"] == "process_gone"


@pytest.mark.promise("S01", part="bad checksum and no slot: not believed")
@pytest.mark.parametrize("spoilt", ["torn", "freed", "another attempt"])
def test_a_slot_that_cannot_be_believed_is_not_believed(spoilt: str, app: App, hand: MakeHand) -> None:
    declare(app)
    (one,) = submit(app, 1)
    owner, observer = hand(), hand()
    owner.start()
    recorder = owner.presence.recorder
    slot = recorder.find(1, 1)
    assert slot is not None
    if spoilt == "torn":
        recorder._map[offset(slot)] ^= 1
    else:
        recorder.clear(slot)
        if spoilt == "another attempt":
            assert recorder.claim(slot, 1, 2)
    dies(owner)
    observer.sweep("leases")
    assert story(app, one)[2] == "lease_lost"
