"""Run attempts in runner processes that can really be stopped; the worker's side of supervisor and runners.

Promise: `start` and `stop` never wait. Each attempt gets exactly one report. A fence is put on it only when the supervisor
has said that the runner, its group and its descendants are dead and reaped, or when the code came back by itself; an attempt
that raised is reported only after that. Where the supervisor cannot say it, the report carries no fence.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from settled.clock import boot_us
from settled.execution.contest import RevokeRecorder
from settled.execution.crew import RunnerLimits
from settled.execution.fleet import Fleet
from settled.execution.job import Arrived, Job, Kind, ReadClock, Report
from settled.execution.leftovers import OUR_THREADS
from settled.execution.wire import Line
from settled.logs import get_log

LOOK_SECONDS_MAX: Final = 1.0  # select() does not count a suspend of the machine
DISMISS_SECONDS: Final = 8.0
FORCE_SECONDS: Final = 6.0  # to see dead what was killed; takes milliseconds, unless the kernel holds it
GATHER_SECONDS: Final = 0.001  # for more reports, while runners have several attempts in hand: one look takes them all
BROKEN_TURN_SECONDS: Final = 0.1  # so that a lasting error does not fill the log and a core

log = get_log("settled.execution")


class ProcessExecutor:
    """One thread that owns the fleet of runners. Other threads only put wishes into its inbox."""

    def __init__(
        self,
        *,
        app_reference: str,
        arrived: Arrived,
        clock: ReadClock,
        slots: int,
        recorder: RevokeRecorder | None = None,
        lock_fd: int | None = None,
        cgroup: Path | None = None,
        **limits: int,
    ) -> None:
        """`app_reference` is MODULE:APP; `lock_fd` the incarnation's lock, which every runner holds; `limits` those of RunnerLimits.

        `cgroup` is the incarnation's control group, where it has one.
        """
        self._inbox: deque[Callable[[], None]] = deque()
        self._is_rung = False
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._ear, selectors.EVENT_READ)
        self._arrived = arrived
        self._lock = threading.Lock()
        self._running = 0
        self._closed = False
        self._urgent = threading.Event()  # whoever waits for the end has no more time
        self._may_force = False
        self._done = threading.Event()
        self._fleet = Fleet(
            app_reference=app_reference,
            clock=clock,
            limits=RunnerLimits(slots=slots, **limits),
            say=self._say,
            watch=self,
            recorder=recorder,
            lock_fd=lock_fd,
            cgroup=cgroup,
        )
        self._thread: threading.Thread | None = None
        _executors.add(self)

    @property
    def running(self) -> int:
        return self._running

    @property
    def ready(self) -> int:
        """Count the runners that have imported the app."""
        return self._fleet.ready

    @property
    def may_wait(self) -> int:
        """How many attempts may be started beyond the runners that are free."""
        return self._fleet.may_wait

    @property
    def abandoned(self) -> int:
        return 0  # what runs in a process is killed, never abandoned

    def abandoned_of(self, contract: str) -> int:
        """Count the abandoned attempts of one contract: none, as above."""
        return 0

    def start(self, job: Job) -> None:
        """Hand `job` to a runner as soon as one is free; one whose deadline comes first is never entered."""
        with self._lock:
            if self._closed:
                raise RuntimeError(f"attempt {job.attempt} of operation {job.operation_id!r} was not started: the executor is closed")
            self._begin()
            self._running += 1
        self._wish(lambda: self._fleet.take(job))

    def warm_up(self, count: int) -> None:
        """Have `count` runners import the app before the first attempt asks for one, and keep that many ready from now on."""
        with self._lock:
            if self._closed:
                return
            self._begin()
        self._wish(lambda: self._fleet.warm_up(count))

    def stop(self, key: tuple[Kind, int, int]) -> None:
        """End one attempt because a person said so: TERM, its grace, KILL, and only then the report."""
        self._wish(lambda: self._fleet.stop(key))

    def close(self, *, kill: bool) -> None:
        """Take no more work. With `kill`, what runs is killed and reported as stopped; else it ends and reports as usual."""
        with self._lock:
            self._closed = True
            self._may_force = self._may_force or kill
            if self._thread is None:
                self._release()
                return
        self._wish(lambda: self._fleet.close(kill=kill))

    def join(self, seconds: float) -> bool:
        """Wait after `close` until every report is out and no runner is left; False if that takes longer.

        After a close with `kill`, a supervisor that has not ended by then is killed with all that carries its mark: a stopped one
        would outlive this process for ever, and hold the incarnation's lock.
        """
        if self._done.wait(seconds):
            return True
        if not self._may_force:
            return False
        self._urgent.set()  # before the wish: from its last turn on, the thread hears no wishes
        self._wish(lambda: self._fleet.lose_supervisor("it did not end in time what it was told to end"))
        return self._done.wait(FORCE_SECONDS)

    # The thread.

    def _begin(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=f"{OUR_THREADS}process", daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        try:
            while not self._fleet.is_over:
                try:
                    self._turn()
                except Exception:  # one broken turn must not leave attempts without a report
                    log.exception("execution.process_turn_failed")
                    self._fleet.lose_supervisor("an error in the worker itself, see its log")
                    self._done.wait(BROKEN_TURN_SECONDS)
            self._fleet.dismiss(DISMISS_SECONDS, self._urgent.is_set)
        finally:
            self._release()

    def _turn(self) -> None:
        if self._fleet.is_crowded:
            time.sleep(GATHER_SECONDS)
        for key, _ in self._selector.select(self._wait_seconds()):
            (key.data or self._hear_bell)()
        self._is_rung = False  # before the inbox is emptied: what comes from here on rings, or is heard in this turn
        while self._inbox:
            self._inbox.popleft()()
        self._fleet.look(boot_us())

    def _wait_seconds(self) -> float | None:
        if self._inbox:
            return 0
        due = self._fleet.next_look_boot_us()
        return None if due is None else max(0.0, min(LOOK_SECONDS_MAX, (due - boot_us()) / 1e6))

    def _wish(self, what: Callable[[], None]) -> None:
        self._inbox.append(what)
        if self._is_rung:
            return
        self._is_rung = True
        with contextlib.suppress(OSError):  # full: it rings already; closed: everything has been reported
            self._bell.send(b"!")

    def _hear_bell(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._ear.recv(4096)

    def _say(self, report: Report) -> None:
        try:
            self._arrived(report)
        except Exception:  # the one who is told must not take the thread of the attempts with it
            log.exception("execution.report_not_taken", operation_id=report.job.operation_id, end=report.end.value)
        with self._lock:
            self._running -= 1  # after the report was taken: who sees 0 has them all

    # What the fleet asks of its thread: to watch sockets.

    def watch(self, line: Line, call: Callable[[], None]) -> None:
        """Call `call` whenever `line` can be read, or written while something is pending."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if line.pending else 0)
        if line.fileno() not in self._selector.get_map():
            self._selector.register(line, events, call)
        elif self._selector.get_key(line).events != events:
            self._selector.modify(line, events, call)

    def unwatch(self, line: Line) -> None:
        """No more calls for `line`; does nothing for one that is not watched or was closed."""
        if line.fileno() >= 0 and line.fileno() in self._selector.get_map():
            self._selector.unregister(line)

    def _release(self) -> None:
        self._selector.close()
        self._bell.close()
        self._ear.close()
        self._done.set()

    def _forget_in_child(self) -> None:
        self._fleet.forget_in_child()
        self._bell.close()
        self._ear.close()
        self._selector.close()


_executors: weakref.WeakSet[ProcessExecutor] = weakref.WeakSet()


def _after_fork() -> None:
    # A thread handler of this worker may fork: that child must hold nothing by which supervisor or runners know the worker.
    for executor in list(_executors):
        executor._forget_in_child()


os.register_at_fork(after_in_child=_after_fork)
