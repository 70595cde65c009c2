"""Derive identities from arguments, and refuse what could not identify anything."""

from collections.abc import Callable
from typing import Any, Final

from settled.core.canonical import parse_canonical
from settled.core.limits import DEFAULTS
from settled.core.text import safe_str

_NESTED: Final = frozenset({dict, list})


class Copies:
    """Copies of the arguments of one request, one for each call: a function may change what it is given."""

    __slots__ = ("_flat", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        parsed = parse_canonical(text)
        self._flat: dict[str, Any] | None = parsed if _NESTED.isdisjoint(map(type, parsed.values())) else None

    def another(self) -> dict[str, Any]:
        """Return a copy that nobody has seen."""
        if self._flat is not None:
            return dict(self._flat)
        parsed: dict[str, Any] = parse_canonical(self._text)
        return parsed


def derive(function: Callable[..., Any], copies: Copies, what: str) -> str | None:
    """Call an identity function twice on copies of the arguments and return its one answer.

    Raises ValueError where it raises, answers differently, or gives a blank, padded or wrong-typed identity.
    """
    try:
        first, second = function(copies.another()), function(copies.another())
    except Exception as error:
        raise ValueError(f"{what} raised {type(error).__name__}: {safe_str(error)}. Nothing was stored.") from error
    if first != second:
        raise ValueError(
            f"{what} gave {first!r} and then {second!r} for the same arguments. Nothing was stored. An identity must be stable."
        )
    if first is None:
        return None
    return check_identity(first, what)


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
