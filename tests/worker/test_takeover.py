"""Workers that are frozen and overtaken, and handlers that kill, hang or never end."""

import signal

import pytest

from settled import Outcome, Status
from tests.conftest import eventually
from tests.lib.execution.outside import is_alive
from tests.worker.services import LEASE, Place, fresh


@pytest.mark.promise("S90", part="isolation process, thread and async")
@pytest.mark.parametrize("isolation", ["process", "thread", "async"])
def test_a_frozen_worker_that_was_overtaken_before_the_entry_calls_nothing_when_it_wakes(here: Place, isolation: str) -> None:
    references = [fresh() for _ in range(3)]
    ids = [here.submit(f"charge_{isolation}", reference) for reference in references]
    frozen = here.worker(point="hold-after-claim")
    here.marked("held")
    assert {here.app.get(one).status for one in ids} == {Status.DISPATCHED}
    frozen.freeze(here)
    other = here.worker(settings=LEASE)
    for op in here.settled(*ids):
        assert (op.status, op.attempts) == (Status.CONFIRMED, 2)
        assert here.story(op.operation_id) == ["submitted", "dispatched", "never_entered", "dispatched", "returned"]
    frozen.signal(signal.SIGCONT)
    here.mark("go")
    frozen.stop()
    other.stop()
    assert here.lines("calls") == dict.fromkeys(references, 1)
    assert [here.charges()[reference] for reference in references] == [1, 1, 1]


@pytest.mark.promise("S90", part="the entry won first: not believed to be never entered")
@pytest.mark.promise("P15", part="a return after the lease was lost is kept as late evidence")
def test_a_worker_frozen_in_a_handler_gives_late_evidence_and_repeats_nothing(here: Place) -> None:
    reference = fresh()
    one = here.submit("nap_thread", reference)
    frozen = here.worker()
    here.marked(f"entered-{reference}")
    frozen.freeze(here)
    other = here.worker(settings=LEASE)
    here.becomes(one, Status.QUARANTINED)  # no probe, no key: a person
    assert here.story(one)[2] == "lease_lost"
    frozen.signal(signal.SIGCONT)
    here.mark(f"go-{reference}")
    op = here.becomes(one, Status.CONFIRMED)
    assert (op.output, op.attempts) == ("rested", 1)
    assert [kind for kind in here.story(one) if kind != "fenced"][-1] == "late_return"
    frozen.stop()
    other.stop()


@pytest.mark.parametrize(("isolation", "whom"), [("thread", "self"), ("process", "parent"), ("process", "self")])
def test_a_handler_that_kills_whoever_runs_it_is_counted_and_put_before_a_person(here: Place, isolation: str, whom: str) -> None:
    bad, good = fresh(), fresh()
    poisoned = here.app.submit(f"poison_{isolation}", {"reference": bad, "whom": whom}, priority=1).operation_id
    worker = here.worker()
    if isolation == "thread":
        assert worker.ended() == -signal.SIGKILL
        assert here.app.get(poisoned).attempts == 1  # counted before the handler started
        here.worker()
    op = here.becomes(poisoned, Status.QUARANTINED)
    assert (op.attempts, op.outcome) == (1, Outcome.UNKNOWN)
    other = here.submit(f"append_{isolation}", good)
    assert here.settled(other)[0].status is Status.CONFIRMED
    assert here.lines("calls") == {bad: 1}


@pytest.mark.promise("P29", part="a thread goes on after its limit, gives no fence, and leaves its slot")
@pytest.mark.promise("S91", part="held at the limit, others go on, and dispatched once one has ended")
def test_a_contract_whose_handlers_hang_waits_at_the_limit_and_others_go_on(here: Place) -> None:
    hung = [fresh(), fresh()]
    ids = [here.submit("short_thread", reference) for reference in hung]
    worker = here.worker(settings={"SETTLED_WORKER__ABANDONED_MAX": "2", "SETTLED_WORKER__SLOTS": "2"})
    for one in ids:
        assert here.becomes(one, Status.QUARANTINED).attempts == 1
        assert here.story(one)[2] == "timed_out" and "fence" not in here.app.events(one)[2].data
    third = here.submit("short_thread", waiting := fresh())
    other = here.submit("append_thread", fresh())
    assert here.settled(other)[0].status is Status.CONFIRMED
    assert (here.app.get(third).status, here.app.get(third).attempts) == (Status.PREPARED, 0)
    assert [line["contracts"] for line in worker.told("worker.contracts_wait")] == [["short_thread"]]
    assert here.refused() == ["short_thread"]
    here.mark(f"go-{waiting}")
    here.mark(f"go-{hung[0]}")
    assert here.settled(third)[0].result() == "rested"
    assert here.becomes(ids[0], Status.CONFIRMED).output == "rested"
    eventually(lambda: here.refused() == [])
    here.mark(f"go-{hung[1]}")


@pytest.mark.promise("S131", part="worker stopped or killed right after the entry: the runner is dead soon after its deadline, calls 1")
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_the_deadline_of_a_process_handler_needs_no_worker(here: Place, number: signal.Signals) -> None:
    reference = fresh()
    one = here.submit("short_process", reference)
    worker = here.worker()
    runner = int(here.marked(f"entered-{reference}"))
    worker.signal(number)
    eventually(lambda: not is_alive(runner), seconds=10)  # 1 s and a grace of 0.5 s after the claim
    assert here.app.get(one).status is Status.DISPATCHED
    if number is signal.SIGSTOP:
        worker.signal(signal.SIGCONT)
    else:
        here.worker()
    assert here.becomes(one, Status.QUARANTINED).attempts == 1
    assert here.story(one)[2] == ("timed_out" if number is signal.SIGSTOP else "lease_lost")
