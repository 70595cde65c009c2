"""Handlers that are really stopped, and announcements that a takeover refuses: real processes, real signals."""

import signal

import pytest

from settled import Status
from tests.lib.execution.outside import is_alive, kill
from tests.worker.services import ISOLATIONS, LEASE, Place, fresh

pytestmark = pytest.mark.timeout(300)  # many real starts; on a busy machine each takes its time


@pytest.mark.promise("S40", "P48")
def test_a_stubborn_handler_is_gone_with_its_children_before_anything_else_happens(here: Place) -> None:
    """It ignores TERM, and so do its children; under a key guarantee the next attempt looks whether any of them lives."""
    reference = fresh()
    one = here.submit("stubborn", reference)
    here.worker(settings={"SETTLED_WORKER__PROCESS_RUNNERS": "1"})
    family = here.marked(f"family-{reference}").split()
    (op,) = here.settled(one)
    assert len(family) == 3
    assert (op.status, op.output) == (Status.CONFIRMED, [])  # nobody was alive when the next attempt looked
    assert here.lines("calls") == {reference: 2}
    ends = [event for event in here.app.events(one) if event.type not in ("submitted", "dispatched", "never_entered")]  # a slow start
    assert [event.type for event in ends] == ["timed_out", "key_retry", "returned"]
    timed_out = ends[0]
    assert (timed_out.status, timed_out.data["fence"]) == (Status.OUTCOME_UNKNOWN, "process_killed")
    after = here.submit("append_process", fresh())
    assert here.settled(after)[0].status is Status.CONFIRMED  # the one place takes the next operation
    assert not any(is_alive(int(pid)) for pid in family) and not (here.marks / f"late-{reference}").exists()


@pytest.mark.promise("S101")
@ISOLATIONS
def test_an_announcement_is_contested_like_the_entry(here: Place, isolation: str) -> None:
    reference = fresh()
    one = here.submit(f"announced_{isolation}", reference, wait="before")
    frozen = here.worker()
    handler = int(here.marked(f"entered-{reference}"))
    kill(handler, signal.SIGSTOP)
    kill(frozen.pid, signal.SIGCONT)  # in a thread they are one process
    frozen.freeze(here)
    other = here.worker(settings=LEASE)
    (op,) = here.settled(one)
    assert (op.status, op.attempts) == (Status.CONFIRMED, 2)
    assert here.story(one) == ["submitted", "dispatched", "not_sent", "dispatched", "returned"]
    here.mark(f"go-{reference}")
    for pid in (handler, frozen.pid):
        kill(pid, signal.SIGCONT)
    assert here.marked(f"refused-{reference}") == "AttemptRevoked"
    assert here.charges()[reference] == 1
    frozen.stop()
    other.stop()


@pytest.mark.promise("S101", part="all killed: before the announcement it was not sent and needs no probe, after it it is unknown")
@pytest.mark.parametrize("wait", ["before", "after"])
def test_killed_before_its_announcement_it_was_not_sent(here: Place, wait: str) -> None:
    reference = fresh()
    one = here.submit("announced_process", reference, wait=wait)
    worker = here.worker()
    here.marked(f"entered-{reference}")
    worker.kill_at_once()
    here.worker()
    op = here.becomes(one, Status.CONFIRMED, Status.QUARANTINED)
    if wait == "before":
        assert here.story(one) == ["submitted", "dispatched", "not_sent", "dispatched", "returned"]
    else:
        assert here.story(one)[2] == "lease_lost" and op.attempts == 1
    assert here.charges().get(reference, 0) == (wait == "before")
