"""Read the clocks. The only module of the project that does.

Promise: every other module is handed a Clock or a Moment, so that tests and the simulation own its time.
"""

import sys
import time
from functools import cache
from pathlib import Path
from typing import Final, Protocol

from settled.core.errors import ConfigurationError
from settled.core.moment import Moment

BOOT_ID_DIGITS: Final = 12
_BOOT_ID_FILE: Final = Path("/proc/sys/kernel/random/boot_id")
_ASK_BOOT_SESSION: Final = ("/usr/sbin/sysctl", "-n", "kern.bootsessionuuid")  # macOS
# CLOCK_BOOTTIME counts while the machine is suspended. Where it does not exist (macOS), CLOCK_MONOTONIC counts that time too.
_BOOT_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """What the shell may ask about time."""

    def now(self) -> Moment:
        """Return this instant on the clocks that are stored and compared across processes."""

    def monotonic_us(self) -> int:
        """Return CLOCK_MONOTONIC in microseconds: stands still while the machine is suspended, means nothing elsewhere."""


class SystemClock:
    """The machine's own clocks."""

    def now(self) -> Moment:
        """Return this instant of the machine."""
        return Moment(wall_us(), boot_us(), boot_id_short())

    def monotonic_us(self) -> int:
        """Return the machine's CLOCK_MONOTONIC in microseconds."""
        return monotonic_us()


# clock_gettime and not time.monotonic(): tools that freeze the wall clock in tests move the latter, and leases with it.


def wall_us() -> int:
    """Return CLOCK_REALTIME in microseconds since 1970, UTC."""
    return time.clock_gettime_ns(time.CLOCK_REALTIME) // 1000


def boot_us() -> int:
    """Return the microseconds since this boot, suspended time included."""
    return time.clock_gettime_ns(_BOOT_CLOCK) // 1000


def monotonic_us() -> int:
    """Return CLOCK_MONOTONIC in microseconds."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


@cache
def boot_id_short() -> str:
    """Return the first 12 hex digits of the kernel's boot ID.

    Raises ConfigurationError where the system shows none: without it, time before a reboot could pass for time after it.
    """
    try:
        text = _BOOT_ID_FILE.read_text() if sys.platform.startswith("linux") else _boot_session()
    except OSError as error:
        raise ConfigurationError(
            f"the boot ID of this machine cannot be read ({error}). Nothing was started. "
            f"Make {_BOOT_ID_FILE} readable; in a systemd unit, remove ProcSubset=pid."
        ) from error
    digits = text.strip().replace("-", "").lower()[:BOOT_ID_DIGITS]
    if len(digits) != BOOT_ID_DIGITS:
        raise ConfigurationError(f"this machine's boot ID {text.strip()!r} is no UUID. Nothing was started. See: settled doctor")
    return digits


def _boot_session() -> str:
    import subprocess  # slow to import, and Linux has a file

    try:
        return subprocess.run(_ASK_BOOT_SESSION, capture_output=True, text=True, timeout=5, check=True).stdout
    except subprocess.SubprocessError as error:
        raise OSError(str(error)) from error
