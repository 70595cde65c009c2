"""For how long a caller waits, and how often it looks whether its operation is settled: at first very soon, then ever less.

A look costs some 15 microseconds and comes late by a twentieth of the time that has passed, and 0.2 ms: what took 5 ms is told
within half a one.
"""

from typing import Final

POLL_FIRST_SECONDS: Final = 0.0002
_POLL_CAP_SECONDS: Final = 0.05
_POLL_FACTOR: Final = 1.05
_WAIT_SECONDS_MAX: Final = 1e9


def wait_us(timeout: float, name: str = "timeout") -> int:
    """Return a time to wait in microseconds. Raises ValueError where it is no number of seconds, or has no end."""
    if not isinstance(timeout, (int, float)) or not abs(timeout) < _WAIT_SECONDS_MAX:  # not NaN either, which compares with nothing
        raise ValueError(f"{name} must be seconds below {_WAIT_SECONDS_MAX:.0f}, not {timeout!r}. Nothing was changed.")
    return int(timeout * 1_000_000)


def next_poll_seconds(pause: float) -> float:
    """Return the next pause, in seconds."""
    return min(pause * _POLL_FACTOR, _POLL_CAP_SECONDS)
