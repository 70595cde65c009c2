"""Start runners, end them at their deadlines, and reap everything that they leave behind. Runs no code of the user.

Promise: `gone` is said of a runner only after it, its group and every descendant of it that the kernel shows are dead and
reaped. No worker is needed for a deadline: when the worker dies, this process stays until the last attempt has ended or was
killed. It is the subreaper, and the only process of the project that reaps children it did not start.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from settled.clock import boot_us
from settled.execution.cgroup import born_in, kill_group, make_group, own_group, pids_in, remove_group
from settled.execution.descendants import MARK, left_by, look
from settled.execution.wire import CONTROL_BYTES_MAX, Line, Message, WireError

LOOK_US: Final = 1_000_000  # poll() does not count a suspend of the machine: look at the boot clock again and again
REAP_PAUSE_US: Final = 5_000
FAREWELL_US: Final = 1_000_000  # for an idle runner to leave by itself once the worker is gone
QUIET_LOOKS: Final = 2  # one look over /proc is not one instant: a fork can slip by, but not twice by dead processes
_PR_SET_CHILD_SUBREAPER: Final = 36


@dataclass(slots=True)
class Child:
    """One runner. Its process is reaped last: until then its pid, which names the group and session, cannot be reused."""

    number: int
    process: subprocess.Popen[bytes]
    mark: str
    terminate_boot_us: int | None
    kill_boot_us: int | None
    group: Path | None  # its control group, where one was handed to us
    why: str | None = None  # what ended it: "deadline", "asked" or "died"
    is_dying: bool = False  # SIGKILL has been sent
    quiet_looks: int = 0


class Supervisor:
    """One loop over one socket. `command` makes the command line of a runner out of its socket's descriptor and its control group."""

    def __init__(
        self,
        control: Line,
        command: Callable[[int, Path | None], list[str]],
        keep: tuple[int, ...],
        token: str,
        groups: Path | None = None,
    ) -> None:
        """`groups` is the control group below which each runner gets one of its own."""
        self._control, self._command, self._keep, self._token = control, command, keep, token
        self._groups, self._home = groups, own_group() if groups is not None else None
        self._children: dict[int, Child] = {}
        self._alarm, alarm_end = socket.socketpair()
        self._alarm.setblocking(False)
        alarm_end.setblocking(False)
        self._alarm_end = alarm_end
        signal.set_wakeup_fd(alarm_end.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _nothing)

    def run(self) -> None:
        """Serve until the worker is gone and no runner is left."""
        self._tell({"event": "hello", "pid": os.getpid()})
        try:
            while not self._control.at_end or self._children:
                self._step(is_word=self._wait())
        finally:
            self._kill_everything()

    def _step(self, *, is_word: bool) -> None:
        """Do what is due. With `is_word` nothing but the worker's word woke us: then nobody has died."""
        # Before listening: an end that the worker told before this moment is then heard before its deadline is judged.
        now_us = boot_us()
        if not self._control.at_end:
            self._control.push()
            self._hear()
            if self._control.at_end:
                self._bid_farewell()
        if not is_word:
            self._notice_deaths()
        for child in list(self._children.values()):
            self._keep_time(child, now_us)
            if child.is_dying:
                self._bury(child)
        if not is_word:
            self._reap_orphans()

    def _wait(self) -> bool:
        """Sleep until something is to be done; return whether it is the worker that says something, and nothing else."""
        poll = select.poll()
        poll.register(self._alarm, select.POLLIN)
        if not self._control.at_end:
            poll.register(self._control, select.POLLIN | (select.POLLOUT if self._control.pending else 0))
        wait_us = self._wait_us()
        ready = poll.poll(None if wait_us is None else wait_us / 1000)
        if len(ready) == 1 and ready[0][0] != self._alarm.fileno():
            return True
        with contextlib.suppress(BlockingIOError):
            self._alarm.recv(4096)
        return False

    def _wait_us(self) -> int | None:
        if any(child.is_dying for child in self._children.values()):
            return REAP_PAUSE_US
        due = [at for child in self._children.values() for at in (child.terminate_boot_us, child.kill_boot_us) if at is not None]
        return max(0, min(LOOK_US, min(due) - boot_us())) if due else None

    # The worker's wishes.

    def _hear(self) -> None:
        try:
            for message in self._control.receive():
                self._obey(message)
        except WireError:
            self._control.at_end = True  # a worker that talks nonsense is as good as gone

    def _obey(self, message: Message) -> None:
        match message.get("op"), self._children.get(message.get("runner", -1)):
            case "spawn", None:
                self._spawn(message)
            case "disarm" | "move", Child(why="deadline") as child:
                self._kill(child, "deadline")  # TERM was under way already: it must not hit the next attempt
            case "arm" | "move", Child() as child:
                child.terminate_boot_us, child.kill_boot_us = message["terminate_boot_us"], message["kill_boot_us"]
            case "disarm", Child() as child:
                child.terminate_boot_us = child.kill_boot_us = None
            case "kill", Child() as child:
                self._kill(child, "asked")
            case "ping", _:
                self._tell({"event": "pong"})
            case _:
                pass  # of a runner that is gone by now

    def _spawn(self, message: Message) -> None:
        number, descriptor = message["runner"], self._control.descriptors.popleft()
        mark = f"{self._token}:{number}:"  # closed by a colon, so that no mark is the beginning of another
        group = None if self._groups is None else make_group(self._groups, f"runner-{number}")
        try:
            with born_in(group, self._home):
                process = subprocess.Popen(
                    self._command(descriptor, group),
                    stdin=subprocess.DEVNULL,
                    pass_fds=(descriptor, *self._keep),
                    start_new_session=True,
                    env={**os.environ, MARK: mark},
                )
        except OSError as error:
            if group is not None:
                remove_group(group)
            self._tell({"event": "spawn_failed", "runner": number, "error": str(error)})
            return
        finally:
            os.close(descriptor)
        self._children[number] = Child(number, process, mark, message["terminate_boot_us"], message["kill_boot_us"], group)
        self._tell({"event": "spawned", "runner": number, "pid": process.pid})

    def _bid_farewell(self) -> None:
        """The worker is gone. An attempt under way keeps its own deadline; an idle runner sees its socket closed and leaves."""
        self._control.close()
        for child in self._children.values():
            if child.kill_boot_us is None:
                child.terminate_boot_us = child.kill_boot_us = boot_us() + FAREWELL_US

    def _tell(self, message: Message) -> None:
        if self._control.at_end:
            return
        try:
            self._control.send(message)
        except WireError:
            self._control.at_end = True

    # Deadlines and deaths.

    def _keep_time(self, child: Child, now_us: int) -> None:
        if child.is_dying:
            return
        if child.kill_boot_us is not None and now_us >= child.kill_boot_us:
            self._kill(child, "deadline")
        elif child.terminate_boot_us is not None and now_us >= child.terminate_boot_us:
            child.terminate_boot_us = None
            child.why = child.why or "deadline"
            _signal_group(child, signal.SIGTERM)

    def _kill(self, child: Child, why: str) -> None:
        child.why = child.why or why
        if not child.is_dying:
            child.is_dying = True
            _signal_group(child, signal.SIGKILL)
            if child.group is not None:
                kill_group(child.group)

    def _notice_deaths(self) -> None:
        for child in self._children.values():
            if not child.is_dying and _has_exited(child.process.pid):
                self._kill(child, "died")  # the rest of its group

    def _bury(self, child: Child) -> None:
        """Kill what is left of the runner; once nothing is, reap it and say so."""
        _signal_group(child, signal.SIGKILL)
        marks = {other.process.pid: other.mark for other in self._children.values()}
        left = {*left_by(child.process.pid, marks, look(), os.getpid()), *_in_group(child)}
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            _reap(pid)
        child.quiet_looks = 0 if left or not _has_exited(child.process.pid) else child.quiet_looks + 1
        if child.quiet_looks < QUIET_LOOKS:
            return
        status = _reap(child.process.pid)
        child.process.returncode = status if status is not None else -signal.SIGKILL  # or Popen would wait for it later
        del self._children[child.number]
        if child.group is not None:
            remove_group(child.group)
        self._tell({"event": "gone", "runner": child.number, "why": child.why, "status": child.process.returncode, "boot_us": boot_us()})

    def _reap_orphans(self) -> None:
        own = {child.process.pid for child in self._children.values()}
        while (pid := _first_exited()) is not None and pid not in own:
            _reap(pid)

    def _kill_everything(self) -> None:
        for child in self._children.values():
            _signal_group(child, signal.SIGKILL)
            if child.group is not None:
                kill_group(child.group)


