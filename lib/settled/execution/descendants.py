"""Find the processes that a runner has left behind, by what the kernel says of them.

Promise: a process that may belong to the runner is named; one is left out only where the kernel ties it to another living
runner. Being wrong in the first way ends a helper whose handler then reports an error; being wrong in the second way would
let a killed attempt go on sending.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from typing import Final, NamedTuple

MARK: Final = "SETTLED_RUNNER"  # in the environment of a runner and of all that it starts


class Seen(NamedTuple):
    """One process at the moment of a look."""

    pid: int
    parent: int
    session: int


def look() -> dict[int, Seen]:
    """Return every process that can be seen now."""
    seen = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := _read(int(name))) is not None:
            seen[process.pid] = process
    return seen


def left_by(runner: int, marks: Mapping[int, str], seen: Mapping[int, Seen], adopter: int) -> list[int]:
    """Return the descendants of `runner`, itself not included, among those of `adopter`.

    `marks` holds the mark of every living runner by its pid. An orphan is handed to `adopter` and no longer has the runner
    as an ancestor: then its session and its mark tell, and where they tell nothing it is counted as left by this one.
    """
    return [
        process.pid
        for process in seen.values()
        if process.pid not in marks and process.pid != adopter and _belongs(process, runner, marks, seen, adopter)
    ]


def kill_marked(mark_start: str) -> int:
    """SIGKILL to every process of ours whose mark starts so; return how many there were. Needs no parenthood."""
    found = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid() and (mark_of(int(name)) or "").startswith(mark_start):
            found += 1
            _kill_if_still(int(name), mark_start)
    return found


def mark_of(pid: int) -> str | None:
    """Return the mark in the environment that the process was started with, or None where there is none to be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().split(b"\0")
    except OSError:
        return None
    start = MARK.encode() + b"="
    return next((entry[len(start) :].decode("utf-8", "replace") for entry in entries if entry.startswith(start)), None)


def _belongs(process: Seen, runner: int, marks: Mapping[int, str], seen: Mapping[int, Seen], adopter: int) -> bool:
    orphan = process
    while orphan.parent != adopter:
        if orphan.parent in marks:
            return orphan.parent == runner
        parent = seen.get(orphan.parent)
        if parent is None:
            return process.session == runner  # not among ours now: it is moving, or no descendant at all
        orphan = parent
    owners = {owner for one in (process, orphan) for owner in _tied_to(one, marks)}
    return runner in owners or not owners


def _tied_to(process: Seen, marks: Mapping[int, str]) -> list[int]:
    mark = mark_of(process.pid)
    return [runner for runner, its_mark in marks.items() if process.session == runner or mark == its_mark]


def _read(pid: int) -> Seen | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            facts = file.read().rpartition(b")")[2].split()  # the name before may hold blanks and brackets
    except OSError:
        return None
    return Seen(pid, int(facts[1]), int(facts[3])) if len(facts) > 3 else None


def _kill_if_still(pid: int, mark_start: str) -> None:
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(pid)
        try:
            if (mark_of(pid) or "").startswith(mark_start):  # looked at again: the handle cannot move to another process
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)
