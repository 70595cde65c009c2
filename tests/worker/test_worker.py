"""The worker as a process: once by hand, beside a locked store, and with probes that hang."""

import json
import signal
from collections.abc import Callable

import pytest

from settled import App, Outcome, Status
from settled.doorbell import ring_all
from tests.conftest import eventually
from tests.lib.execution.outside import is_alive
from tests.worker.services import ISOLATIONS, Place, fresh


@pytest.mark.promise("S54", part="worker run --once handles what is due and exits 0")
def test_run_once_dispatches_probes_and_derives_whatever_is_due_and_ends(here: Place) -> None:
    plain, lost, named, later = fresh(), fresh(), fresh(), fresh()
    ids = [here.submit("charge_thread", plain), here.submit("lose_thread", lost)]
    agent = App(here.database)
    ids.append(agent.submit("charge_thread", {"reference": named}, operation_id=f"charge_thread:{named}").operation_id)
    agent.close()
    waiting = here.app.submit("charge_thread", {"reference": later}, delay=3600).operation_id
    worker = here.worker("--once")
    assert worker.ended() == 0
    assert [here.app.get(one).status for one in ids] == [Status.CONFIRMED] * 3
    assert here.story(ids[1]) == ["submitted", "dispatched", "raised", "probe_committed"]
    assert here.app.get(waiting).status is Status.PREPARED
    assert [here.charges().get(reference) for reference in (plain, lost, named, later)] == [1, 1, 1, None]


@pytest.mark.promise("S54", part="a sweep by hand makes the same moves as a worker; an unknown name is wrong usage")
def test_sweeps_by_hand_recover_and_reconcile_without_a_worker(here: Place) -> None:
    reference = fresh()
    one = here.submit("charge_thread", reference, hold="after")
    worker = here.worker()
    eventually(lambda: here.charges().get(reference), seconds=20)
    worker.kill()
    for name in ("leases", "reconcile"):
        ended = here.settled_command("-o", "json", "sweep", "run", name, "--app", "effects:app")
        assert ended.returncode == 0, ended.stderr
        assert json.loads(ended.stdout)["moved"] == 1
    assert here.story(one) == ["submitted", "dispatched", "lease_lost", "probe_committed"]
    assert here.settled_command("sweep", "run", "laundry").returncode == 2


@pytest.mark.promise(
    "S48", part="a hanging probe ends at probe_timeout, the others are asked meanwhile, killed in process isolation, attempts unchanged"
)
@ISOLATIONS
def test_hanging_probes_end_at_their_limit_and_keep_no_other_waiting(here: Place, isolation: str) -> None:
    hanging, plain = [fresh() for _ in range(4)], fresh()
    stuck = [here.submit(f"lose_{isolation}", reference, hang_probe=True) for reference in hanging]
    quick = here.submit(f"lose_{isolation}", plain)
    worker = here.worker()
    assert here.settled(quick)[0].status is Status.CONFIRMED
    pids = [int(here.marked(f"probing-{reference}")) for reference in hanging]
    for one in stuck:
        op = here.becomes(one, Status.QUARANTINED)
        assert (op.reason, op.attempts) == ("probe_budget_spent", 1)
    if isolation == "process":
        eventually(lambda: not [pid for pid in pids if is_alive(pid)], seconds=5)
    assert here.lines("calls") == dict.fromkeys([*hanging, plain], 1)
    worker.signal(signal.SIGTERM)
    assert worker.ended() == 0  # hung probe threads do not keep the process
    assert worker.family() == []


HOLD_THE_LOCK = """
import sys
from settled.store.sqlite_library import sqlite_module
connection = sqlite_module().connect(sys.argv[1], isolation_level=None, timeout=20)
connection.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
print("free", flush=True)
sys.stdin.readline()
"""


