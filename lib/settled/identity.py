"""Derive identities from arguments, and refuse what could not identify anything."""

from collections.abc import Callable
from typing import Any

from settled.core.limits import DEFAULTS
from settled.core.text import safe_str


def derive(function: Callable[..., Any], copy: Callable[[], dict[str, Any]], what: str) -> str | None:
    """Call an identity function twice and return its one answer. Each call gets its own copy: it may change what it is given.

    Raises ValueError where it raises, answers differently, or gives a blank, padded or wrong-typed identity.
    """
    try:
        first, second = function(copy()), function(copy())
    except Exception as error:
        raise ValueError(f"{what} raised {type(error).__name__}: {safe_str(error)}. Nothing was stored.") from error
    if first != second:
        raise ValueError(
            f"{what} gave {first!r} and then {second!r} for the same arguments. Nothing was stored. An identity must be stable."
        )
    return None if first is None else check_identity(first, what)


def check_identity(value: object, what: str) -> str:
    """Return an identity that is exact, non-blank text of bounded length. Raises ValueError otherwise."""
    if type(value) is not str:
        raise ValueError(f"{what} must be a str, not {type(value).__name__}. Nothing was stored.")
    if not value.strip() or value != value.strip():
        raise ValueError(f"{what} is blank or padded: {value!r}. Nothing was stored.")
    if len(value) > DEFAULTS.operation_id_max:
        raise ValueError(f"{what} is longer than {DEFAULTS.operation_id_max} characters. Nothing was stored.")
    if not value.isascii() and any(0xD800 <= ord(character) < 0xE000 for character in value):
        raise ValueError(f"{what} holds a lone surrogate, which is not Unicode text. Nothing was stored.")
    return value
