"""Run `settled` with one point at which the process kills itself, hangs, or waits for a mark: `python crash.py POINT -- ARGUMENTS`.

The points lie between two statements of the worker, where no signal from outside could be timed to fall.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from effects import mark, marks, wait_for_mark

from settled.execution.deadlines import Deadlines
from settled.execution.job import Kind
from settled.presence import Presence
from settled_cli.main import main
from settled_worker.pump import Pump, Starts
from settled_worker.sweeps import Sweeper, Swept
from settled_worker.worker import Worker

begin, step, take, leases, ask = Worker._begin, Pump.step, Presence.take_slot, Sweeper.leases, Deadlines._ask


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hold(*_: object) -> None:
    mark("held", str(os.getpid()))
    wait_for_mark("go")


def after_the_claim(act: Callable[..., None]) -> None:
    """The claim is committed, nothing was started."""

    def begin_after(self: Worker, starts: Starts) -> None:
        if starts.jobs:
            act()
        begin(self, starts)

    Worker._begin = begin_after  # type: ignore[method-assign]


def around_the_record(before: Callable[..., None] | None, after: Callable[..., None] | None) -> None:
    """A handler has returned: its outcome is about to be recorded, or is recorded and committed."""

    def step_between(self: Pump, now: Any, arrived: Any, **options: Any) -> Starts:
        reports = list(arrived)
        ended = any(report.job.kind is Kind.HANDLER for report in reports)
        if ended and before:
            before()
        starts = step(self, now, reports, **options)
        if ended and after:
            after()
        return starts

    Pump.step = step_between  # type: ignore[method-assign]


def after_the_slot(act: Callable[..., None]) -> None:
    """The recorder slot says `claimed`, the claim is not committed."""

    def take_slot(self: Presence, row: int, attempt: int) -> int:
        slot = take(self, row, attempt)
        act()
        return slot

    Presence.take_slot = take_slot  # type: ignore[method-assign]


def stop_once() -> None:
    """SIGSTOP ourselves, once the test wants it: here, in the middle of a write."""
    if (marks() / "freeze").exists():
        (marks() / "freeze").unlink()
        mark("frozen")
        os.kill(os.getpid(), signal.SIGSTOP)


def hang() -> None:
    """Hang for good once the test wants it."""
    if (marks() / "hang").exists():
        mark("hung")
        wait_for_mark("never")


def in_the_pump() -> None:
    def step_or_hang(self: Pump, *arguments: Any, **options: Any) -> Starts:
        hang()
        return step(self, *arguments, **options)

    Pump.step = step_or_hang  # type: ignore[method-assign]


def in_a_sweep() -> None:
    def leases_or_hang(self: Sweeper) -> Swept:
        hang()
        return leases(self)

    Sweeper.leases = leases_or_hang  # type: ignore[method-assign]


def in_a_thread() -> None:
    def ask_or_die(self: Deadlines, expire: Any) -> int:
        if (marks() / "hang").exists():
            mark("hung")
            raise SystemExit
        return ask(self, expire)

    Deadlines._ask = ask_or_die  # type: ignore[method-assign]


def around_the_record_of_all(before: Callable[..., None] | None, after: Callable[..., None] | None) -> None:
    """As above, once so many handlers have ended as REPORTS says; until then their reports wait outside."""
    wanted, ended = int(os.environ["REPORTS"]), list[Any]()

    def step_between(self: Pump, now: Any, arrived: Any, **options: Any) -> Starts:
        reports = list(arrived)
        ended.extend(report for report in reports if report.job.kind is Kind.HANDLER)
        others = [report for report in reports if report.job.kind is not Kind.HANDLER]
        if len(ended) < wanted:
            return step(self, now, others, **options)
        if before:
            before()
        starts = step(self, now, [*others, *ended], **options)
        if after:
            after()
        return starts

    Pump.step = step_between  # type: ignore[method-assign]


POINTS: dict[str, Callable[[], None]] = {
    "after-slot": lambda: after_the_slot(die),
    "stop-in-write": lambda: after_the_slot(stop_once),
    "after-claim": lambda: after_the_claim(die),
    "hold-after-claim": lambda: after_the_claim(hold),
    "before-record": lambda: around_the_record(die, None),
    "hold-before-record": lambda: around_the_record(hold, None),
    "after-record": lambda: around_the_record(None, die),
    "hang-pump": in_the_pump,
    "hang-sweep": in_a_sweep,
    "dead-thread": in_a_thread,
    "before-record-of-all": lambda: around_the_record_of_all(die, None),
    "after-record-of-all": lambda: around_the_record_of_all(None, die),
}

if __name__ == "__main__":
    point, _, *arguments = sys.argv[1:]
    POINTS[point]()
    sys.argv[1:] = arguments
    main()
