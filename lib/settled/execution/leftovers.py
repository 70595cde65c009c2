"""Look whether a handler that raised inside this process left a thread or a process behind that could still send.

Promise: "nothing" is only said when /proc shows nothing. Whatever began since the attempt was entered and is not known to
be ours counts as left behind, and so does everything that cannot be read: a doubt costs a fence, never an effect.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

OUR_THREADS: Final = "settled-"
_TICK_US: Final = 1_000_000 // os.sysconf("SC_CLK_TCK")
_OURS: Final = (b"settled.execution.supervisor", b"settled.execution.runner")
_ENDED: Final = frozenset("ZXx")
_START_LOOKS: Final = 50
_START_LOOK_SECONDS: Final = 0.001


class _Seen(NamedTuple):
    state: str
    parent: int
    started_ticks: int


def watch_for_leftovers(entered_boot_us: int, incarnation: str | None) -> Callable[[], bool]:
    """Return the question whether anything that began since `entered_boot_us` still runs."""
    since = entered_boot_us // _TICK_US  # the kernel tells start times in ticks of CLOCK_BOOTTIME, rounded down

    def is_left() -> bool:
        try:
            return _thread_is_left(since) or _process_is_left(since, incarnation)
        except (OSError, ValueError, IndexError):
            return True

    return is_left


def _thread_is_left(since: int) -> bool:
    listed = os.listdir("/proc/self/task")
    ours = _own_threads()  # after the list: whoever of ours is on it is known by now, or starting
    for name in listed:
        seen = None if int(name) in ours else _look(f"/proc/self/task/{name}/stat")
        if seen is not None and seen.started_ticks >= since and seen.state not in _ENDED:
            return True
    return False


def _own_threads() -> set[int]:
    """Return the IDs of our threads. One that is just starting has none yet, and gets the time of a start to tell it."""
    for _ in range(_START_LOOKS):
        own = [thread.native_id for thread in threading.enumerate() if thread.name.startswith(OUR_THREADS)]
        if None not in own:
            break
        time.sleep(_START_LOOK_SECONDS)
    return {known for known in own if known is not None}


def _process_is_left(since: int, incarnation: str | None) -> bool:
    me = os.getpid()
    own_command = _read("/proc/self/cmdline")
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == me:
            continue
        seen = _look(f"/proc/{name}/stat")
        if seen is None or seen.started_ticks < since or seen.state in _ENDED:
            continue
        if _is_of_this_process(name, seen, me, own_command, incarnation):
            return True
    return False


def _is_of_this_process(pid: str, seen: _Seen, me: int, own_command: bytes, incarnation: str | None) -> bool:
    try:
        command = _read(f"/proc/{pid}/cmdline")
        if any(part in command for part in _OURS):
            return False
        if seen.parent == me or command == own_command:  # the second: forked twice, without exec, and so without a mark
            return True
        if incarnation is None:
            return False
        return incarnation.encode() in _read(f"/proc/{pid}/environ")
    except (FileNotFoundError, ProcessLookupError):
        return False
    except PermissionError:
        return _is_same_user(pid)


def _is_same_user(pid: str) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.getuid()
    except FileNotFoundError:
        return False


def _look(path: str) -> _Seen | None:
    try:
        text = _read(path).decode("latin-1")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return _Seen(state=fields[0], parent=int(fields[1]), started_ticks=int(fields[19]))


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
