"""Many operations, callers, workers and kills at once: one row and one effect each."""

import random
import secrets

import pytest

from settled import Status
from tests.conftest import eventually
from tests.worker.services import Place, fresh


def test_a_thousand_operations_and_two_workers_make_a_thousand_effects(here: Place) -> None:
    workers = [here.worker(settings={"SETTLED_WORKER__POLL_SECONDS": "0.02"}).ready() for _ in range(2)]
    references = [f"n{number}" for number in range(1000)]
    ops = here.app.submit_many([("append_thread", {"reference": reference}) for reference in references])
    eventually(lambda: len(here.app.list(status="confirmed", limit=1000)) == 1000, seconds=60, pause_seconds=0.2)
    assert here.lines("lines") == dict.fromkeys(references, 1)
    dispatches = [sum(event.type == "dispatched" for event in here.app.events(op.operation_id)) for op in ops[::10]]
    assert set(dispatches) == {1}  # whoever was faster: neither took what the other had
    for worker in workers:
        worker.stop()


SUBMIT = """
import sys, threading
sys.path[:0] = sys.argv[2].split(":")
from settled import App
from effects import declare

app = App(sys.argv[1])
declare(app)
ready, created = threading.Barrier(20), []

def submit():
    ready.wait()
    created.append(app.submit("append_thread", {"reference": "one"}).created)

threads = [threading.Thread(target=submit) for _ in range(20)]
app.engine()
print("ready", flush=True)
sys.stdin.readline()
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sum(created), len(created), flush=True)
"""


@pytest.mark.promise("D25")
def test_eighty_callers_and_four_workers_make_one_row_and_one_effect(here: Place) -> None:
    callers = [here.child(SUBMIT, here.database) for _ in range(4)]
    for caller in callers:
        assert caller.hear() == "ready"
    for caller in callers:
        caller.tell()
    answers = [tuple(map(int, caller.hear().split())) for caller in callers]
    assert sum(created for created, _ in answers) == 1 and [asked for _, asked in answers] == [20] * 4
    assert [op.operation_id for op in here.app.list()] == ["append_thread:one"]
    workers = [here.worker() for _ in range(4)]
    here.settled("append_thread:one")
    for worker in workers:
        worker.ready()
    assert here.story("append_thread:one") == ["submitted", "dispatched", "returned"]
    assert here.lines("lines") == {"one": 1}


@pytest.mark.timeout(300)
def test_every_id_is_accounted_for_after_twenty_kills_at_random_points(here: Place) -> None:
    seed = secrets.randbits(32)
    chance = random.Random(seed)
    run = fresh()
    references = [f"{run}-{number}" for number in range(200)]
    here.app.submit_many([("charge_thread", {"reference": reference, "pause": 0.03}) for reference in references])
    for _ in range(20):
        worker = here.worker(settings={"SETTLED_WORKER__SLOTS": "2"})
        eventually(worker.speaks, seconds=20, pause_seconds=0.005)
        enough = len(here.charges()) + chance.randint(0, 6)  # 120 at most, and a few that come meanwhile: some are always left to be met
        eventually(lambda enough=enough: len(here.charges()) >= enough, seconds=20, pause_seconds=chance.uniform(0.001, 0.02))
        worker.kill()
    here.worker()
    ops = here.settled(*(f"charge_thread:{reference}" for reference in references), seconds=40)
    charges = here.charges()
    assert {op.status for op in ops} == {Status.CONFIRMED}, f"seed {seed}"
    assert {charges[reference] for reference in references} == {1}, f"seed {seed}"
    assert sum("lease_lost" in here.story(op.operation_id) for op in ops) > 0, f"no kill met a running handler: seed {seed}"
