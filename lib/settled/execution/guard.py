"""End a runner's whole process group at its deadline, or when its supervisor is gone, whatever the user's code is doing.

Promise: no worker and no supervisor is needed for it. PR_SET_PDEATHSIG would kill this process alone and leave its children to
nobody; a pipe that ends with the supervisor lets it take them along. Two lines of defence: a thread that kills the group, and a timer of
the kernel that kills at least this process where code in C never gives up the interpreter lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any, Final

from settled.clock import boot_us
from settled.execution.cgroup import kill_group
from settled.execution.descendants import MARK, kill_marked

LOOK_SECONDS_MAX: Final = 1.0  # poll() does not count a suspend of the machine: look at the boot clock again and again
_KERNEL_LATER_US: Final = 100_000  # the thread first, because it takes the group along
_KERNEL_SLACK_US: Final = 100_000  # and up to so much later again: then short attempts that follow one another set the timer once
_NEVER_US: Final = 2**63 - 1
_CLOCK_BOOTTIME: Final = 7
_TIMER_ABSTIME: Final = 1


class Guard:
    """Watches one runner process. `arm` before user code is called, `disarm` when its end has been told."""

    def __init__(self, lifeline: int, group: Path | None = None) -> None:
        """`lifeline` is the read end of a pipe whose only write end the supervisor holds; `group` the runner's own control group."""
        self._lifeline, self._group = lifeline, group
        self._mark = os.environ.get(MARK)  # now, before the user's code can change it
        self._kill_boot_us: int | None = None
        self._looks_at_boot_us = _NEVER_US  # when the thread will look again by itself
        self._timer_boot_us = 0
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        self._timer = KernelTimer.create()
        os.register_at_fork(after_in_child=self._forget_in_child)
        threading.Thread(target=self._watch, name="settled-guard", daemon=True).start()

    def arm(self, kill_boot_us: int) -> None:
        """Kill at this moment. It costs a system call only where neither the thread nor the timer would wake in time for it."""
        self._kill_boot_us = kill_boot_us
        kernel_us = kill_boot_us + _KERNEL_LATER_US
        if self._timer is not None and not kernel_us <= self._timer_boot_us <= kernel_us + _KERNEL_SLACK_US:
            self._timer_boot_us = kernel_us + _KERNEL_SLACK_US // 2
            self._timer.set(self._timer_boot_us)
        if kill_boot_us < self._looks_at_boot_us:
            with contextlib.suppress(BlockingIOError):  # a full bell rings already
                self._bell.send(b"!")

    def disarm(self) -> None:
        self._kill_boot_us = None
        if self._timer is not None and self._timer_boot_us:
            self._timer_boot_us = 0
            self._timer.set(0)

    def _watch(self) -> None:
        poll = select.poll()
        poll.register(self._lifeline, select.POLLIN)
        poll.register(self._ear, select.POLLIN)
        while True:
            wait_seconds = self._wait_seconds()
            ready = poll.poll(None if wait_seconds is None else wait_seconds * 1000 + 1)
            if any(descriptor == self._lifeline for descriptor, _ in ready):
                self._kill()
            if ready:
                with contextlib.suppress(BlockingIOError):
                    self._ear.recv(4096)
            due = self._kill_boot_us
            if due is not None and boot_us() >= due:
                self._kill()

    def _wait_seconds(self) -> float | None:
        """Return how long to sleep; None: until the bell rings, which it does for whatever is armed from here on and is due before."""
        while True:
            due, now_us = self._kill_boot_us, boot_us()
            looks_at = _NEVER_US if due is None else min(due, now_us + int(LOOK_SECONDS_MAX * 1e6))
            self._looks_at_boot_us = looks_at
            armed = self._kill_boot_us  # again: what was armed in between has compared with the look before this one
            if armed is None or armed >= looks_at:
                return None if due is None else max(0.0, (looks_at - now_us) / 1e6)

    def _kill(self) -> None:
        try:
            if self._mark:
                kill_marked(self._mark)  # what has left the group: without a supervisor nobody else would find it
            if self._group is not None:
                kill_group(self._group, with_me=True)  # and what has left both, together with this process
        finally:
            kill_own_group()

    def _forget_in_child(self) -> None:
        self._bell.close()
        self._ear.close()
        with contextlib.suppress(OSError):
            os.close(self._lifeline)


def kill_own_group() -> None:
    """SIGKILL to this process and all of its group. Does not return."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


class KernelTimer:
    """A POSIX timer on CLOCK_BOOTTIME whose signal is SIGKILL. No lock of the interpreter can hold it up."""

    def __init__(self, libc: Any, timer: ctypes.c_void_p) -> None:
        self._libc, self._timer = libc, timer

    @classmethod
    def create(cls) -> KernelTimer | None:
        """Return a timer that is not set, or None where the platform has none."""
        if not sys.platform.startswith("linux"):
            return None
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            timer, event = ctypes.c_void_p(), _SignalEvent(0, int(signal.SIGKILL), 0)
            if libc.timer_create(_CLOCK_BOOTTIME, ctypes.byref(event), ctypes.byref(timer)) != 0:
                return None
        except (OSError, AttributeError):
            return None
        return cls(libc, timer)

    def set(self, at_boot_us: int) -> None:
        """Fire at this moment of CLOCK_BOOTTIME; 0 unsets."""
        wanted = _TimerSpecification(0, 0, at_boot_us // 1_000_000, at_boot_us % 1_000_000 * 1000)
        self._libc.timer_settime(self._timer, _TIMER_ABSTIME, ctypes.byref(wanted), None)


class _SignalEvent(ctypes.Structure):
    """`struct sigevent`, padded to its 64 bytes."""

    _fields_ = [
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("padding", ctypes.c_char * 48),
    ]


class _TimerSpecification(ctypes.Structure):
    """`struct itimerspec`."""

    _fields_ = [
        ("interval_seconds", ctypes.c_long),
        ("interval_nanoseconds", ctypes.c_long),
        ("value_seconds", ctypes.c_long),
        ("value_nanoseconds", ctypes.c_long),
    ]
