"""The event-loop executor: cancelled at the deadline, honest about what swallows that, and never late for the others."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from settled.core.errors import EffectRejected
from settled.core.evidence import ProbeResult
from settled.core.words import FenceBasis, Isolation
from settled.execution.job import End, Job, Kind, Report
from tests.conftest import eventually
from tests.lib.execution.inprocess import Bench, Contract, bench


class Loop:
    """A Bench whose jobs all go to the event loop."""

    def __init__(self, made: Bench) -> None:
        self.bench, self.reports = made, made.reports
        self.executor = made.executors[Isolation.ASYNC]
        self.start = partial(made.start, isolation=Isolation.ASYNC)

    def run(self, handler: Any, **changes: Any) -> Report:
        return self.reports.first(self.start(handler, **changes))

    def late(self, job: Job) -> Report:
        return self.reports.late(job)


@pytest.fixture
def loop() -> Iterator[Loop]:
    with bench() as made:
        yield Loop(made)


def test_async_callbacks_are_awaited_and_a_rejection_is_one(loop: Loop) -> None:
    async def handler(arguments: dict[str, Any], ctx: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        ctx.report(provider_operation_id="pay-1")
        return arguments

    async def holds(arguments: dict[str, Any], output: Any) -> bool:
        await asyncio.sleep(0)
        return bool(output == arguments)

    async def fails(arguments: dict[str, Any], output: Any) -> bool:
        raise RuntimeError

    async def rejects() -> None:
        raise EffectRejected("card declined", retryable=True)

    report = loop.run(Contract(handler, postcondition=holds))
    assert (report.end, report.postcondition, report.provider_operation_id) == (End.RETURNED, True, "pay-1")
    assert loop.run(Contract(handler, postcondition=fails)).postcondition is False
    report = loop.run(rejects)
    assert (report.end, report.retryable, report.error_text) == (End.REJECTED, True, "card declined")


def test_an_async_probe_is_awaited(loop: Loop) -> None:
    async def probe() -> ProbeResult:
        await asyncio.sleep(0)
        return ProbeResult.pending()

    report = loop.run(Contract(None, probe=probe), kind=Kind.PROBE)
    assert (report.end, report.answer) == (End.ANSWERED, ProbeResult.pending())


def test_the_deadline_cancels_and_the_end_comes_late_with_its_fence(loop: Loop) -> None:
    async def handler() -> None:
        await asyncio.sleep(60)

    job = loop.start(handler, timeout_seconds=0.5)
    first = loop.reports.first(job)
    assert (first.end, first.fence) == (End.TIMED_OUT, None)
    late = loop.late(job)
    assert (late.end, late.error_class, late.late) == (End.RAISED, "CancelledError", True)
    assert eventually(lambda: loop.reports.of(job)[-1].fence is FenceBasis.RAISED)
    assert eventually(lambda: loop.executor.abandoned == 0)


@pytest.mark.promise("P29")
def test_a_coroutine_that_swallows_its_cancellation_is_abandoned_until_it_ends(loop: Loop) -> None:
    release = threading.Event()

    async def stubborn() -> str:
        while not release.is_set():
            try:
                await asyncio.sleep(0.02)
            except asyncio.CancelledError:
                continue
        return "done after all"

    job = loop.start(stubborn, timeout_seconds=0.5)
    assert loop.reports.first(job).fence is None
    assert (loop.executor.running, loop.executor.abandoned) == (0, 1)
    release.set()
    late = loop.late(job)
    assert (late.end, late.fence, late.output) == (End.RETURNED, FenceBasis.RETURNED, '"done after all"')


def test_a_handler_that_blocks_the_loop_delays_no_deadline(loop: Loop) -> None:
    release, entered, calls = threading.Event(), threading.Event(), []

    async def blocks() -> None:
        entered.set()
        release.wait(20)

    async def waits() -> None:
        calls.append(1)

    blocking = loop.start(blocks, timeout_seconds=0.2)
    assert entered.wait(10)
    behind = loop.start(waits, timeout_seconds=0.05)
    assert loop.reports.first(behind, seconds=3).end is End.NEVER_ENTERED
    assert loop.reports.first(blocking, seconds=3).end is End.TIMED_OUT
    release.set()
    assert loop.late(blocking).end is End.RETURNED
    assert calls == []
    assert loop.run(waits).end is End.RETURNED


def test_a_person_s_stop_cancels(loop: Loop) -> None:
    entered = threading.Event()

    async def handler() -> None:
        entered.set()
        await asyncio.sleep(60)

    job = loop.start(handler)
    assert entered.wait(10)
    loop.executor.stop(job.key)
    assert loop.reports.of(job)[0].end is End.STOPPED
    assert loop.late(job).error_class == "CancelledError"


@pytest.mark.parametrize("how", [SystemExit(0), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError()])
def test_exits_are_errors_like_any_other_and_the_loop_lives(loop: Loop, how: BaseException) -> None:
    async def handler() -> None:
        raise how

    async def fine() -> str:
        return "alive"

    report = loop.run(handler)
    assert (report.end, report.error_class) == (End.RAISED, type(how).__name__)
    assert loop.run(fine).end is End.RETURNED


def test_an_exit_in_a_task_that_a_handler_left_behind_does_not_end_the_loop(loop: Loop) -> None:
    async def leaves() -> None:
        async def exits() -> None:
            raise SystemExit(3)

        asyncio.get_running_loop().kept = asyncio.create_task(exits())  # type: ignore[attr-defined]

    async def fine() -> str:
        await asyncio.sleep(0.01)
        return "alive"

    assert loop.run(leaves).end is End.RETURNED
    assert loop.run(fine).end is End.RETURNED


def test_a_handler_that_stops_the_loop_stops_nobody_and_it_is_said_once(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    release, entered = threading.Event(), threading.Event()

    async def waits() -> str:
        entered.set()
        while not release.is_set():  # noqa: ASYNC110 - the test's own thread releases it
            await asyncio.sleep(0.01)
        return "waited"

    async def stops() -> str:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0)
        return "stopped"

    waiting = loop.start(waits, timeout_seconds=20)
    assert entered.wait(10)
    assert [loop.run(stops, timeout_seconds=5).end for _ in range(3)] == [End.RETURNED] * 3
    last = loop.start(stops, timeout_seconds=5)
    loop.executor.close(kill=False)
    assert loop.reports.first(last).end is End.RETURNED
    release.set()
    assert loop.reports.first(waiting).output == '"waited"'
    assert [line.split()[0] for line in caplog.messages].count("execution.loop_resumed") == 1


FORKS = """
import asyncio, os, sys
sys.path[:0] = [".", "lib"]
from settled.core.words import Isolation
from tests.conftest import eventually
from tests.lib.execution.inprocess import Contract, bench

