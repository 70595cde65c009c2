"""Mask what contracts call sensitive, in whatever people and models are shown. Handlers and probes get the thing itself.

Promise: a field is masked at any depth and in any capitals, and its values are masked in the texts beside it, too.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from settled.core.text import ELLIPSIS, MASK

VALUE_CHARACTERS_MIN: Final = 4  # a shorter value stands in every text, and masking it would hide nothing but the text


@dataclass(frozen=True, slots=True)
class Mask:
    """Names of sensitive fields, folded, and the values that are known of them, the longest first."""

    fields: frozenset[str] = frozenset()
    values: tuple[str, ...] = ()

    def of(self, value: Any) -> Any:
        """Return plain data like `value` with every sensitive field masked, and known values in its texts."""
        if not self.fields:
            return value
        if isinstance(value, Mapping):
            return {name: MASK if _folded(name) in self.fields else self.of(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self.of(one) for one in value]
        if isinstance(value, tuple):
            return tuple(self.of(one) for one in value)
        return self.text(value) if type(value) is str else value

    def text(self, text: str) -> str:
        """Return `text` with known values masked; of one that was cut at its end, the beginning."""
        for value in self.values:
            text = text.replace(value, MASK)
        return self._without_half(text) if text.endswith(ELLIPSIS) else text

    def _without_half(self, text: str) -> str:
        body = text[: -len(ELLIPSIS)]
        for value in self.values:
            for length in range(len(value) - 1, VALUE_CHARACTERS_MIN - 1, -1):
                if body.endswith(value[:length]):
                    return body[:-length] + MASK + ELLIPSIS
        return text


NO_MASK: Final = Mask()


def mask_of(fields: Iterable[str], *texts: str | None) -> Mask:
    """Return the mask of sensitive fields; `texts` are JSON texts in which their values stand, None where one was purged.

    A dotted name is taken by its last part: what is masked too often hurts nobody.
    """
    names = frozenset(_folded(name.rpartition(".")[2]) for name in fields)
    if not names:
        return NO_MASK
    found = {value for text in texts if text is not None for value in _values(json.loads(text), names, inside=False)}
    return Mask(names, tuple(sorted(found, key=lambda value: (-len(value), value))))


def _values(value: Any, names: frozenset[str], *, inside: bool) -> Iterator[str]:
    """Yield the texts and numbers that stand under a sensitive name."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _values(one, names, inside=inside or _folded(name) in names)
    elif isinstance(value, list):
        for one in value:
            yield from _values(one, names, inside=inside)
    elif inside and type(value) in (str, int, float) and len(str(value)) >= VALUE_CHARACTERS_MIN:
        yield str(value)


def _folded(name: object) -> str:
    return str(name).casefold()
