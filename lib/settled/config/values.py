"""The kinds of values that settings have, and the limits of each."""

import math
import re
from collections.abc import Callable
from ipaddress import ip_address
from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict

SECONDS_MIN: Final = 0.001
SECONDS_MAX: Final = 10 * 366 * 86_400.0
COUNT_MAX: Final = 1_000_000
BYTES_MAX: Final = 256 * 1_048_576
DISK_BYTES_MAX: Final = 1 << 50


def _number(value: object, what: str) -> float:
    """Return what was written as a number. A bool is none, and a blank is not zero."""
    if isinstance(value, str) and not value.strip():
        raise ValueError(f"is blank, but must be {what}")
    if not isinstance(value, (int, float, str)) or isinstance(value, bool):
        raise ValueError(f"is {value!r}, but must be {what}")
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise ValueError(f"is {value!r}, but must be {what}") from None
    if math.isnan(number):
        raise ValueError(f"is {value!r}, but must be {what}")
    return number


def _seconds(value: object) -> float:
    number = _number(value, "a number of seconds greater than 0")
    if number <= 0:
        raise ValueError(f"is {value}, but must be greater than 0 seconds")
    if not SECONDS_MIN <= number <= SECONDS_MAX:
        raise ValueError(f"is {value}, but must be between {SECONDS_MIN} and {SECONDS_MAX:.0f} seconds")
    return number


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by its name or address; a name that only resolves to it is not."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def share(value: object) -> float:
    """Return a share between 0 and 1, both left out. Raises ValueError."""
    number = _number(value, "a share between 0 and 1, for example 0.2")
    if not 0 < number < 1:
        raise ValueError(f"is {value}, but must be a share between 0 and 1, for example 0.2")
    return number


def _count_up_to(maximum: int) -> Callable[[object], int]:
    def count(value: object) -> int:
        number = _number(value, f"a whole number from 1 to {maximum}")
        if not number.is_integer():
            raise ValueError(f"is {value!r}, but must be a whole number from 1 to {maximum}")
        if not 1 <= number <= maximum:
            raise ValueError(f"is {value}, but must be from 1 to {maximum}")
        return int(number)

    return count


def pattern(value: object) -> re.Pattern[str]:
    if not isinstance(value, str) or not value:
        raise ValueError("must be a regular expression that is not empty")
    try:
        return re.compile(value)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None


def lower(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


Seconds = Annotated[float, BeforeValidator(_seconds)]
Count = Annotated[int, BeforeValidator(_count_up_to(COUNT_MAX))]
Bytes = Annotated[int, BeforeValidator(_count_up_to(BYTES_MAX))]
DiskBytes = Annotated[int, BeforeValidator(_count_up_to(DISK_BYTES_MAX))]


class Section(BaseModel):
    """A section: frozen, and without a name that is not declared."""

    model_config = ConfigDict(extra="forbid", frozen=True)
