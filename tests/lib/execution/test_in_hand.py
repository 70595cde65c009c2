"""What becomes of attempts that wait in the hands of a runner, behind another one. Real runners; the test takes the worker's turns."""

import os
import selectors
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from settled.clock import SystemClock, boot_us
from settled.core.canonical import canonical_text
from settled.core.words import FenceBasis, Isolation
from settled.execution.crew import RunnerLimits
from settled.execution.fleet import Fleet
from settled.execution.handing import BEHIND_US_MAX, HANDED_MAX
from settled.execution.job import End, Job, Report
from settled.execution.pace import EVEN_AFTER
from settled.execution.recorder import Phase, Recorder
from settled.execution.runner_end import RunnerEnd
from settled.execution.wire import Line
from tests.conftest import eventually
from tests.lib.execution.inprocess import SECOND_US, Reports, make_job
from tests.lib.execution.outside import APPS, LIBRARY, is_alive

SLOTS = 800
NEVER = (End.NEVER_ENTERED, FenceBasis.NEVER_ENTERED)


class Turns:
    """A Fleet and the thread that owns it, which is the test's: nothing happens between two turns."""

    def __init__(self, folder: Path, **limits: Any) -> None:
        self.log = folder / "entered"
        self.log.touch()
        self.recorder = Recorder.create(folder / "recorder", SLOTS, "inc-1", "boot-1")
        self.reports = Reports()
        self._selector = selectors.DefaultSelector()
        self._made = 0
        self.fleet = Fleet(
            app_reference="inhand:app",
            clock=SystemClock().now,
            limits=RunnerLimits(**{"slots": 1, **limits}),
            say=self.reports,
            watch=self,
            recorder=self.recorder,
        )

    def watch(self, line: Line, call: Callable[[], None]) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.pending else 0)
        if line.fileno() in self._selector.get_map():
            self._selector.modify(line, events, call)
        else:
            self._selector.register(line, events, call)

    def unwatch(self, line: Line) -> None:
        if line.fileno() >= 0 and line.fileno() in self._selector.get_map():
            self._selector.unregister(line)

    def turn(self) -> None:
        for key, _ in self._selector.select(0.02):
            key.data()
        self.fleet.look(boot_us())

    def until(self, condition: Callable[[], Any]) -> Any:
        """Take turns until the condition holds."""
        return eventually(lambda: self.turn() or condition(), seconds=30)

    def job(
        self, *, timeout_seconds: float = 30.0, kill_grace_us: int = SECOND_US // 5, claimed_boot_us: int | None = None, **arguments: Any
    ) -> Job:
        """Return a claimed attempt."""
        n, self._made = self._made, self._made + 1
        text = canonical_text({"n": n, "log": str(self.log), **arguments}, "arguments")
        times = {"kill_grace_us": kill_grace_us, "claimed_boot_us": claimed_boot_us or boot_us()}
        job = make_job(Isolation.PROCESS, arguments=text, slot=n, timeout_seconds=timeout_seconds, **times)
        assert self.recorder.claim(n, job.row, job.attempt)
        return job

    def hand(self, *jobs: Job) -> RunnerEnd:
        """Hand all of them to the one runner that is there, in one turn; the first is not told to have ended before the next turn."""
        self.be_quick()
        for job in jobs:
            self.fleet.take(job)
        self.fleet.look(boot_us())
        (runner,) = (one for one in self.fleet._crew.all() if one.job is not None)
        assert runner.in_hand == jobs
        return runner

    def be_quick(self) -> None:
        """Have a runner that has run something, and let attempts be known as short, whatever a busy machine makes of them."""
        self.until(lambda: self.fleet.ready or self.run_one())
        self.known_as_short()

    def known_as_short(self) -> None:
        """Let so many have been short that one may wait behind another."""
        for _ in range(EVEN_AFTER):
            self.fleet._pace.ran(100)

    def run_one(self) -> bool:
        job = self.job()
        self.fleet.take(job)
        self.until(lambda: self.reports.of(job))
        return True

    def entered(self, job: Job) -> list[int]:
        """Return the runners that have entered the attempt."""
        found = [line.split() for line in self.log.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [int(pid) for n, pid in found if int(n) == job.slot]

    def is_entered(self, job: Job) -> int:
        """Wait, without a turn, until the attempt is entered; return where."""
        return eventually(lambda: self.entered(job))[0]

    def end_of(self, job: Job) -> Report:
        """Take turns until the attempt has its report, which must be the only one."""
        self.until(lambda: self.reports.of(job))
        (report,) = self.reports.of(job)
        return report

    def ends(self, *jobs: Job) -> list[tuple[End, FenceBasis | None]]:
        reports = [self.end_of(job) for job in jobs]
        return [(report.end, report.fence) for report in reports]

    def phase(self, job: Job) -> Phase:
        assert job.slot is not None
        seen = self.recorder.read(job.slot)
        assert seen is not None
        return seen.phase

    def close(self) -> None:
        self.fleet.close(kill=True)
        self.until(lambda: self.fleet.is_over)
        self.fleet.dismiss(10, lambda: False)
        self._selector.close()
        self.recorder.close()


@contextmanager
def turns(folder: Path, **limits: Any) -> Iterator[Turns]:
    made = Turns(folder, **limits)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(autouse=True)
def _in_apps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(APPS)
    monkeypatch.setenv("PYTHONPATH", LIBRARY)


def test_what_is_handed_together_runs_one_by_one_in_its_order_and_each_has_its_report(tmp_path: Path) -> None:
    with turns(tmp_path) as here:
        jobs = [here.job() for _ in range(HANDED_MAX)]
        here.hand(*jobs)
        here.is_entered(jobs[-1])
        assert [here.phase(job) for job in jobs[:-1]] == [Phase.RETURNED] * (HANDED_MAX - 1)
        assert here.ends(*jobs) == [(End.RETURNED, FenceBasis.RETURNED)] * HANDED_MAX
        ended = [here.reports.of(job)[0].ended.boot_us for job in jobs]
        assert ended == sorted(ended) and len({here.entered(job)[0] for job in jobs}) == 1


def test_more_than_a_runner_may_have_in_hand_waits_for_any_of_them(tmp_path: Path) -> None:
    with turns(tmp_path, slots=2) as here:
        here.fleet.warm_up(2)
        here.until(lambda: here.fleet.ready == 2)
        here.be_quick()
        jobs = [here.job() for _ in range(3 * HANDED_MAX)]
        for job in jobs:
            here.fleet.take(job)
        here.fleet.look(boot_us())
        assert [len(runner.in_hand) for runner in here.fleet._crew.all()] == [HANDED_MAX] * 2
        assert {end for end, _ in here.ends(*jobs)} == {End.RETURNED}
        assert all(len(here.entered(job)) == 1 for job in jobs)


@pytest.mark.promise("S90", part="killed with its runner, what waited there goes to another one and is entered once")
def test_a_killed_runner_costs_the_attempt_that_ran_and_none_that_waited_behind_it(tmp_path: Path) -> None:
    with turns(tmp_path) as here:
        first, *behind = here.job(do="hang"), *(here.job() for _ in range(5))
        here.hand(first, *behind)
        runner = here.is_entered(first)
        os.kill(runner, signal.SIGKILL)
        assert here.ends(first) == [(End.CRASHED, FenceBasis.PROCESS_KILLED)]
        assert here.ends(*behind) == [(End.RETURNED, FenceBasis.RETURNED)] * 5
        assert all(here.entered(job) not in ([], [runner]) and len(here.entered(job)) == 1 for job in behind)


@pytest.mark.parametrize("does", ["raise", "exit"])
def test_after_an_end_that_may_leave_something_nothing_more_is_entered_in_that_runner(tmp_path: Path, does: str) -> None:
    with turns(tmp_path) as here:
        first, *behind = here.job(do=does), *(here.job() for _ in range(5))
        here.hand(first, *behind)
        runner = here.is_entered(first)
        end = End.RAISED if does == "raise" else End.CRASHED
        assert here.ends(first, *behind) == [
            (end, FenceBasis.RAISED if does == "raise" else FenceBasis.PROCESS_KILLED),
            *[(End.RETURNED, FenceBasis.RETURNED)] * 5,
        ]
        assert all(len(here.entered(job)) == 1 and here.entered(job) != [runner] for job in behind)


def test_without_a_supervisor_what_waited_is_taken_back_under_its_slots_lock(tmp_path: Path) -> None:
    with turns(tmp_path) as here:
        first, *behind = here.job(do="hang"), *(here.job() for _ in range(3))
        here.hand(first, *behind)
        runner = here.is_entered(first)
        link = here.fleet._crew._link
        assert link is not None
        os.kill(link.pid, signal.SIGKILL)
        assert here.ends(first, *behind) == [(End.CRASHED, None), *[NEVER] * 3]
        assert [here.phase(job) for job in behind] == [Phase.REVOKED] * 3
        eventually(lambda: not is_alive(runner))
        assert not any(here.entered(job) for job in behind)


@pytest.mark.promise("S90", part="behind an attempt that takes its time nothing waits: it is taken back under its slot's lock")
def test_behind_an_attempt_that_takes_its_time_nothing_goes_on_waiting(tmp_path: Path) -> None:
    with turns(tmp_path) as here:
        first, *behind = here.job(do="hang", seconds=2), *(here.job() for _ in range(3))
        here.hand(first, *behind)
        began = boot_us()
        assert here.ends(*behind) == [NEVER] * 3
        assert boot_us() - began >= BEHIND_US_MAX - SECOND_US // 50
        assert not here.reports.of(first), "the one that runs is left alone"
        assert here.ends(first) == [(End.RETURNED, FenceBasis.RETURNED)]
        assert not any(here.entered(job) for job in behind) and here.run_one()


def test_a_stop_of_the_one_that_runs_takes_back_what_waits_behind_it(tmp_path: Path) -> None:
    with turns(tmp_path) as here:
        first, *behind = here.job(do="hang"), *(here.job() for _ in range(3))
        here.hand(first, *behind)
        here.is_entered(first)
        here.fleet.stop(first.key)
        assert here.ends(first, *behind) == [(End.STOPPED, FenceBasis.PROCESS_KILLED), *[NEVER] * 3]
        assert not any(here.entered(job) for job in behind)


def test_a_stop_of_one_that_waits_leaves_the_others_alone(tmp_path: Path) -> None:
    with turns(tmp_path) as here:
        first, unwanted, last = here.job(do="hang", seconds=0.05), here.job(), here.job()
        here.hand(first, unwanted, last)
        here.is_entered(first)
        here.fleet.stop(unwanted.key)
        assert here.ends(first, unwanted, last) == [
            (End.RETURNED, FenceBasis.RETURNED),
            (End.STOPPED, FenceBasis.NEVER_ENTERED),
            (End.RETURNED, FenceBasis.RETURNED),
        ]
        assert here.entered(first) == here.entered(last) and not here.entered(unwanted)


def test_a_stop_of_one_that_has_ended_unheard_does_not_hit_the_next(tmp_path: Path) -> None:
    with turns(tmp_path) as here:
        first, second = here.job(), here.job(do="hang", seconds=1)
        here.hand(first, second)
        here.is_entered(second)
        here.fleet.stop(first.key)
        assert here.ends(first, second) == [(End.RETURNED, FenceBasis.RETURNED)] * 2


def test_no_term_is_sent_once_one_behind_is_entered_whatever_was_heard_of_the_first(tmp_path: Path) -> None:
    with turns(tmp_path) as here:
        first, second, third = here.job(), here.job(do="hang", seconds=1), here.job()
        runner = here.hand(first, second, third)
        here.is_entered(second)
        runner.unwanted.add(first.key)
        here.fleet._stop_unwanted(runner)  # as where the first ended just after it was listened to
        assert here.ends(first, second, third) == [*[(End.RETURNED, FenceBasis.RETURNED)] * 2, NEVER]


def test_a_stop_of_one_that_waited_and_was_entered_unheard_ends_that_one(tmp_path: Path) -> None:
    with turns(tmp_path) as here:
        first, second, third = here.job(), here.job(do="hang"), here.job()
        here.hand(first, second, third)
        here.is_entered(second)
        here.fleet.stop(second.key)
        assert here.ends(first, second, third) == [
            (End.RETURNED, FenceBasis.RETURNED),
            (End.STOPPED, FenceBasis.PROCESS_KILLED),
            NEVER,
        ]


def test_a_shutdown_enters_nothing_that_waits_and_says_so(tmp_path: Path) -> None:
    with turns(tmp_path) as here:
        first, *behind = here.job(do="hang"), *(here.job() for _ in range(3))
        here.hand(first, *behind)
        here.is_entered(first)
        here.fleet.close(kill=True)
        assert here.ends(first, *behind) == [(End.STOPPED, FenceBasis.PROCESS_KILLED), *[NEVER] * 3]
        assert not any(here.entered(job) for job in behind)


def test_a_close_without_kill_lets_all_of_them_end(tmp_path: Path) -> None:
    with turns(tmp_path) as here:
        jobs = [here.job() for _ in range(5)]
        here.hand(*jobs)
        here.fleet.close(kill=False)
        assert here.ends(*jobs) == [(End.RETURNED, FenceBasis.RETURNED)] * 5
        assert here.fleet.is_over


def test_a_worker_that_hangs_lets_none_be_entered_shortly_before_the_deadline_that_is_held(tmp_path: Path) -> None:
    with turns(tmp_path) as here:
        here.be_quick()
        first = here.job(do="hang", seconds=0.9, timeout_seconds=1.0, kill_grace_us=5 * SECOND_US)
        behind = here.job(timeout_seconds=1.0, kill_grace_us=5 * SECOND_US)
        for job in (first, behind):
            here.fleet.take(job)
        here.fleet.look(boot_us())
        eventually(lambda: here.phase(first) is Phase.RETURNED)
        assert here.ends(first, behind) == [(End.RETURNED, FenceBasis.RETURNED), NEVER]
        assert not here.entered(behind)


@pytest.mark.promise("S131", part="with attempts in hand behind it")
def test_a_worker_that_hangs_leaves_no_sender_and_nothing_that_waited_was_entered(tmp_path: Path) -> None:
    with turns(tmp_path) as here:
        here.be_quick()
        first, behind = here.job(do="hang", ignore=True, timeout_seconds=1.0), here.job(timeout_seconds=1.0)
        for job in (first, behind):
            here.fleet.take(job)
        here.fleet.look(boot_us())
        runner = here.is_entered(first)
        eventually(lambda: not is_alive(runner))  # by the supervisor or by itself: no turn is taken
        assert boot_us() >= first.kill_boot_us
        assert here.ends(first, behind) == [(End.TIMED_OUT, FenceBasis.PROCESS_KILLED), NEVER]
        assert not here.entered(behind)


def test_the_next_in_hand_has_its_own_deadline_and_not_that_of_the_first(tmp_path: Path) -> None:
    with turns(tmp_path) as here:
        here.be_quick()
        first = here.job(timeout_seconds=2.5)
        second = here.job(do="hang", timeout_seconds=2.5, claimed_boot_us=first.claimed_boot_us + SECOND_US // 20)
        for job in (first, second):
            here.fleet.take(job)
        here.fleet.look(boot_us())
        assert here.ends(first) == [(End.RETURNED, FenceBasis.RETURNED)]
        runner = here.fleet._crew.all()[0]
        assert runner.armed_boot_us == (second.deadline_boot_us, second.kill_boot_us)
        assert here.ends(second) == [(End.TIMED_OUT, FenceBasis.PROCESS_KILLED)]
        assert here.reports.of(second)[0].ended.boot_us >= second.deadline_boot_us


def test_a_runner_to_which_a_late_term_is_under_way_takes_no_further_attempt(tmp_path: Path) -> None:
    with turns(tmp_path) as here:
        first = here.job(do="hang", ignore=True)
        runner = here.hand(first)
        pid = here.is_entered(first)
        link = here.fleet._crew._link
        assert link is not None
        link.arm(runner.number, boot_us(), boot_us() + 60 * SECOND_US)
        for _ in range(2):  # the first answer comes in the step that learns of the deadline, the second after it was judged
            link.ping()
            eventually(lambda: any(event.get("event") == "pong" for event in link.events()))
        link.move(runner.number, boot_us() + 60 * SECOND_US, boot_us() + 90 * SECOND_US)
        link.push()
        eventually(lambda: not is_alive(pid))
        assert here.ends(first) == [(End.CRASHED, FenceBasis.PROCESS_KILLED)]


def test_a_runner_that_holds_too_much_memory_enters_no_other(tmp_path: Path) -> None:
    with turns(tmp_path, runner_bytes_max=1) as here:
        here.known_as_short()
        jobs = [here.job() for _ in range(3)]
        for job in jobs:
            here.fleet.take(job)
        assert here.ends(*jobs) == [(End.RETURNED, FenceBasis.RETURNED), NEVER, (End.RETURNED, FenceBasis.RETURNED)]
        assert here.entered(jobs[0]) != here.entered(jobs[2]) and not here.entered(jobs[1])


def test_a_runner_is_handed_no_more_than_its_share_of_attempts(tmp_path: Path) -> None:
    with turns(tmp_path, runner_attempts_max=3) as here:
        here.known_as_short()
        jobs = [here.job() for _ in range(10)]
        for job in jobs:
            here.fleet.take(job)
        assert {here.end_of(job).end for job in jobs} == {End.RETURNED}
        pids = [pid for job in jobs for pid in here.entered(job)]
        assert len(pids) == 10 and max(map(pids.count, pids)) <= 3