def _in_group(child: Child) -> set[int]:
    """Return what lives in the control group of a runner besides itself, whatever session and environment it has by now."""
    return set() if child.group is None else set(pids_in(child.group)) - {child.process.pid, os.getpid()}


def _nothing(*_: Any) -> None:
    """A handler and not SIG_IGN: what is ignored stays ignored in every program that is started from here."""


def _signal_group(child: Child, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.process.pid, number)


def _has_exited(pid: int) -> bool:
    """Whether the process has ended with all of its threads; it is left unreaped."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _first_exited() -> int | None:
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if found is None else found.si_pid


def _reap(pid: int) -> int | None:
    """Take the exit status of a child that has ended; None where it has not, or is no child of ours yet."""
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if done == pid else None


def become_subreaper() -> None:
    """Ask the kernel to hand us the orphans among our descendants."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER was refused")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m settled.execution.supervisor", description=__doc__)
    parser.add_argument("app", metavar="MODULE:APP")
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--keep-fd", type=int, action="append", default=[])
    parser.add_argument("--token", required=True)
    parser.add_argument("--line-bytes-max", type=int, required=True)
    parser.add_argument("--memory-bytes-max", type=int, required=True)
    parser.add_argument("--recorder", type=Path)
    parser.add_argument("--cgroup", type=Path)
    options = parser.parse_args()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, _nothing)  # a stop of the service is the worker's business; it closes our socket when it is done
    become_subreaper()
    os.set_inheritable(options.control_fd, False)
    lifeline, _held = os.pipe()  # every runner reads it; its end tells them that we are gone
    os.set_inheritable(lifeline, True)

    def command(job_fd: int, group: Path | None) -> list[str]:
        line = [sys.executable, "-u", "-m", "settled.execution.runner", options.app, "--job-fd", str(job_fd)]
        line += ["--lifeline-fd", str(lifeline), "--line-bytes-max", str(options.line_bytes_max)]
        line += ["--memory-bytes-max", str(options.memory_bytes_max)]
        line += ["--cgroup", str(group)] if group else []
        return line + (["--recorder", str(options.recorder)] if options.recorder else [])

    control = Line(socket.socket(fileno=options.control_fd), CONTROL_BYTES_MAX)
    Supervisor(control, command, (lifeline, *options.keep_fd), options.token, options.cgroup).run()


if __name__ == "__main__":
    main()
