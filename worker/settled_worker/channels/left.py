"""How much is left of the time that one notification has, whatever it consists of."""

from collections.abc import Callable

from settled.core.moment import SECOND_US

Left = Callable[[], float]


def time_left(monotonic_us: Callable[[], int], seconds: float) -> Left:
    """Return the question how many seconds are left of `seconds` from now on. It raises TimeoutError when there are none."""
    end_us = monotonic_us() + int(seconds * SECOND_US)

    def left() -> float:
        rest = (end_us - monotonic_us()) / SECOND_US
        if rest <= 0:
            raise TimeoutError(f"it took longer than {seconds:g} s")
        return rest

    return left
