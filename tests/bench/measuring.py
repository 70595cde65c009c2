"""Read the machine while something runs on it: how fast its disk syncs, and how much CPU and memory a process takes.

Promise: needs nothing of the product, so that the floor and the product are measured by the same means.
"""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")
FIRST_STARTED = "first-started"  # the moment at which the first measured handler began, beside the store


def an_effect(number: int) -> dict[str, Any]:
    """Return arguments of about 200 bytes; no two calls give the same, in whatever process."""
    return {
        "order": f"{os.getpid()}-{number:08d}-{time.monotonic_ns()}",
        "customer": "customer-71f0c2aa94",
        "amount": {"cents": 1_500 + number % 200, "currency": "EUR"},
        "note": "second instalment of three, due with the delivery, terms as agreed in spring",
    }


def each_for(seconds: float, call: Callable[[int], object]) -> list[float]:
    """Call again and again for `seconds`; return how long each call took, in seconds."""
    took: list[float] = []
    began = last = time.perf_counter()
    while last - began < seconds:
        call(len(took))
        now = time.perf_counter()
        took.append(now - last)
        last = now
    return took


def rate(took: Sequence[float]) -> float:
    """Return calls per second."""
    return len(took) / sum(took)


def quantile_ms(took: Sequence[float], share: float) -> float:
    """Return the time that `share` of the calls did not exceed, in milliseconds."""
    ordered = sorted(took)
    return 1_000 * ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def syncs_a_second(folder: Path, seconds: float = 0.2) -> float:
    """Return how often a second a page can be appended and synced in `folder` right now. A shared disk changes by the minute."""
    path = folder / "sync-probe"
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    def append(_: int) -> None:
        os.write(descriptor, bytes(4096))
        os.fdatasync(descriptor)

    try:
        return rate(each_for(seconds, append))
    finally:
        os.close(descriptor)
        path.unlink()


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process and its living descendants have taken; 0 for one that is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        below = [int(one) for each in Path(f"/proc/{pid}/task").iterdir() for one in (each / "children").read_text().split()]
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS + sum(map(cpu_seconds, below))


def peak_megabytes(pid: int) -> float:
    """Return the most memory that a process has held."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
