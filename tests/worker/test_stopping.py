"""Handlers that are really stopped, and announcements that a takeover refuses: real processes, real signals."""

import signal

import pytest

from settled import App, LedgerUnavailableError, Outcome, Status
from settled.core.limits import Limits
from tests.conftest import eventually
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


@pytest.mark.promise("S131", part="a worker that is stopped in the middle of a write holds the ledger, and no deadline")
def test_a_worker_frozen_in_a_write_holds_the_ledger_and_leaves_no_handler_behind(here: Place) -> None:
    reference = fresh()
    one = here.submit("stubborn", reference)
    worker = here.worker(point="stop-in-write", settings={"SETTLED_WORKER__PROCESS_RUNNERS": "1"})
    family = [int(pid) for pid in here.marked(f"family-{reference}").split()]
    here.mark("freeze")
    other = here.submit("append_thread", fresh())  # its claim is the write in which it stops
    here.marked("frozen")
    with pytest.raises(LedgerUnavailableError):  # as docs/limits.md says
        App(here.database, limits=Limits(busy_timeout_seconds=0.3)).submit("append_thread", {"reference": "x"}, operation_id="x")
    eventually(lambda: not any(map(is_alive, family)), seconds=60)  # by the timers of runner and supervisor: TERM is ignored
    assert not (here.marks / f"late-{reference}").exists()
    worker.signal(signal.SIGCONT)
    assert here.settled(one, other)[0].status is Status.CONFIRMED
    assert [event for event in here.story(one) if event not in ("dispatched", "never_entered")][:2] == ["submitted", "timed_out"]
    worker.stop()


@pytest.mark.promise("S118")
def test_stop_ends_a_running_handler_and_leaves_an_honest_unknown(here: Place) -> None:
    references = {isolation: fresh() for isolation in ("process", "thread")}
    ids = {isolation: here.submit(f"rest_{isolation}", reference) for isolation, reference in references.items()}
    worker = here.worker()
    pids = {isolation: int(here.marked(f"entered-{reference}")) for isolation, reference in references.items()}
    person = ("--actor", "ana", "--reason", "the amount is wrong")
    for isolation, fence in (("process", "process_killed"), ("thread", "may_still_run")):
        said = here.settled_command("op", "stop", ids[isolation], *person)
        assert said.returncode == 0 and "cancelled" not in said.stdout.lower(), said
        op = here.becomes(ids[isolation], Status.OUTCOME_UNKNOWN, Status.QUARANTINED)
        assert (op.outcome, op.attempts, here.story(ids[isolation])[2:4]) == (Outcome.UNKNOWN, 1, ["stop_requested", "stopped"])
        record = op.attempt_records[0]
        assert (record["fence"], record["interruption"], record["closed_by"]) == (fence, "stopped", "open")
        assert here.settled_command("op", "stop", ids[isolation], *person).returncode == 4
    assert not is_alive(pids["process"])
    here.mark(f"go-{references['thread']}")
    assert here.becomes(ids["thread"], Status.CONFIRMED).attempts == 1  # a late return settles it
    waiting = here.app.submit("rest_process", {"reference": fresh()}, delay=3600).operation_id
    for other in (waiting, ids["thread"]):
        assert here.settled_command("op", "stop", other, *person).returncode == 4
    for blank in (("--actor", " ", "--reason", "r"), ("--actor", "ana", "--reason", " ")):
        assert here.settled_command("op", "stop", waiting, *blank).returncode == 2
    worker.stop()
    assert here.app.get(ids["process"]).attempts == 1