how, parent, children, entered, stopped = sys.argv[2], os.getpid(), [], [], []
steps = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def step():
    os.write(steps, b"parent " if os.getpid() == parent else b"child ")

async def ticks():
    entered.append(True)
    try:
        while not stopped:
            step()
            await asyncio.sleep(0)
    finally:
        step()

def fork():
    children.append(os.fork())
    return children[-1] == 0

async def forks_and_raises():
    if fork():
        raise ValueError
    step()

async def forks():
    loop = asyncio.get_running_loop()
    loop.kept = [asyncio.create_task(ticks()) for _ in range(3)]
    if how == "in a task":
        await asyncio.create_task(forks_and_raises())
    elif how == "in a thread":
        await asyncio.to_thread(fork)
    elif how == "in a callback":
        loop.call_soon(fork)
    elif fork():
        match how:
            case "raises":
                raise ValueError
            case "exits":
                sys.exit(3)
            case "sleeps":
                await asyncio.sleep(0.01)
            case "yields":
                await asyncio.sleep(0)
            case "waits":
                await loop.kept[0]
            case "stops":
                loop.stop()
                await asyncio.sleep(0)
    step()

def checks(arguments, output):
    step()
    return True

def end_of(child):
    pid, status = os.waitpid(child, os.WNOHANG)
    return pid and (os.waitstatus_to_exitcode(status),)

with bench() as made:
    others = [made.start(ticks, isolation=Isolation.ASYNC) for _ in range(2)]
    eventually(lambda: len(entered) == 2)
    job = made.start(Contract(forks, postcondition=checks), isolation=Isolation.ASYNC)
    made.reports.first(job)
    eventually(lambda: children)
    try:
        print(*eventually(lambda: end_of(children[0]), seconds=5))
    except BaseException:
        os.kill(children[0], 9)
        raise
    before = os.fstat(steps).st_size
    eventually(lambda: os.fstat(steps).st_size > before + 100)
    stopped.append(True)
    print(*{made.reports.first(other).end.value for other in others})
"""
HOWS = ["raises", "exits", "returns", "sleeps", "yields", "waits", "stops", "in a task", "in a thread", "in a callback"]


@pytest.mark.parametrize("how", HOWS)
def test_a_child_that_a_handler_forks_runs_no_step_of_the_loop_and_does_not_come_back(tmp_path: Path, how: str) -> None:
    command = [sys.executable, "-c", FORKS, str(tmp_path / "steps"), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[3], check=False)
    assert done.stdout.split() == ["70", "returned"], done.stderr
    steps = (tmp_path / "steps").read_text().split()
    assert steps.count("child") == (1 if how == "returns" else 0)  # what follows the fork in the handler itself is the child's to do


@pytest.mark.promise("S106")
@pytest.mark.parametrize("what", ["task", "call"])
def test_an_error_that_left_a_task_or_a_call_in_a_thread_is_a_fence_only_when_that_has_ended(loop: Loop, what: str) -> None:
    release = threading.Event()

    async def lingers() -> None:
        while not release.is_set():  # noqa: ASYNC110 - the test's own thread releases it
            await asyncio.sleep(0.01)

    async def handler() -> None:
        running = asyncio.get_running_loop()
        running.kept = running.create_task(lingers()) if what == "task" else running.run_in_executor(None, release.wait, 20)  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        raise ValueError("left something")

    job = loop.start(handler)
    assert (loop.reports.first(job).end, loop.reports.first(job).fence) == (End.RAISED, None)
    release.set()
    late = loop.late(job)
    assert (late.late, late.fence) == (True, FenceBasis.RAISED)


def test_a_thousand_coroutines_run_side_by_side(loop: Loop) -> None:
    async def handler() -> int:
        await asyncio.sleep(0.05)
        return 1

    jobs = [loop.start(handler) for _ in range(1000)]
    assert {loop.reports.first(job).end for job in jobs} == {End.RETURNED}
    assert len(loop.reports.all) == 1000
