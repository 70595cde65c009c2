"""Turn the fields of a log line into harmless JSON values.

Whatever a handler logs, this returns: what cannot be shown gets a stand-in, what is too much is cut, and no code of the value
runs but its `__repr__`, whose failure is contained.
"""

import datetime
import decimal
import pathlib
import traceback
import uuid
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Final

from settled.core.text import ELLIPSIS, VALUE_UNAVAILABLE, one_line, safe_repr, safe_str

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]
Redact = Callable[[str], str]

NAME_MAX: Final = 100
TEXT_MAX: Final = 1_000
REDACTED_MAX: Final = 65_536  # longer text is cut to this before the redactions, which may be slow
INTEGER_BITS_MAX: Final = 256
ITEMS_MAX: Final = 50
DEPTH_MAX: Final = 4
VALUES_MAX: Final = 100
FRAMES_MAX: Final = 5
_SAYS_ITSELF: Final = (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, pathlib.PurePath, uuid.UUID)


def plain_fields(fields: Mapping[str, object], redact: Redact | None = None) -> dict[str, JsonValue]:
    """Return `fields` as harmless JSON, at most ITEMS_MAX of them. Never raises an Exception."""
    return {_Plainer(redact).text(name, NAME_MAX): _Plainer(redact).value(value) for name, value in islice(fields.items(), ITEMS_MAX)}


def error_fields(error: BaseException) -> dict[str, object]:
    """Return the class, the message and the last places of an error: never its frames' variables, which hold credentials."""
    frames = islice(traceback.walk_tb(error.__traceback__), 1_000)
    places = [f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}" for frame, line in frames]
    return {"error_class": type(error).__name__, "error_text": safe_str(error), "error_places": places[-FRAMES_MAX:]}


class _Plainer:
    """One pass over one field, with the budget of values that bounds it."""

    def __init__(self, redact: Redact | None) -> None:
        self._redact = redact
        self._left = VALUES_MAX
        self._above: list[object] = []  # the containers on the way down: a cycle is one of them met again

    def text(self, text: str, limit: int = TEXT_MAX) -> str:
        text = str.__str__(text)
        if self._redact is not None:
            text = self._redact(text[:REDACTED_MAX])
        return one_line(text, limit)

    def value(self, value: object) -> JsonValue:
        self._left -= 1
        if self._left < 0:
            return ELLIPSIS
        try:
            return self._value(value)
        except Exception:  # noqa: BLE001 - a field that cannot be shown must not cost the line
            return VALUE_UNAVAILABLE

    def _value(self, value: object) -> JsonValue:
        kind = type(value)
        if value is None or kind is bool:
            return value  # type: ignore[return-value]  # mypy does not narrow by `kind`
        # The methods of the base types, on purpose: a subclass may have its own, and they may raise or never end.
        if isinstance(value, int) and issubclass(kind, int):
            number = int.__int__(value)
            return number if number.bit_length() <= INTEGER_BITS_MAX else f"<int of {number.bit_length()} bits>"
        if isinstance(value, float) and issubclass(kind, float):
            real = float.__float__(value)
            return real if real - real == 0 else repr(real)  # NaN and the infinities are no JSON
        if isinstance(value, str) and issubclass(kind, str):
            return self.text(value)
        if isinstance(value, (bytes, bytearray, memoryview)):
            return f"<{len(value)} bytes>"
        if issubclass(kind, (dict, list, tuple, set, frozenset)):
            return self._container(value)
        if isinstance(value, BaseException):
            return self.text(f"{kind.__name__}: {safe_str(value)}")
        return self.text(safe_str(value) if issubclass(kind, _SAYS_ITSELF) else safe_repr(value))

    def _container(self, value: object) -> JsonValue:
        if any(value is container for container in self._above):
            return "<circular>"
        if len(self._above) >= DEPTH_MAX:
            return f"<{type(value).__name__}>"
        self._above.append(value)
        try:
            if isinstance(value, dict):
                return self._mapping(value)
            if isinstance(value, (set, frozenset)):
                items = (set if isinstance(value, set) else frozenset).__iter__(value)  # type: ignore[arg-type]
                return sorted(self._items(items, len(value)), key=safe_repr)
            if isinstance(value, list):
                return self._items(list.__iter__(value), list.__len__(value))
            return self._items(tuple.__iter__(value), tuple.__len__(value))  # type: ignore[arg-type]
        finally:
            self._above.pop()

    def _items(self, items: Iterable[object], count: int) -> list[JsonValue]:
        shown = [self.value(item) for item in list(islice(items, ITEMS_MAX))]
        return [*shown, f"{ELLIPSIS} {count} in all"] if count > ITEMS_MAX else shown

    def _mapping(self, mapping: dict[object, object]) -> JsonValue:
        shown: dict[str, JsonValue] = {}
        for key, item in list(islice(dict.items(mapping), ITEMS_MAX)):
            name = key if isinstance(key, str) else safe_repr(key)
            shown[self.text(name, NAME_MAX)] = self.value(item)
        if dict.__len__(mapping) > ITEMS_MAX:
            shown[ELLIPSIS] = f"{dict.__len__(mapping)} in all"
        return shown
