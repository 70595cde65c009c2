"""Call handlers and probes in a process that can be killed: import the app once, then run one attempt after the other.

Promise: entry is contested before the code is called, every end is told in one bounded line before the next is entered, and after an
end that may have left something behind nothing is entered; what the code prints, forks
or leaves behind cannot speak in its place. Started by the supervisor as `python -m settled.execution.runner MODULE:APP`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import resource
import select
import signal
import socket
import sys
import threading
from collections import deque
from pathlib import Path
from typing import Any, NoReturn

from settled.clock import SystemClock, boot_us
from settled.core.errors import ConfigurationError
from settled.execution.calling import Caller
from settled.execution.classify import bounded_text, class_name, keep_text
from settled.execution.context import Marks, context_for
from settled.execution.endings import keeps_runner
from settled.execution.guard import Guard
from settled.execution.job import End, Job, Kind, Report
from settled.execution.recorder import Recorder
from settled.execution.wire import Line, Message, WireError, job_from_wire, report_to_wire

_ERROR_TEXT_MAX = 2_000
# Python itself ignores these two, and code written for Python counts on that.
_LEFT_IGNORED = frozenset({signal.SIGPIPE, signal.SIGXFSZ})


class Runner:
    """The work of one runner process. Everything happens in its main thread, where the code may set signal handlers."""

    def __init__(self, line: Line, guard: Guard, recorder: Recorder | None, memory_bytes_max: int) -> None:
        """After an attempt by which this process has come to hold more than `memory_bytes_max` it enters no other."""
        self._line, self._guard, self._recorder, self._memory_bytes_max = line, guard, recorder, memory_bytes_max
        self._in_hand: deque[Job] = deque()
        self._held_bytes = 0  # the most memory so far, looked at after each attempt
        self._say_lock = threading.Lock()  # the code may call ctx.report from a thread of its own
        self._pid = os.getpid()
        os.register_at_fork(after_in_child=line.close)  # a forked child must not speak for this process

    def run(self, app_reference: str) -> None:
        """Import the app, say so, and serve until the worker closes the socket."""
        try:
            app = import_app(app_reference)
        except BaseException as error:  # noqa: BLE001 - whatever importing the user's code raises is told, then this process ends
            self._exit_if_forked()
            self._say({"ready": False, "error_class": ConfigurationError.__name__, "error_text": import_error_text(app_reference, error)})
            return
        self._exit_if_forked()
        caller = Caller(clock=SystemClock().now, redact=getattr(app, "redact", None) or keep_text)
        self._say({"ready": True})
        while (job := self._next()) is not None:
            if not self._serve(app, caller, job):
                self._wait_for_the_end()

    def _serve(self, app: Any, caller: Caller, job: Job) -> bool:
        """Run one attempt and tell its end; return whether this process may enter another."""
        self._guard.arm(job.kill_boot_us)
        report = self._run_attempt(app, caller, job)
        self._exit_if_forked()
        if report.end is End.RETURNED and self._recorder is not None and job.slot is not None:
            # A note for whoever comes after a crash; without it the attempt is only looked at longer.
            with contextlib.suppress(Exception):
                self._recorder.returned(job.slot, job.row, job.attempt, announces_sending=job.announces_sending)
        # Told before the next is entered: what has ended must not be lost with what follows.
        self._held_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # the kernel counts KiB
        try:
            self._tell_end(report)
        except WireError as error:  # longer than this worker's lines, whatever the contract allows
            end = End.RESULT_NOT_STORABLE if job.kind is Kind.HANDLER else End.RAISED
            text = str(error)[: job.error_text_max]
            report = report._replace(end=end, output=None, answer=None, postcondition=None, error_text=text)
            self._tell_end(report)
        return keeps_runner(report) and self._held_bytes <= self._memory_bytes_max

    def _tell_end(self, report: Report) -> None:
        self._say({"key": report.job.key, "report": report_to_wire(report), "rss_bytes_max": self._held_bytes})

    def _run_attempt(self, app: Any, caller: Caller, job: Job) -> Report:
        try:
            contract = app.contract(job.contract)
        except Exception as error:  # noqa: BLE001 - before the entry: nothing was called, whatever went wrong
            report = caller.never_entered(job, f"the contract {job.contract!r} cannot be had from the app: {class_name(error)}: {error}")
            return report._replace(error_class=ConfigurationError.__name__)
        marks = Marks()
        context = context_for(job, marks, ask_sending=lambda: self._ask_sending(job), on_report=lambda found: self._tell_id(job, found))
        if not self._enter(job):
            return caller.never_entered(job, "it was revoked, or its time was over before it could be entered")
        return caller.call(job, contract, context, marks)

    def _enter(self, job: Job) -> bool:
        """Contest the entry. False: the code must not be called."""
        by_us = job.deadline_boot_us if job.enter_by_boot_us is None else min(job.enter_by_boot_us, job.deadline_boot_us)
        if boot_us() > by_us:
            return False
        if job.slot is None:
            return True
        # Without the slot nobody may enter: another process may be believing that nobody did.
        return self._recorder is not None and self._recorder.enter(job.slot, job.row, job.attempt, by_us, boot_us)

    def _ask_sending(self, job: Job) -> bool:
        if job.slot is not None and (self._recorder is None or not self._recorder.sending(job.slot, job.row, job.attempt)):
            return False
        self._say({"key": list(job.key), "sending": True})
        return True

    def _tell_id(self, job: Job, provider_operation_id: str) -> None:
        self._say({"key": list(job.key), "provider_operation_id": provider_operation_id})

    def _say(self, message: Message) -> None:
        """Write one line, waiting for the worker to read. A worker that is gone ends this process."""
        with self._say_lock:
            self._line.send(message)
            while self._line.pending:
                select.select([], [self._line], [])
                self._line.push()
            if self._line.at_end and os.getpid() == self._pid:
                self._leave()

    def _next(self) -> Job | None:
        """Return the next attempt, waiting for it if need be; None when the worker has closed the socket."""
        if not self._in_hand:
            self._hear()
        while not self._in_hand:
            self._guard.disarm()
            if self._line.at_end:
                return None
            select.select([self._line], [], [])
            self._hear()
        return self._in_hand.popleft()

    def _hear(self) -> None:
        self._in_hand.extend(job_from_wire(message.get("job")) for message in self._line.receive())

    def _wait_for_the_end(self) -> None:
        """Enter nothing any more: the worker ends this process, or closes the socket. What is left in hand it gives to another."""
        self._guard.disarm()
        self._in_hand.clear()
        while not self._line.at_end:
            select.select([self._line], [], [])
            for _ in self._line.receive():
                pass

    def _leave(self) -> NoReturn:
        os._exit(0)  # not SystemExit: the code below us on the stack could catch it and go on

    def _exit_if_forked(self) -> None:
        if os.getpid() != self._pid:  # the code forked and its child came back up to here
            os._exit(70)


def import_app(reference: str) -> Any:
    """Return the object that MODULE:APP names. Raises whatever importing raises."""
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute:
        raise ConfigurationError(f"{reference!r} does not have the form MODULE:APP")
    found: Any = importlib.import_module(module_name)
    for name in attribute.split("."):
        found = getattr(found, name)
    if not callable(getattr(found, "contract", None)):
        raise ConfigurationError(f"{reference!r} is {type(found).__name__}, which has no contracts")
    return found


def import_error_text(reference: str, error: BaseException) -> str:
    """Say in one line why the app could not be imported, and what to do."""
    try:
        why = f"{class_name(error)}: {error}"
    except Exception:  # noqa: BLE001 - the error's own code failed
        why = class_name(error)
    return bounded_text(
        f"the app {reference!r} could not be imported in {os.getcwd()!r} ({why}). Nothing was sent. "
        f"Make `python -c 'import {reference.partition(':')[0]}'` work there, then start the worker again.",
        _ERROR_TEXT_MAX,
    )


def reset_signals() -> None:
    """Give every signal its default meaning: what the worker blocks or ignores must not reach the user's code."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - _LEFT_IGNORED - {signal.SIGKILL, signal.SIGSTOP, signal.SIGINT}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m settled.execution.runner", description=__doc__)
    parser.add_argument("app", metavar="MODULE:APP")
    parser.add_argument("--job-fd", type=int, required=True)
    parser.add_argument("--lifeline-fd", type=int, required=True)
    parser.add_argument("--line-bytes-max", type=int, required=True)
    parser.add_argument("--memory-bytes-max", type=int, required=True)
    parser.add_argument("--recorder", type=Path)
    parser.add_argument("--cgroup", type=Path)
    options = parser.parse_args()
    if os.getpgrp() != os.getpid():
        os.setsid()  # the supervisor has done it already; alone, a kill of our group must not reach the caller's
    reset_signals()
    for descriptor in (options.job_fd, options.lifeline_fd):
        os.set_inheritable(descriptor, False)  # a command that the code starts must not keep the socket open
    guard = Guard(options.lifeline_fd, options.cgroup)
    sys.path.insert(0, os.getcwd())  # also under -P and PYTHONSAFEPATH
    recorder = Recorder.open(options.recorder) if options.recorder else None
    line = Line(socket.socket(fileno=options.job_fd), options.line_bytes_max)
    with contextlib.suppress(KeyboardInterrupt):
        Runner(line, guard, recorder, options.memory_bytes_max).run(options.app)


if __name__ == "__main__":
    main()
