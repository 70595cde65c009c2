"""Know the place that a ledger was made for: its host, device and inode.

A ledger whose binding does not match has been copied or restored, so that effects sent after the copy are missing from it.
"""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_MACHINE_IDS: Final = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
KEYS: Final = ("bound_host", "bound_device", "bound_inode")


def host_digest(machine_ids: tuple[Path, ...] = _MACHINE_IDS) -> str:
    """Return a digest that stands for this host: of its machine ID, else of its name. Neither of them is stored as it is."""
    identity = os.uname().nodename
    for path in machine_ids:
        try:
            text = path.read_text(encoding="ascii", errors="replace").strip()
        except OSError:
            continue
        if text and text != "uninitialized":
            identity = text
            break
    return hashlib.sha256(f"settled host 1:{identity}".encode()).hexdigest()[:32]


def binding_of(path: Path) -> dict[str, str]:
    """Return the binding of the file at `path` as `meta` stores it. Does not open the file."""
    there = path.stat()
    return {"bound_host": host_digest(), "bound_device": str(there.st_dev), "bound_inode": str(there.st_ino)}


def binding_differs(stored: Mapping[str, str], path: Path) -> tuple[str, ...]:
    """Return which of KEYS do not match the file at `path`; empty where the ledger is where it was made or adopted."""
    here = binding_of(path)
    return tuple(key for key in KEYS if stored.get(key) != here[key])
