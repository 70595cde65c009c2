"""Workers that are asked to end: what ends in time is recorded, the rest is stopped and says so."""

import signal

import pytest

from settled import Outcome, Status
from tests.conftest import eventually
from tests.worker.services import ISOLATIONS, Place, fresh


@pytest.mark.promise("S57", part="no new claim, what ends in time is recorded, exit 0, prepared rows untouched")
@pytest.mark.promise("S58", part="what does not end is stopped by the shutdown, as no person's stop")
@ISOLATIONS
def test_a_worker_that_is_asked_to_end_waits_for_what_ends_and_stops_the_rest(here: Place, isolation: str) -> None:
    short, long = fresh(), fresh()
    ids = [here.submit(f"nap_{isolation}", reference) for reference in (short, long)]
    worker = here.worker(settings={"SETTLED_WORKER__DRAIN_SECONDS": "8"})  # room for a busy machine
    for reference in (short, long):
        here.marked(f"entered-{reference}")
    worker.signal(signal.SIGTERM)
    eventually(lambda: worker.told("worker.draining"))
    later = here.submit(f"nap_{isolation}", fresh())
    here.mark(f"go-{short}")
    assert here.becomes(ids[0], Status.CONFIRMED).result() == "rested"
    assert worker.ended() == 0  # by itself: the other one is held for as long as nobody stops it
    stopped = here.app.events(ids[1])[2]
    assert (stopped.type, stopped.status, stopped.data["interruption"]) == ("stopped", Status.OUTCOME_UNKNOWN, "shutdown")
    assert "by_person" not in stopped.data
    assert (here.app.get(later).status, here.app.get(later).attempts) == (Status.PREPARED, 0)
    assert worker.family() == []


@pytest.mark.promise("S58", part="handlers are killed at once and their rows are unknown, none prepared, none lost")
@ISOLATIONS
def test_a_second_signal_stops_at_once(here: Place, isolation: str) -> None:
    references = [fresh(), fresh()]
    ids = [here.submit(f"nap_{isolation}", reference) for reference in references]
    worker = here.worker()  # it would wait for 30 s
    for reference in references:
        here.marked(f"entered-{reference}")
    worker.signal(signal.SIGTERM)
    eventually(lambda: worker.told("worker.draining"))
    worker.signal(signal.SIGTERM)
    assert worker.ended(25) == 0  # before those 30 s are over
    assert [here.app.events(one)[2].type for one in ids] == ["stopped", "stopped"]
    assert {here.app.get(one).outcome for one in ids} == {Outcome.UNKNOWN}
    assert worker.family() == []
