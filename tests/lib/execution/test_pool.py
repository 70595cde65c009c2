"""The one door to the executors: routing, room, and a report for every job."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from settled.clock import SystemClock
from settled.core.errors import ConfigurationError
from settled.core.evidence import ProbeResult
from settled.core.words import FenceBasis, Isolation
from settled.execution.job import End, Job, Kind
from settled.execution.pool import Execution
from tests.conftest import eventually
from tests.lib.execution.inprocess import Contract, Reports, make_job
from tests.lib.execution.outside import SUPERVISOR, children_of, is_alive

LIB = Path(__file__).parents[3] / "lib"
APP = """
import os, time

class Handler:
    name, is_async, has_postcondition, has_probe = "effect", False, False, True
    def call_handler(self, arguments, ctx, idempotency_key):
        if arguments.get("sleep"):
            time.sleep(arguments["sleep"])
        return {"pid": os.getpid()}
    def call_probe(self, arguments, ctx, idempotency_key):
        from settled.core.evidence import ProbeResult
        return ProbeResult.committed(output=os.getpid())

class App:
    def contract(self, name):
        return Handler()

app = App()
"""


class Pool:
    """An Execution whose contracts a test sets."""

    def __init__(self, **settings: Any) -> None:
        self.reports = Reports()
        self.contracts: dict[str, Contract] = {}
        self.execution = Execution(resolve=self.contracts.__getitem__, arrived=self.reports, clock=SystemClock().now, **settings)

    def start(
        self, handler: Any = None, *, probe: Any = None, name: str = "effect", isolation: Isolation = Isolation.THREAD, **changes: Any
    ) -> Job:
        self.contracts[name] = Contract(handler, probe=probe, name=name)
        job = make_job(isolation, contract=name, kind=Kind.HANDLER if probe is None else Kind.PROBE, **changes)
        self.execution.start(job)
        return job


@contextmanager
def pool(**settings: Any) -> Iterator[Pool]:
    made = Pool(**settings)
    try:
        yield made
    finally:
        made.execution.close(kill=True)
        assert made.execution.join(20)


@pytest.fixture
def app_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "poolapp.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(LIB))


def blocked_by(release: threading.Event) -> Callable[[], None]:
    def handler() -> None:
        release.wait(20)

    return handler


def test_each_job_goes_where_its_contract_runs(app_folder: None) -> None:
    async def named() -> str:
        await asyncio.sleep(0)
        return threading.current_thread().name

    with pool(app_ref="poolapp:app", process_slots=1) as made:
        in_thread = made.start(lambda: threading.current_thread().name)
        on_loop = made.start(named, name="named", isolation=Isolation.ASYNC)
        probing = made.start(probe=lambda: ProbeResult.committed(output=threading.current_thread().name), name="probed")
        in_process = made.start(isolation=Isolation.PROCESS)
        process_probe = made.start(probe=lambda: None, isolation=Isolation.PROCESS)
        assert made.reports.first(in_thread).output == '"settled-handler"'
        assert made.reports.first(on_loop).output == '"settled-loop"'
        assert made.reports.first(probing).output == '"settled-probe"'
        report = made.reports.first(in_process)
        assert report.end is End.RETURNED and report.output is not None and str(os.getpid()) not in report.output
        assert made.reports.first(process_probe).end is End.ANSWERED


def test_room_is_counted_over_all_isolations_and_a_process_needs_an_app() -> None:
    release = threading.Event()
    with pool(slots=3, process_slots=2, app_ref="poolapp:app") as made:
        assert [made.execution.free(each) for each in (Isolation.THREAD, Isolation.ASYNC, Isolation.PROCESS)] == [3, 3, 2]
        jobs = [made.start(blocked_by(release)) for _ in range(2)]
        assert [made.execution.free(each) for each in (Isolation.THREAD, Isolation.ASYNC, Isolation.PROCESS)] == [1, 1, 1]
        release.set()
        assert [made.reports.first(job).end for job in jobs] == [End.RETURNED] * 2
        assert made.execution.free(Isolation.ASYNC) == 3
    with pool() as made:
        assert made.execution.free(Isolation.PROCESS) == 0
        with pytest.raises(ConfigurationError, match="MODULE:APP"):
            made.start(isolation=Isolation.PROCESS)
        assert made.execution.running == 0


def quick_ones(made: Pool, count: int = 40) -> None:
    """Run attempts that take no time, so that what a busy machine made of the first of them is forgotten."""
    for _ in range(count):
        made.reports.first(made.start(lambda: None))


def test_quick_attempts_may_wait_for_a_thread_and_never_more_run_than_there_are_slots() -> None:
    gate, release = threading.Lock(), threading.Event()
    running, most = 0, 0

    def counted() -> None:
        nonlocal running, most
        with gate:
            running += 1
            most = max(most, running)
        release.wait(20)
        with gate:
            running -= 1

    with pool(slots=2) as made:
        assert made.execution.free(Isolation.THREAD) == 2, "nothing is known yet"
        eventually(lambda: quick_ones(made) or made.execution.free(Isolation.THREAD) > 10)
        jobs = [made.start(counted) for _ in range(6)]
        eventually(lambda: most == 2)
        eventually(lambda: made.execution.free(Isolation.THREAD) == 0, seconds=20)  # what runs is not quick any more
        release.set()
        assert [made.reports.first(job).end for job in jobs] == [End.RETURNED] * 6
        assert most == 2


def test_nothing_waits_for_a_thread_beside_another_isolation_or_with_little_time() -> None:
    release = threading.Event()
    with pool(slots=3) as made:
        eventually(lambda: quick_ones(made) or made.execution.free(Isolation.THREAD) > 10)

        async def held() -> None:
            await asyncio.to_thread(release.wait, 20)

        job = made.start(held, isolation=Isolation.ASYNC)
        assert made.execution.free(Isolation.THREAD) == 2
        release.set()
        made.reports.first(job)
        eventually(lambda: made.execution.free(Isolation.THREAD) > 10)
        made.reports.first(made.start(lambda: None, timeout_seconds=0.5))
        assert made.execution.free(Isolation.THREAD) == 3


def test_probes_run_while_every_handler_slot_is_taken_and_are_bounded_among_themselves() -> None:
    release, asked = threading.Event(), []

    def probe() -> ProbeResult:
        asked.append(1)
        release.wait(20)
        return ProbeResult.pending()

    with pool(slots=1, probe_slots=2) as made:
        handler = made.start(blocked_by(release))
        probes = [made.start(probe=probe, name="probed") for _ in range(5)]
        assert eventually(lambda: len(asked) == 2)
        assert (made.execution.free_probes(), made.execution.free(Isolation.THREAD), made.execution.running) == (0, 0, 6)
        release.set()
        assert {made.reports.first(job).end for job in probes} == {End.ANSWERED}
        assert made.reports.first(handler).end is End.RETURNED
        assert (made.execution.free_probes(), made.execution.running) == (2, 0)


def test_hung_probes_in_threads_give_their_places_to_the_next() -> None:
    release = threading.Event()
    with pool(probe_slots=2) as made:
        hung = [made.start(probe=lambda: release.wait(20), timeout_seconds=0.5) for _ in range(2)]
        after = made.start(probe=lambda: ProbeResult.pending(), name="fine")
        assert made.reports.first(after).end is End.ANSWERED
        assert {made.reports.first(job).end for job in hung} == {End.TIMED_OUT}
        assert (made.execution.abandoned_of("effect"), made.execution.abandoned_of("fine")) == (2, 0)
        release.set()
        assert eventually(lambda: made.execution.abandoned == 0)


@pytest.mark.promise("S91")
def test_abandoned_attempts_are_counted_per_contract_until_their_code_ends() -> None:
    release = threading.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    with pool(slots=2) as made:
        jobs = [
            made.start(blocked_by(release), name="a", timeout_seconds=0.5),
            made.start(stubborn, name="b", isolation=Isolation.ASYNC, timeout_seconds=0.5),
        ]
        assert {made.reports.first(job).end for job in jobs} == {End.TIMED_OUT}
        execution = made.execution
        assert (execution.abandoned_of("a"), execution.abandoned_of("b"), execution.abandoned_of("c"), execution.abandoned) == (1, 1, 0, 2)
        assert execution.free(Isolation.THREAD) == 2
        release.set()
        assert eventually(lambda: execution.abandoned == 0)


def test_stop_finds_the_run_wherever_it_is_and_says_when_there_is_none() -> None:
    release = threading.Event()
    with pool(probe_slots=1) as made:
        running = made.start(blocked_by(release))
        eventually(lambda: made.execution.running)
        probing = made.start(probe=lambda: release.wait(20), name="slow")
        waiting = made.start(probe=lambda: ProbeResult.pending(), name="next")
        assert made.execution.stop(waiting.key) and made.execution.stop(running.key) and made.execution.stop(probing.key)
        ends = {job.row: made.reports.first(job).end for job in (running, probing, waiting)}
        assert set(ends.values()) == {End.STOPPED}
        assert made.reports.first(waiting).fence is FenceBasis.NEVER_ENTERED
        assert not made.execution.stop(running.key)
        release.set()


def test_an_attempt_is_not_started_twice_and_nothing_starts_after_close() -> None:
    release = threading.Event()
    with pool() as made:
        job = made.start(blocked_by(release))
        with pytest.raises(ValueError, match="running already"):
            made.execution.start(job)
        made.execution.close()
        with pytest.raises(RuntimeError, match="closed"):
            made.start(lambda: 1)
        assert not made.execution.join(0.05)
        release.set()
        assert made.execution.join(10)
        assert made.reports.of(job)[0].end is End.RETURNED


def test_a_join_that_has_waited_long_enough_kills_a_stopped_supervisor_and_has_every_report(app_folder: None) -> None:
    others = children_of(os.getpid(), SUPERVISOR)
    with pool(app_ref="poolapp:app", process_slots=1) as made:
        made.reports.first(made.start(isolation=Isolation.PROCESS), seconds=20)
        (supervisor,) = set(children_of(os.getpid(), SUPERVISOR)) - set(others)
        (runner,) = children_of(supervisor)
        job = made.start(isolation=Isolation.PROCESS, arguments='{"sleep":60}')
        os.kill(supervisor, signal.SIGSTOP)
        made.execution.close(kill=True)
        assert made.execution.join(0.5)
        assert not is_alive(supervisor)
        assert eventually(lambda: not is_alive(runner))
        assert len(made.reports.of(job)) == 1


def test_close_with_kill_reports_everything_that_ran(app_folder: None) -> None:
    release = threading.Event()
    with pool(app_ref="poolapp:app", probe_slots=1) as made:
        jobs = [
            made.start(blocked_by(release)),
            made.start(isolation=Isolation.PROCESS, arguments='{"sleep":60}', kill_grace_us=100_000),
            made.start(probe=lambda: release.wait(20), name="slow"),
            made.start(probe=lambda: ProbeResult.pending(), name="next"),
        ]
        made.execution.close(kill=True)
        assert made.execution.join(20)
        assert all(len(made.reports.of(job)) == 1 for job in jobs)
        assert {made.reports.of(job)[0].end for job in jobs} <= {End.STOPPED, End.NEVER_ENTERED}
        release.set()