@pytest.mark.promise("S100", part="a locked store delays no deadline, and the worker outlives it")
@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_locked_store_delays_no_deadline(make_place: Callable[..., Place], journal: str) -> None:
    here: Place = make_place(journal=journal)
    reference = fresh()
    one = here.submit("short_process", reference)
    worker = here.worker()
    pid = int(here.marked(f"entered-{reference}"))
    holder = here.child(HOLD_THE_LOCK, here.database)
    assert holder.hear() == "held"
    eventually(lambda: not is_alive(pid), seconds=10)  # the store is still locked
    eventually(lambda: worker.told("worker.store_unavailable"), seconds=20)
    assert holder.ask() == "free"
    here.becomes(one, Status.QUARANTINED)
    assert here.story(one)[2] == "timed_out"
    assert worker.process.poll() is None
    worker.stop()


@pytest.mark.promise("S100")
def test_while_the_store_is_locked_deadlines_hold_outcomes_wait_and_nothing_is_claimed(here: Place) -> None:
    killed, done, after = fresh(), fresh(), fresh()
    ids = [here.submit("stubborn", killed), here.submit("nap_thread", done)]
    worker = here.worker(settings={"SETTLED_WORKER__SLOTS": "2"})
    family = [int(pid) for pid in here.marked(f"family-{killed}").split()]
    here.marked(f"entered-{done}")
    third = here.submit("append_thread", after)  # no slot is free for it
    holder = here.child(HOLD_THE_LOCK, here.database)
    assert holder.hear() == "held"
    here.mark(f"go-{done}")
    eventually(lambda: not any(map(is_alive, family)), seconds=60)
    eventually(lambda: worker.told("worker.store_unavailable"), seconds=60)
    assert here.lines("lines") == {}  # both slots are free again, and nothing is claimed
    assert holder.ask() == "free"
    assert [one.status for one in here.settled(*ids, third)] == [Status.CONFIRMED] * 3
    assert here.story(ids[1]) == ["submitted", "dispatched", "returned"] and "timed_out" in here.story(ids[0])
    assert here.lines("lines") == {after: 1}
    worker.stop()


@pytest.mark.promise("S48")
def test_twenty_hung_probes_leave_nothing_behind_and_block_nobody(here: Place) -> None:
    hanging, plain = [fresh() for _ in range(20)], fresh()
    stuck = [here.submit("lose_process", reference, hang_probe=True) for reference in hanging]
    quick = here.submit("lose_process", plain)
    worker = here.worker()
    eventually(lambda: any((here.marks / f"probing-{reference}").exists() for reference in hanging), seconds=60)
    with here.app.ledger.write():  # no transaction is open while a probe hangs
        pass
    assert here.settled(quick, seconds=120)[0].status is Status.CONFIRMED
    for one in stuck:
        op = here.becomes(one, Status.QUARANTINED, seconds=120)
        assert (op.outcome, op.attempts, op.reason) == (Outcome.UNKNOWN, 1, "probe_budget_spent")
        assert here.story(one)[3] == "probe_unknown"
    pids = [int(path.read_text()) for path in here.marks.glob("probing-*")]
    eventually(lambda: not any(map(is_alive, pids)), seconds=20)
    assert here.lines("calls") == dict.fromkeys([*hanging, plain], 1)
    worker.stop()
    assert worker.family() == []


@pytest.mark.promise("S34")
def test_a_worker_whose_doorbell_is_gone_finds_work_by_looking(here: Place) -> None:
    worker = here.worker().ready()
    bells = [path for path in here.app.ledger.run_directory.iterdir() if path.is_fifo() or path.is_socket()]
    assert bells
    for path in bells:
        path.unlink()
    one = here.submit("append_thread", reference := fresh())
    assert here.settled(one)[0].status is Status.CONFIRMED
    assert here.lines("lines") == {reference: 1}
    worker.stop()
    other = here.worker().ready()
    with here.app.engine().connect() as connection, connection.begin() as begun:
        here.app.submit("append_thread", {"reference": (undone := fresh())}, connection=connection)
        begun.rollback()
    assert ring_all(here.app.ledger.run_directory) >= 1  # for nothing
    two = here.submit("append_thread", following := fresh())
    assert here.settled(two)[0].status is Status.CONFIRMED
    assert here.lines("lines") == {reference: 1, following: 1} and undone not in here.lines("lines")
    other.stop()
