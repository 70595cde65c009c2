"""Hold runners in control groups of their own, where the system has handed a hierarchy to the worker.

Promise: a group only ever adds to what is asked. Where none was handed, or the system refuses one, nothing changes; a group
that is not there proves nothing. Control groups of version 2 only: in version 1 a handed hierarchy is not safe, and a group
cannot be killed in one step.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

KILL_PASSES_MAX: Final = 20
_OWN_GROUP: Final = Path("/proc/self/cgroup")
_MOUNTS: Final = Path("/proc/self/mountinfo")
_NO_DEVICE: Final = 19  # ENODEV
_HANDED: Final = ("user.delegate", "trusted.delegate")  # what systemd writes on a group with Delegate=


def find_handed() -> Path | None:
    """Return the control group that was handed to this process (`Delegate=` of its unit), or None.

    Its own group, or the one above it, where the unit says DelegateSubgroup=. Being allowed to write there is not enough: as
    root that would be every group of the machine.
    """
    try:
        own = own_group()
    except (OSError, ValueError):
        return None
    if own is None:
        return None
    found = (group for group in (own, own.parent) if _is_handed(group))
    return next(found, None)


def make_group(parent: Path, name: str) -> Path | None:
    """Make a group below `parent`; None where the system refuses it."""
    group = parent / name
    try:
        group.mkdir(mode=0o755)
    except OSError:
        return None
    if (group / "cgroup.procs").exists():
        return group
    with contextlib.suppress(OSError):
        group.rmdir()
    return None


def remove_group(group: Path) -> None:
    """Remove a group and those below it. The kernel refuses it while anything lives there; that one stays."""
    folders = sorted((Path(folder) for folder, _, _ in os.walk(group)), reverse=True)
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def group_is_empty(group: Path) -> bool | None:
    """Return whether nothing lives in this group or below it; None where it is not there, which proves nothing.

    A group that is there and cannot be read is not shown to be empty: False.
    """
    try:
        events = (group / "cgroup.events").read_text().split()
    except FileNotFoundError:
        return False if group.exists() else None
    except OSError as error:
        return None if error.errno == _NO_DEVICE else False  # removed between opening and reading
    return dict(zip(events[::2], events[1::2], strict=True)).get("populated") == "0"


def pids_in(group: Path) -> list[int]:
    """Return the processes in this group and below it; those of another pid namespace are shown as 0 and left out."""
    found: list[int] = []
    for folder, _, _ in os.walk(group):
        with contextlib.suppress(OSError):
            found += [int(line) for line in (Path(folder) / "cgroup.procs").read_text().split() if line != "0"]
    return found


def kill_group(group: Path, *, with_me: bool = False) -> None:
    """SIGKILL to everything in the group and below it: in one step where the kernel can (5.14), else again and again.

    This process is left out, should it be there, unless `with_me`.
    """
    if with_me or os.getpid() not in pids_in(group):
        with contextlib.suppress(OSError):
            _write(group / "cgroup.kill", "1")
            return
    for _ in range(KILL_PASSES_MAX):
        others = [pid for pid in pids_in(group) if pid != os.getpid()]
        if not others:
            return
        for pid in others:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def born_in(group: Path | None, home: Path | None) -> Iterator[None]:
    """Let the children that are started meanwhile be born in `group`, by being there: no child runs an instruction outside it.

    For a process with one thread only. `home` is the group to come back to; a `group` that cannot be entered is not used.
    """
    is_there = group is not None and home is not None and _enter(group)
    try:
        yield
    finally:
        if is_there and home is not None:
            _enter(home)


def _enter(group: Path) -> bool:
    try:
        _write(group / "cgroup.procs", "0")
    except OSError:
        return False
    return True


def _write(file: Path, text: str) -> None:
    """Write without making the file: this is a file system of the kernel."""
    opened = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(opened, text.encode())
    finally:
        os.close(opened)


def own_group() -> Path | None:
    """Return the control group that this process is in, None where there is no hierarchy of version 2. Raises OSError, ValueError."""
    path = next((line[3:] for line in _OWN_GROUP.read_text().splitlines() if line.startswith("0::/")), None)
    if path is None:
        return None
    for line in _MOUNTS.read_text().splitlines():
        facts, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 "):
            root, point = facts.split()[3:5]
            inside = Path(path).relative_to(root) if path.startswith(root) else Path(path.lstrip("/"))
            return Path(point) / inside
    return None


def _is_handed(group: Path) -> bool:
    for name in _HANDED:
        with contextlib.suppress(OSError):
            if os.getxattr(group, name) == b"1":
                return os.access(group, os.W_OK | os.X_OK) and os.access(group / "cgroup.procs", os.W_OK)
    return False
