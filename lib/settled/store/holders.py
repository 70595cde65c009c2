"""Find the processes that have a file open, as far as this system shows them to this user."""

import os
from pathlib import Path


def open_in(device: int, inode: int) -> list[int]:
    """Return the pids of other processes with this file open. A process of another user may not be seen."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        if int(name) != os.getpid() and _has(Path("/proc", name, "fd"), device, inode):
            found.append(int(name))
    return sorted(found)


def _has(descriptors: Path, device: int, inode: int) -> bool:
    try:
        for one in os.listdir(descriptors):
            try:
                there = os.stat(descriptors / one)
            except OSError:
                continue
            if (there.st_dev, there.st_ino) == (device, inode):
                return True
    except OSError:
        return False
    return False
