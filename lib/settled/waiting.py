"""How often a caller looks whether its operation is settled: at first very soon, then ever less."""

from typing import Final

POLL_FIRST_SECONDS: Final = 0.0005
_POLL_CAP_SECONDS: Final = 0.05
_POLL_FACTOR: Final = 1.3


def next_poll_seconds(pause: float) -> float:
    """Return the next pause, in seconds."""
    return min(pause * _POLL_FACTOR, _POLL_CAP_SECONDS)
