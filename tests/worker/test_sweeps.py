"""The schedule of the sweeps: each on time, alone, made up once, and never ended by an error."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from apscheduler.events import EVENT_JOB_EXECUTED

from settled import App
from settled.clock import boot_us
from settled.config.settings import SweepsSettings
from settled.core.errors import LedgerUnavailableError
from settled.execution.leftovers import watch_for_leftovers
from settled.store import sweep_runs
from settled.testing import VirtualClock
from settled_worker.schedule import RunLog, Schedule, trigger_of
from settled_worker.sweeps import SWEEPS, Swept
from tests.conftest import eventually


def test_an_error_of_a_sweep_is_remembered_and_never_raised(app: App, clock: VirtualClock) -> None:
    runs = RunLog(app.ledger, clock)

    def broken() -> Swept:
        raise KeyError("oh")

    def busy() -> Swept:
        raise LedgerUnavailableError("the store is busy. Try again.")

    assert runs.run("leases", broken).errors == 1
    assert runs.run("leases", busy).errors == 1
    assert runs.failures["leases"] == 2
    assert runs.run("leases", Swept) == Swept()
    assert runs.failures["leases"] == 0
    with app.ledger.read() as transaction:
        notes = [run.note for run in sweep_runs.history(transaction, "leases", 10)]
    assert notes == ["the store is busy. Try again.", "KeyError: 'oh'"]


def test_an_idle_sweep_writes_once_a_minute_at_most(app: App, clock: VirtualClock) -> None:
    runs = RunLog(app.ledger, clock)
    for _ in range(180):
        runs.run("leases", Swept)
        clock.advance(1)
    with app.ledger.read() as transaction:
        assert len(sweep_runs.history(transaction, "leases", 100)) == 3


def every(name: str, seconds: float) -> SweepsSettings:
    """Let one sweep run often and the others not in this test."""
    return SweepsSettings.model_validate({one: {"every_seconds": seconds if one == name else 3600} for one in SWEEPS})


@pytest.mark.promise("S53", part="missed ticks run once")
def test_ticks_that_were_missed_are_made_up_once(app: App, clock: VirtualClock) -> None:
    ran: list[str] = []
    over: list[object] = []

    def sweep(name: str) -> Swept:
        ran.append(name)
        return Swept()

    schedule = Schedule(every("leases", 600), RunLog(app.ledger, clock), sweep)
    schedule.start()
    try:
        ticks = schedule._scheduler.get_job("leases")
        schedule._scheduler.pause()
        ticks.modify(next_run_time=datetime.now(UTC) - timedelta(seconds=10 * 600))  # as after a stop of the process or the machine
        schedule._scheduler.add_listener(over.append, EVENT_JOB_EXECUTED)  # told once all that was due has run
        schedule._scheduler.resume()
        eventually(lambda: over)
        assert ran == ["leases"] and ticks.next_run_time > datetime.now(UTC)
    finally:
        schedule.close()


@pytest.mark.promise("S53", part="no second run beside an overlong one")
def test_an_overlong_sweep_has_no_second_one_beside_it(app: App, clock: VirtualClock) -> None:
    inside, most, runs_begun, release = 0, 0, 0, threading.Event()

    def sweep(name: str) -> Swept:
        nonlocal inside, most, runs_begun
        inside, runs_begun = inside + 1, runs_begun + 1
        most = max(most, inside)
        release.wait(10)
        inside -= 1
        return Swept()

    schedule = Schedule(every("leases", 0.05), RunLog(app.ledger, clock), sweep)
    schedule.start()
    try:
        eventually(lambda: schedule.skipped >= 3)  # ticks came while it ran
        assert (runs_begun, most) == (1, 1)
        release.set()
        eventually(lambda: runs_begun >= 3)
        assert most == 1 and schedule.alive
    finally:
        release.set()
        schedule.close()
    assert not schedule.alive
    after = runs_begun
    assert inside == 0 and runs_begun == after


@pytest.mark.promise("S52", part="the intervals by default, UTC, in memory: nothing is pickled")
def test_there_are_five_sweeps_with_their_default_intervals_in_utc() -> None:
    settings = SweepsSettings.model_validate({})
    seconds = {name: trigger_of(getattr(settings, name)).interval.total_seconds() for name in SWEEPS}
    assert seconds == {"leases": 1, "reconcile": 1, "escalate": 15, "checkpoint": 60, "retention": 3600}
    nightly = SweepsSettings.model_validate({"retention": {"cron": "30 3 * * sun"}}).retention
    noon = datetime(2026, 3, 29, 12, 0, tzinfo=UTC)  # a Sunday on which Europe changes its clocks
    assert trigger_of(nightly).get_next_fire_time(None, noon) == datetime(2026, 4, 5, 3, 30, tzinfo=UTC)


def test_a_sweep_that_is_switched_off_is_not_scheduled(app: App, clock: VirtualClock) -> None:
    settings = SweepsSettings.model_validate({name: {"every_seconds": 0.02, "enabled": name == "leases"} for name in SWEEPS})
    ran: list[str] = []
    schedule = Schedule(settings, RunLog(app.ledger, clock), lambda name: ran.append(name) or Swept())  # type: ignore[func-returns-value]
    schedule.start()
    eventually(lambda: len(ran) >= 3)
    schedule.close()
    assert set(ran) == {"leases"}


def test_no_thread_of_the_schedule_is_taken_for_what_a_handler_left_behind(app: App, clock: VirtualClock) -> None:
    """It began while a handler ran, or in the same tick: without a name of ours it would cost that attempt its fence for ever."""
    inside, release = list[str](), threading.Event()

    def sweep(name: str) -> Swept:
        inside.append(threading.current_thread().name)
        release.wait(10)
        return Swept()

    is_left = watch_for_leftovers(boot_us() - 1_000_000, None)
    before = is_left()  # by other tests of this process
    settings = SweepsSettings.model_validate({name: {"every_seconds": 0.02} for name in SWEEPS})
    schedule = Schedule(settings, RunLog(app.ledger, clock), sweep)
    schedule.start()
    try:
        eventually(lambda: len(inside) == len(SWEEPS))
        assert is_left() == before
    finally:
        release.set()
        schedule.close()
