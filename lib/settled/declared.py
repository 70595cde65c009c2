"""Check the values of a declaration, one kind each. What is wrong is refused when it is written, with its name."""

import math
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from settled.core.limits import DEFAULTS
from settled.core.terms import seconds_us
from settled.core.words import Isolation, Risk

Seconds = float | timedelta
_SECONDS_MAX: Final = 10 * 366 * 86_400.0


def label(value: object, what: str) -> str:
    """Return a printable, non-blank name. Raises ValueError."""
    if type(value) is not str:
        raise ValueError(f"{what} must be a str, not {type(value).__name__}")
    if not value.strip() or value != value.strip():
        raise ValueError(f"{what} is blank or padded: {value!r}")
    if len(value) > DEFAULTS.name_max or not value.isprintable():
        raise ValueError(f"{what} must be printable and of at most {DEFAULTS.name_max} characters")
    return value


def flag(value: object, what: str) -> bool:
    """Return an exact bool. Raises TypeError."""
    if type(value) is not bool:
        raise TypeError(f"{what} must be True or False, not {value!r}")
    return value


def count(value: object, what: str) -> int:
    """Return an exact int of at least 1. Raises TypeError or ValueError."""
    if type(value) is not int:
        raise TypeError(f"{what} must be an int, not {value!r}")
    if value < 1:
        raise ValueError(f"{what} must be at least 1, not {value}")
    return value


def is_number(value: object) -> bool:
    """Return whether a value is a finite int or float, and no bool."""
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def _seconds(value: object, what: str) -> float:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if not is_number(value):
        raise ValueError(f"{what} must be seconds or a timedelta, not {value!r}")
    return float(value)  # type: ignore[arg-type]


def positive_us(value: object, what: str) -> int:
    """Return a duration above 0 in microseconds. Raises ValueError."""
    seconds = _seconds(value, what)
    if not 0 < seconds <= _SECONDS_MAX or seconds_us(seconds) < 1:
        raise ValueError(f"{what} must be more than 0 and at most {_SECONDS_MAX:.0f} seconds, not {value!r}")
    return seconds_us(seconds)


def not_negative_us(value: object, what: str) -> int:
    """Return a duration of 0 or more in microseconds. Raises ValueError."""
    seconds = _seconds(value, what)
    if not 0 <= seconds <= _SECONDS_MAX:
        raise ValueError(f"{what} must be between 0 and {_SECONDS_MAX:.0f} seconds, not {value!r}")
    return seconds_us(seconds)


def rate(value: object) -> float:
    """Return starts per second, above 0. Raises ValueError."""
    if not is_number(value) or value <= 0:  # type: ignore[operator]
        raise ValueError(f"rate_limit must be a number of starts per second above 0, not {value!r}")
    return float(value)  # type: ignore[arg-type]


def one_of(value: object, what: str, allowed: Iterable[str]) -> str:
    """Return one of the allowed words. Raises ValueError."""
    names = [str(one) for one in allowed]
    if type(value) is not str and not isinstance(value, (Isolation, Risk)):
        raise ValueError(f"{what} must be one of {', '.join(names)}, not {value!r}")
    if value not in names:
        raise ValueError(f"{what} must be one of {', '.join(names)}, not {value!r}")
    return str(value)


def names(value: object, what: str) -> tuple[str, ...] | None:
    """Return field names, None for none. Raises TypeError."""
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"{what} must be a sequence of field names, not {value!r}")
    names = tuple(value)
    if not all(type(name) is str and name for name in names):
        raise TypeError(f"{what} must hold field names, not {value!r}")
    return names
